"""What each tenant used: counted by the recorder, kept by the hour, given as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Any

import pytest
from structlog.testing import capture_logs

from tidegate.control.usage import MOST_WAITING_HOURS
from tidegate.control.usage_routes import COLUMNS, harmless
from tidegate.core import Drain, Lease, Outcome, Reason, Release, Ticket
from tidegate.stores import Unavailable, Usage
from tidegate.telemetry.usage import OTHERS, UsageBook, Used
from tidegate.testing import run_virtual
from unit.control_stage import FILE, OPERATORS, Stage


async def rows(stage: Stage, query: str = "", **more: Any) -> list[dict[str, str]]:
    answer = await stage.ask("GET", f"/admin/usage.csv{query}", **more)
    assert (answer.status, answer.content_type) == (200, "text/csv; charset=utf-8"), answer.body
    found = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert not found or tuple(found[0]) == COLUMNS
    return found


async def a_request(stage: Stage, tenant: str, number: int, held_s: float = 0.0) -> None:
    lease = await stage.driver.acquire(Ticket(f"{tenant}-{number}", "m", 1, tenant))
    assert isinstance(lease, Lease)
    await asyncio.sleep(held_s)
    stage.driver.release(lease, Release(Outcome.COMPLETED, 10, 20))


def test_everything_that_a_tenant_did_is_in_its_row() -> None:
    async def story() -> None:
        stage = Stage()
        await asyncio.gather(a_request(stage, "shop", 1, 2.0), a_request(stage, "shop", 2))
        lease = await stage.driver.acquire(Ticket("f", "m", 1, "shop"))
        assert isinstance(lease, Lease)
        waiting = asyncio.create_task(stage.driver.acquire(Ticket("c", "m", 1, "shop")))
        gone = asyncio.create_task(stage.driver.acquire(Ticket("g", "m", 1, "shop")))
        await asyncio.sleep(1)
        gone.cancel()
        await asyncio.sleep(0)
        stage.driver.observe(Drain())
        await waiting
        stage.driver.release(lease, Release(Outcome.FAILED, 5), reason=Reason.UPSTREAM_ERROR)
        await stage.driver.acquire(Ticket("r", "m", 1, "shop"))
        stage.recorder.refused(Reason.TOO_LARGE, tenant="shop")
        stage.recorder.refused(Reason.UNAUTHORIZED)
        (row,) = await rows(stage)
        assert {name: row[name] for name in COLUMNS if row[name] not in ("0", "0.000")} == {
            "from_utc": "2026-01-01T00:00:00Z",
            "tenant": "shop",
            "requests": "7",
            "completed": "2",
            "failed": "1",
            "rejected": "2",
            "evicted": "1",
            "cancelled": "1",
            "input_tokens": "25",
            "output_tokens": "40",
            "dispatches": "3",
            "wait_seconds": "2.000",
            "longest_wait_seconds": "2.000",
            "refused_upstream_error": "1",
            "refused_too_large": "1",
            "refused_draining": "2",
        }

    run_virtual(story())


def test_periods_and_bounds() -> None:
    async def story() -> None:
        stage = Stage()
        for _ in range(30):
            await stage.books.usage.write()
            await a_request(stage, "shop", 1)
            await a_request(stage, "other", 1)
            await stage.books.usage.write()
            await asyncio.sleep(3600)
        assert [(row["tenant"], row["requests"]) for row in await rows(stage)] == [("other", "30"), ("shop", "30")]
        days = await rows(stage, "?by=day")
        assert [(row["from_utc"][:10], row["tenant"], row["requests"]) for row in days] == [
            ("2026-01-01", "other", "24"),
            ("2026-01-01", "shop", "24"),
            ("2026-01-02", "other", "6"),
            ("2026-01-02", "shop", "6"),
        ]
        hours = await rows(stage, "?by=hour&from=2026-01-01T22:30:00Z&to=2026-01-02T01:00:00%2B00:00")
        assert [row["from_utc"][11:13] for row in hours] == ["22", "22", "23", "23", "00", "00"]
        assert await rows(stage, "?from=2026-01-03&to=2026-01-04") == []
        assert [row["requests"] for row in await rows(stage, "?from=2026-01-02")] == ["6", "6"]
        east = await rows(stage, "?from=2026-01-02T08:00:00%2B08:00&to=2026-01-02T09:00:00%2B08:00")
        assert [row["requests"] for row in east] == ["1", "1"]

    run_virtual(story())


@pytest.mark.parametrize(
    "query",
    ["?from=x", "?to=2026-13-01", "?from=2026-01-02&to=2026-01-01", "?by=week", "?from=0001-01-01", "?from=%00"],
)
def test_a_question_that_makes_no_sense_is_refused(query: str) -> None:
    async def story() -> None:
        answer = await Stage().get(f"/admin/usage.csv{query}")
        assert (answer.status, answer.json["error"]["code"]) == (400, "bad_request")

    run_virtual(story())


@pytest.mark.parametrize(
    ("name", "cell"),
    [("shop", "shop"), ("-1+2", "'-1+2"), ("=cmd|x", "'=cmd|x"), ("@a", "'@a"), ("+1", "'+1"), ("\t=1", "'\t=1")],
)
def test_no_cell_is_a_formula(name: str, cell: str) -> None:
    async def story() -> None:
        stage = Stage()
        stage.recorder.usage.dispatched(name, 1.0)
        (row,) = await rows(stage)
        assert row["tenant"] == cell == harmless(name)

    run_virtual(story())


def test_thousands_of_tenants_come_in_pages() -> None:
    async def story() -> None:
        stage = Stage()
        for number in range(1203):
            stage.recorder.usage.dispatched(f"t{number:04}", 1.0)
        found = await rows(stage)
        assert [row["tenant"] for row in found] == [f"t{number:04}" for number in range(1203)]

    run_virtual(story())


def test_a_viewer_may_look() -> None:
    async def story() -> None:
        stage = Stage(FILE + f"control: {{listen: '0.0.0.0:8401', {OPERATORS}}}")
        assert (await stage.ask("GET", "/admin/usage.csv")).status == 401
        assert await rows(stage, token="wall-token") == []

    run_virtual(story())


def test_what_the_store_does_not_take_waits_for_a_day() -> None:
    async def story() -> None:
        stage = Stage()
        ask, usage = stage.books.keeper.ask, stage.books.usage

        async def broken(_: object) -> Any:
            raise Unavailable("the disk is gone")

        stage.books.keeper.ask = broken  # type: ignore[method-assign, assignment]
        with capture_logs() as logs:
            for hour in range(MOST_WAITING_HOURS + 2):
                stage.recorder.usage.ended("shop", Outcome.COMPLETED)
                stage.recorder.usage.ended("shop", Outcome.REJECTED, Reason.SHED)
                assert await usage.write() is False
                stage.recorder.usage.ended("shop", Outcome.COMPLETED, input_tokens=hour)
                assert await usage.write() is False
                await asyncio.sleep(3600)
                assert await usage.write() is False
        assert [line["event"] for line in logs].count("control.usage_lost") == 2
        stage.books.keeper.ask = ask  # type: ignore[method-assign]
        assert await usage.write() is True
        found = await rows(stage, "?by=hour")
        assert len(found) == MOST_WAITING_HOURS
        assert {(row["completed"], row["refused_shed"]) for row in found} == {("2", "1")}
        assert await usage.write() is True
        assert await rows(stage, "?by=hour") == found, "nothing is counted twice"

    run_virtual(story())


def test_a_round_that_fails_is_not_the_last() -> None:
    async def story() -> None:
        stage = Stage()
        write, broken = stage.books.usage.write, True

        async def failing() -> bool:
            if broken:
                raise KeyError("as never before")
            return await write()

        stage.books.usage.write = failing  # type: ignore[method-assign]
        await stage.books.start()
        with capture_logs() as logs:
            await asyncio.sleep(25)
        assert [line["event"] for line in logs] == ["control.fault", "control.fault"]
        broken = False
        stage.recorder.usage.ended("shop", Outcome.COMPLETED)
        await asyncio.sleep(15)
        assert len(await rows(stage)) == 1
        await stage.books.stop()

    run_virtual(story())


def test_an_hour_that_ends_keeps_what_was_done_in_it() -> None:
    async def story() -> None:
        stage = Stage()
        usage = stage.books.usage
        await asyncio.sleep(3595)
        assert usage.next_s() == pytest.approx(5)
        stage.recorder.usage.ended("shop", Outcome.COMPLETED)
        await asyncio.sleep(usage.next_s())
        await usage.write()
        assert usage.next_s() == 10
        stage.recorder.usage.ended("later", Outcome.COMPLETED)
        (row, other) = await rows(stage, "?by=hour")
        assert (row["from_utc"], row["tenant"]) == ("2026-01-01T00:00:00Z", "shop")
        assert (other["from_utc"], other["tenant"]) == ("2026-01-01T01:00:00Z", "later")

    run_virtual(story())


def test_old_usage_is_forgotten() -> None:
    async def story() -> None:
        stage = Stage()
        stage.recorder.usage.ended("shop", Outcome.COMPLETED)
        await stage.books.usage.write()
        await stage.books.usage.forget()
        assert len(await rows(stage)) == 1
        await asyncio.sleep(94 * 86400)
        await stage.books.usage.forget()
        assert await rows(stage, "?from=2026-01-01") == []

    run_virtual(story())


def test_the_book_has_a_bound() -> None:
    book = UsageBook(2)
    for name in ("a", "b", "c", "d", "a"):
        book.ended(name, Outcome.COMPLETED)
    assert {name: usage.completed for name, usage in book.take().items()} == {"a": 2, "b": 1, OTHERS: 2}
    assert book.take() == {}


def used(*counts: int, wait_s: float, longest_s: float, refusals: dict[str, int]) -> Used:
    one = Used()
    names = ["completed", "failed", "rejected", "evicted", "cancelled", "input_tokens", "output_tokens", "dispatched"]
    for name, count in zip(names, counts, strict=True):
        setattr(one, name, count)
    one.wait_s, one.longest_wait_s, one.refusals = wait_s, longest_s, refusals
    return one


def test_two_stretches_add_up() -> None:
    one = used(1, 2, 3, 4, 5, 6, 7, 8, wait_s=1.5, longest_s=0.5, refusals={"shed": 1})
    assert one.usage() == Usage(1, 2, 3, 4, 5, 6, 7, 8, 1.5, 0.5, {"shed": 1})
    other = used(1, 1, 1, 1, 1, 1, 1, 1, wait_s=1.0, longest_s=0.25, refusals={"shed": 2, "expired": 3})
    one.add(other)
    assert one.usage() == Usage(2, 3, 4, 5, 6, 7, 8, 9, 2.5, 0.5, {"shed": 3, "expired": 3})
    assert other.refusals == {"shed": 2, "expired": 3}
