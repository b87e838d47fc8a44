"""One request seen and stopped from the control port; draining."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.core import Ticket
from tidegate.runtime.questions import MOST_LOOKED_AT
from tidegate.testing import run_virtual
from unit.control_stage import Stage


def test_those_who_wait_are_listed_longest_first_and_by_band() -> None:
    async def story() -> None:
        stage = Stage()
        tasks = [
            asyncio.create_task(stage.driver.acquire(Ticket(f"t{i}", "m", i % 3, "shop", name=f"n{i}")))
            for i in range(7)
        ]
        await asyncio.sleep(0.1)
        shown = (await stage.get("/admin/requests")).json
        assert [row["id"] for row in shown["requests"]] == ["t1", "t2", "t3", "t4", "t5", "t6"]
        assert shown["complete"] is True
        shown = (await stage.get("/admin/requests?band=p1&limit=1")).json
        assert [(row["id"], row["band"], row["tenant"], row["model"]) for row in shown["requests"]] == [
            ("t1", "p1", "shop", "m")
        ]
        assert shown["complete"] is False
        assert (await stage.get("/admin/requests?band=p9")).status == 400
        for task in tasks:
            task.cancel()

    run_virtual(story())


def test_a_listing_looks_at_no_more_than_it_may() -> None:
    async def story() -> None:
        stage = Stage()
        tasks = [
            asyncio.create_task(stage.driver.acquire(Ticket(f"t{i}", "m", 2, "t"))) for i in range(MOST_LOOKED_AT + 2)
        ]
        tasks.append(asyncio.create_task(stage.driver.acquire(Ticket("last", "m", 1, "t"))))
        await asyncio.sleep(0.1)
        shown = (await stage.get("/admin/requests?band=p1")).json
        assert shown == {"requests": [], "complete": False}
        for task in tasks:
            task.cancel()

    run_virtual(story())


def test_why_a_request_waits_by_id_and_by_name() -> None:
    async def story() -> None:
        stage = Stage()
        await stage.driver.acquire(Ticket("first", "m", 0, "shop"))
        waiting = asyncio.create_task(stage.driver.acquire(Ticket("second", "m", 0, "shop", name="order-1")))
        await asyncio.sleep(2)
        by_id = (await stage.get("/admin/requests/second")).json
        assert (by_id["id"], by_id["kind"], by_id["waited_s"]) == ("second", "gate", 2.0)
        assert by_id["gate"]["kind"] == "no_seat"
        assert (await stage.get("/admin/requests/shop/order-1")).json == by_id
        assert (await stage.get("/admin/requests/first")).json["kind"] == "running"
        assert (await stage.get("/admin/requests/shop/order-2")).status == 404
        assert (await stage.get("/admin/requests/nobody")).status == 404
        waiting.cancel()

    run_virtual(story())


def test_a_request_is_stopped_and_that_is_recorded() -> None:
    async def story() -> None:
        stage = Stage()
        answer = await stage.ask("DELETE", "/admin/requests/req-1")
        assert (answer.status, answer.json) == (200, {"id": "req-1", "stopped": True})
        assert (await stage.ask("DELETE", "/admin/requests/nobody")).status == 404
        assert stage.stopped == ["req-1", "nobody"]
        (record,) = stage.audit.newest(9)
        assert (record.action, record.changes) == ("cancel", [{"what": "request", "from": "req-1", "to": None}])

    run_virtual(story())


def test_draining_begins_once() -> None:
    async def story() -> None:
        stage = Stage()
        for _ in range(2):
            answer = await stage.ask("POST", "/admin/drain")
            assert (answer.status, answer.json) == (202, {"waiting": 0, "running": 0})
        assert stage.drains == 1
        assert [record.action for record in stage.audit.newest(9)] == ["drain"]

    run_virtual(story())


@pytest.mark.parametrize("path", ["/admin/drain", "/admin/reload"])
def test_what_takes_no_arguments_takes_none(path: str) -> None:
    async def story() -> None:
        stage = Stage()
        assert (await stage.ask("POST", path, {"now": True})).status == 400
        assert stage.drains == 0

    run_virtual(story())
