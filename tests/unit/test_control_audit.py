"""The list of changes is durable and paged, and a change can be taken back as long as nobody has changed more."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tidegate.config import parse_settings
from tidegate.control import Audit, Keeper
from tidegate.stores import KnobStore, Unavailable, open_knob_store
from tidegate.testing import LoopClock, run_virtual
from unit.control_stage import FILE, Answer, Stage


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def patch(stage: Stage, **policy: Any) -> Any:
    answer = await stage.ask("PATCH", "/admin/policy", policy)
    assert answer.status == 200, answer.body
    return answer.json["record"]


async def undo(stage: Stage, record: object, **body: object) -> Answer:
    return await stage.ask("POST", f"/admin/audit/{record}/undo", body)


async def listed(stage: Stage, query: str = "") -> Any:
    return (await stage.get(f"/admin/audit{query}")).json


def test_it_is_listed_newest_first_and_in_pages() -> None:
    async def story() -> None:
        stage = Stage()
        ids = [await patch(stage, queue_capacity=number) for number in range(1, 6)]
        seen = await listed(stage)
        assert [row["id"] for row in seen["records"]] == ids[::-1]
        assert seen["complete"] is True
        first = seen["records"][-1]
        assert first == {
            "id": ids[0],
            "at_utc": "2026-01-01T00:00:00Z",
            "who": "local",
            "action": "policy",
            "changes": [{"what": "policy.queue_capacity", "from": 25000, "to": 1}],
            "undoes": None,
            "undone_by": None,
            "undoable": True,
        }
        page = await listed(stage, f"?limit=2&before={ids[3]}")
        assert ([row["id"] for row in page["records"]], page["complete"]) == ([ids[2], ids[1]], False)
        assert (await stage.get("/admin/audit?before=x")).status == 400

    run_virtual(story())


def test_a_policy_change_is_taken_back_and_that_too() -> None:
    async def story() -> None:
        stage = Stage()
        before = stage.live.settings
        record = await patch(stage, bands={"p2": {"ceiling": 0.5, "promote_after": None}}, queue_capacity=7)
        changed = stage.live.settings
        answer = await undo(stage, record)
        assert (answer.status, answer.json["undone"]) == (200, record)
        assert stage.live.settings == before
        newest, old = (await listed(stage))["records"]
        assert (newest["action"], newest["undoes"], newest["id"]) == ("undo", record, answer.json["record"])
        assert (old["undone_by"], old["undoable"]) == (newest["id"], False)
        assert (await undo(stage, record)).status == 409
        assert (await undo(stage, newest["id"])).status == 200
        assert stage.live.settings == changed

    run_virtual(story())


def test_a_change_is_not_taken_back_over_a_later_one_unless_that_is_meant() -> None:
    async def story() -> None:
        stage = Stage()
        record = await patch(stage, queue_capacity=7, max_flows=5)
        await patch(stage, queue_capacity=8)
        answer = await undo(stage, record)
        assert (answer.status, answer.json["error"]["code"]) == (409, "conflict")
        assert answer.json["error"]["message"].startswith("policy.queue_capacity has been changed since")
        assert (stage.live.settings.policy.queue_capacity, stage.live.settings.policy.max_flows) == (8, 5)
        assert (await undo(stage, record, force=True)).status == 200
        assert (stage.live.settings.policy.queue_capacity, stage.live.settings.policy.max_flows) == (25000, 10000)

    run_virtual(story())


def test_a_later_change_of_something_else_is_no_hindrance() -> None:
    async def story() -> None:
        stage = Stage()
        record = await patch(stage, queue_capacity=7)
        await patch(stage, max_flows=5)
        assert (await undo(stage, record)).status == 200
        assert (stage.live.settings.policy.queue_capacity, stage.live.settings.policy.max_flows) == (25000, 5)

    run_virtual(story())


def test_a_mode_is_taken_back() -> None:
    async def story() -> None:
        stage = Stage()
        record = (await stage.ask("POST", "/admin/mode", {"mode": "observe", "revert_after": "1h"})).json["record"]
        assert (await undo(stage, record)).status == 200
        assert (stage.live.mode, stage.live.state().reverts_to) == ("normal", None)
        assert (await undo(stage, record)).status == 409
        await asyncio.sleep(4000)
        assert stage.live.mode == "normal"
        record = (await stage.ask("POST", "/admin/mode", {"mode": "normal", "revert_after": "1h"})).json["record"]
        assert (await undo(stage, record)).status == 409, "it changed no mode"

    run_virtual(story())


def test_backends_are_taken_back_with_their_credentials() -> None:
    async def story() -> None:
        stage = Stage()
        before = stage.live.settings
        rows = [{"name": "other", "url": "http://o:1", "seats": 2}]
        body = {"models": [{"name": "m", "backends": rows}]}
        record = (await stage.ask("PUT", "/admin/backends", body)).json["record"]
        assert (await undo(stage, record)).status == 200
        assert stage.live.settings == before
        key = stage.live.settings.models[0].backends[0].api_key
        assert key is not None
        assert key.get_secret_value() == "hunter2"
        record = (await stage.ask("PUT", "/admin/backends", body)).json["record"]
        body["models"][0]["backends"] = [{**rows[0], "seats": 3}]
        await stage.ask("PUT", "/admin/backends", body)
        assert (await undo(stage, record)).status == 409
        stage.live._models_before.clear()
        answer = await undo(stage, record, force=True)
        assert answer.status == 409
        assert "credentials" in answer.json["error"]["message"]

    run_virtual(story())


def test_single_settings_of_backends_are_taken_back_by_another_process_too() -> None:
    async def story() -> None:
        stage = Stage()
        before = stage.live.settings

        async def put(**changed: object) -> int:
            row = {"name": "b", "url": "http://b:1", "seats": 1, **changed}
            answer = await stage.ask("PUT", "/admin/backends", {"models": [{"name": "m", "backends": [row]}]})
            return int(answer.json["record"])

        record = await put(seats=5, budget={"tokens_per_minute": 900})
        stage.live._models_before.clear()  # as after a restart: only the list of changes is left
        assert (await undo(stage, record)).status == 200
        assert stage.live.settings == before, "its credential is there too"
        first, second = await put(seats=5), await put(seats=6)
        stage.live._models_before.clear()
        assert (await undo(stage, first)).status == 409
        assert (await undo(stage, first, force=True)).status == 200
        assert stage.live.settings.models[0].backends[0].seats == 1
        assert (await undo(stage, second)).status == 409
        moved = await put(url="http://c:1")
        stage.live._models_before.clear()
        answer = await undo(stage, moved, force=True)
        assert (answer.status, "credentials" in answer.json["error"]["message"]) == (409, True)

    run_virtual(story())


def test_what_cannot_be_taken_back_says_so() -> None:
    async def story() -> None:
        stage = Stage(load=lambda: parse_settings(FILE + "objectives: {gold: p0}"))
        await stage.ask("POST", "/admin/reload", {})
        await stage.ask("DELETE", "/admin/requests/some")
        await stage.ask("POST", "/admin/drain", {})
        for row in (await listed(stage))["records"]:
            assert row["undoable"] is False
            assert (await undo(stage, row["id"])).status == 409
        for unknown in ("99", "x", "-1", "1" * 30):
            assert (await undo(stage, unknown)).status == 404
        assert (await undo(stage, 1, force="yes")).status == 400

    run_virtual(story())


def test_a_policy_that_came_with_the_file_is_taken_back() -> None:
    async def story() -> None:
        stage = Stage(load=lambda: parse_settings(FILE + "policy: {queue_capacity: 9}"))
        record = (await stage.ask("POST", "/admin/reload", {})).json["record"]
        assert (await undo(stage, record)).status == 200
        assert stage.live.settings.policy.queue_capacity == 25000

    run_virtual(story())


def test_an_undo_that_is_refused_by_the_policy_changes_nothing() -> None:
    async def story() -> None:
        stage = Stage()
        record = await patch(stage, overtake_cap=0.4)
        await patch(stage, bands={"p2": {"floor": 0.3}})
        answer = await undo(stage, record)
        assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_settings")
        assert float(stage.live.settings.policy.overtake_cap) == 0.4

    run_virtual(story())


class Letters:
    async def dead_letters(self, after: str | None, limit: int) -> list[dict[str, Any]]:
        return []

    async def redrive(self, letter: str) -> dict[str, Any]:
        if letter == "bad":
            raise ValueError("no id")
        return {"batch": "b2", "rows": 1}

    async def discard(self, letter: str) -> dict[str, Any]:
        return {"rows": 1}


def test_what_is_done_to_dead_letters_is_recorded() -> None:
    async def story() -> None:
        stage = Stage(letters=Letters())
        assert (await stage.ask("POST", "/admin/dead-letters/b1-7/redrive", {})).status == 200
        assert (await stage.ask("DELETE", "/admin/dead-letters/b1-8")).status == 200
        assert (await stage.ask("POST", "/admin/dead-letters/bad/redrive", {})).status == 400
        assert [(r["action"], r["changes"]) for r in (await listed(stage))["records"]] == [
            ("dead-letter", [{"what": "dead-letters.b1-8", "from": "dead", "to": {"discarded": {"rows": 1}}}]),
            (
                "dead-letter",
                [{"what": "dead-letters.b1-7", "from": "dead", "to": {"redriven": {"batch": "b2", "rows": 1}}}],
            ),
        ]

    run_virtual(story())


class Flaky(Keeper):
    """A durable store that can be cut off."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self.broken = False

    async def ask(self, question: Any) -> Any:
        if self.broken:
            raise Unavailable("control.store: the disk is gone")
        return await super().ask(question)


@pytest.mark.anyio
async def test_a_store_that_fails_costs_the_record_its_id_and_not_the_change(tmp_path: Path) -> None:
    keeper = Flaky(tmp_path / "c.db")
    await keeper.open()
    audit = Audit(keeper, LoopClock().utc_now)
    audit.add("duty", "mode", [("mode", "a", "b")])
    await audit.settled()
    keeper.broken = True
    with capture_logs() as logs:
        lost = [audit.add("duty", "mode", [("mode", n, n)]) for n in range(3)]
        await audit.settled()
    assert {line["event"] for line in logs} == {"control.changed", "control.audit_waits"}
    assert [record.id for record in lost] == [None] * 3
    assert [record.changes[0]["from"] for record in audit.newest(9)] == [2, 1, 0, "a"]
    with pytest.raises(Unavailable):
        await audit.page(None, 9)
    keeper.broken = False
    assert [record.id for record in await audit.page(None, 9)] == [4, 3, 2, 1]
    assert [record.id for record in lost] == [2, 3, 4]
    await keeper.close()
    store: KnobStore = open_knob_store(f"sqlite:///{tmp_path / 'c.db'}")
    assert [change.changes[0]["from"] for change in store.changes(before=None, limit=9)] == [2, 1, 0, "a"]
    store.close()


@pytest.mark.anyio
async def test_a_change_is_on_disk_before_its_answer(tmp_path: Path) -> None:
    keeper = Keeper(f"sqlite:///{tmp_path / 'c.db'}")
    await keeper.open()
    audit = Audit(keeper, LoopClock().utc_now)
    record = audit.add("duty", "mode", [("mode", "a", "b")])
    assert record.id is None
    await audit.settled()
    other = open_knob_store(f"sqlite:///{tmp_path / 'c.db'}")
    assert [change.id for change in other.changes(before=None, limit=9)] == [record.id] == [1]
    other.close()
    await keeper.close()
    with pytest.raises(Unavailable):
        await keeper.ask(lambda store: store.tenants())


@pytest.mark.anyio
async def test_a_store_in_memory_is_asked_in_a_thread_where_it_may_hold_up_requests() -> None:
    keeper = Keeper(None, aside=True)
    await keeper.open()
    audit = Audit(keeper, LoopClock().utc_now)
    record = audit.add("duty", "mode", [("mode", "a", "b")])
    assert record.id is None
    await audit.settled()
    assert [found.id for found in await audit.page(None, 9)] == [record.id] == [1]
    assert await keeper.ask(lambda _: threading.get_ident()) != threading.get_ident()
    assert not keeper.durable, "what is in memory has the bounds of memory"
    await keeper.close()
