"""Modes: at once, for a while, recorded, and what waits is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tidegate.control.audit import KEPT
from tidegate.core import Evict, Lease, Reason, Reject, Release, Ticket
from tidegate.testing import run_virtual
from unit.control_stage import FILE, Stage

MODES = FILE + "modes: {night: {admit: [p2], policy: {bands: {p2: {shed_answer: error}}}}}\n"


def test_transactions_only_sheds_what_waits_below_and_lets_p0_in_and_work_finish() -> None:
    async def story() -> None:
        stage = Stage()
        running = await stage.driver.acquire(Ticket("running", "m", 2, "t"))
        low = asyncio.create_task(stage.driver.acquire(Ticket("low", "m", 2, "t")))
        high = asyncio.create_task(stage.driver.acquire(Ticket("high", "m", 0, "t")))
        await asyncio.sleep(0.1)
        answer = await stage.ask("POST", "/admin/mode", {"mode": "transactions_only"})
        assert (answer.status, answer.json["mode"], answer.json["by"]) == (200, "transactions_only", "local")
        refused = await low
        assert isinstance(refused, Evict)
        assert refused.reason is Reason.SHED
        refused = await stage.driver.acquire(Ticket("later", "m", 1, "t"))
        assert isinstance(refused, Reject)
        assert refused.reason is Reason.SHED
        assert isinstance(running, Lease)
        stage.driver.release(running, Release())
        assert isinstance(await high, Lease)
        metrics = (await stage.get("/metrics")).body
        assert b'tidegate_mode{mode="transactions_only"} 1.0' in metrics

    run_virtual(story())


def test_a_mode_ends_by_itself() -> None:
    async def story() -> None:
        stage = Stage()
        answer = await stage.ask("POST", "/admin/mode", {"mode": "observe", "revert_after": "30min"})
        assert (answer.json["reverts_to"], answer.json["reverts_in_s"]) == ("normal", 1800.0)
        await asyncio.sleep(1799)
        assert stage.live.mode == "observe"
        await asyncio.sleep(1.1)
        state = (await stage.get("/admin/mode")).json
        assert (state["mode"], state["by"], state["reverts_to"], state["reverts_in_s"]) == (
            "normal",
            "timer",
            None,
            None,
        )
        assert stage.recorder.mode == "normal"
        assert [(r.who, r.action, r.changes[0]["from"], r.changes[0]["to"]) for r in stage.audit.newest(9)] == [
            ("timer", "mode", "observe", "normal"),
            ("local", "mode", "normal", "observe"),
        ]

    run_virtual(story())


def test_a_second_switch_goes_back_to_where_the_first_would() -> None:
    async def story() -> None:
        stage = Stage(MODES)
        stage.live.switch("observe", who="a", revert_after_s=100)
        stage.live.switch("night", who="a", revert_after_s=10)
        await asyncio.sleep(11)
        assert stage.live.mode == "normal"
        await asyncio.sleep(100)
        assert [record.who for record in stage.audit.newest(9)] == ["timer", "a", "a"]

    run_virtual(story())


def test_switching_again_sets_the_end_anew_or_takes_it_away() -> None:
    async def story() -> None:
        stage = Stage()
        stage.live.switch("observe", who="a", revert_after_s=10)
        await asyncio.sleep(5)
        stage.live.switch("observe", who="a", revert_after_s=10)
        await asyncio.sleep(9)
        assert stage.live.state().reverts_in_s == pytest.approx(1)
        stage.live.switch("observe", who="a")
        await asyncio.sleep(100)
        assert stage.live.mode == "observe"
        stage.live.switch("normal", who="a", revert_after_s=10)  # goes back to observe
        await asyncio.sleep(11)
        assert stage.live.mode == "observe"

    run_virtual(story())


def test_to_normal_from_a_mode_that_would_end_is_for_good() -> None:
    async def story() -> None:
        stage = Stage()
        stage.live.switch("observe", who="a", revert_after_s=10)
        stage.live.switch("normal", who="a", revert_after_s=10)
        assert stage.live.state().reverts_to is None

    run_virtual(story())


def test_those_who_answer_clients_are_told_the_modes_overlay() -> None:
    async def story() -> None:
        stage = Stage(MODES)
        stage.live.switch("night", who="a")
        assert stage.edges[-1].policy.bands["p2"].shed_answer == "error"
        assert stage.live.settings.policy.bands["p2"].shed_answer == "fallback"
        await stage.ask("PATCH", "/admin/policy", {"bands": {"p2": {"shed_answer": "fallback", "ttl": "1h"}}})
        assert (stage.edges[-1].policy.bands["p2"].shed_answer, stage.edges[-1].policy.bands["p2"].ttl) == (
            "error",
            3600,
        )
        stage.live.switch("normal", who="a")
        assert stage.edges[-1].policy.bands["p2"].shed_answer == "fallback"

    run_virtual(story())


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"mode": "transactions"}, "mode", "mode: expected one of normal, transactions_only, observe, got 'transac"),
        ({"mode": 3}, "mode", "expected mode, a name"),
        ({}, "mode", "expected mode, a name"),
        ({"mode": "observe", "revert_after": "soon"}, "revert_after", "revert_after: expected a duration"),
        (
            {"mode": "observe", "revert_after": "99999999999h"},
            "revert_after",
            "revert_after: expected a duration of at most",
        ),
        ({"mode": "observe", "revert_after": 0}, "revert_after", "revert_after: expected a duration above 0"),
        ({"mode": "observe", "for": "1h"}, None, "expected a JSON object with mode, revert_after"),
        ([], None, "expected a JSON object with mode, revert_after"),
    ],
)
def test_a_wrong_switch_changes_nothing(body: object, param: str | None, message: str) -> None:
    async def story() -> None:
        stage = Stage()
        answer = await stage.ask("POST", "/admin/mode", body)
        assert (answer.status, answer.json["error"]["param"]) == (400, param)
        assert answer.json["error"]["message"].startswith(message)
        assert (stage.live.mode, stage.edges, stage.audit.newest(9)) == ("normal", [], [])

    run_virtual(story())


@pytest.mark.slow
def test_the_audit_list_keeps_the_newest_and_the_file_all(tmp_path: Path) -> None:
    async def story() -> None:
        file = tmp_path / "audit.jsonl"
        stage = Stage(audit_file=file)
        for _ in range(KEPT // 2 + 1):
            stage.live.switch("observe", who="a")
            stage.live.switch("normal", who="b")
            await asyncio.sleep(0)  # thousands in one turn are more than a turn of the loop may use
        records = (await stage.get("/admin/audit?limit=2")).json["records"]
        assert [(r["id"], r["who"]) for r in records] == [(KEPT + 2, "b"), (KEPT + 1, "a")]
        assert len(stage.audit.newest(5000)) == KEPT
        lines = file.read_text().splitlines()
        assert len(lines) == KEPT + 2
        first = json.loads(lines[0])
        assert set(first) == {"at_utc", "who", "action", "changes"}
        assert first["changes"] == [{"what": "mode", "from": "normal", "to": "observe"}]
        assert file.stat().st_mode & 0o777 == 0o600

    run_virtual(story())


def test_a_file_that_cannot_be_written_does_not_stop_the_switch(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(audit_file=tmp_path)
        with capture_logs() as logs:
            stage.live.switch("observe", who="a")
        assert stage.live.mode == "observe"
        assert [line["event"] for line in logs] == ["control.changed", "control.audit_lost"]

    run_virtual(story())


@pytest.mark.parametrize("limit", ["0", "1001", "x", "-1", "1e3", ""])
def test_a_wrong_limit_is_refused(limit: str) -> None:
    async def story() -> None:
        assert (await Stage().get(f"/admin/audit?limit={limit}")).status == 400

    run_virtual(story())
