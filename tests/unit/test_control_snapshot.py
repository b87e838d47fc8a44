"""The dashboard's numbers: what they are made of, and that they cost the same however much waits."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

import pytest

from tidegate.control.snapshot import Observer
from tidegate.control.snapshot_bounds import Bounds, rounded_up
from tidegate.control.snapshot_verdict import State, judge
from tidegate.control.snapshot_windows import Recent
from tidegate.core import Lease, Outcome, Reason, Release, Ticket
from tidegate.core.bounds import longest_waits
from tidegate.core.snapshots import BackendSnapshot
from tidegate.testing import run_virtual
from unit.control_stage import FILE, Stage

QUIET = Recent(None, None, None, None, None, 0, 0, 0.0, 0.0, 0.0, 0.0, {}, 60.0)


def busy(**changes: Any) -> Recent:
    plain = {name: getattr(QUIET, name) for name in Recent.__slots__}
    return Recent(**{**plain, "dispatched": 100, "within_slo": 1.0, **changes})


def verdict(recent: Recent, **changes: Any) -> tuple[State, list[str]]:
    plain: dict[str, Any] = {
        "not_ready": None,
        "depth": 0,
        "running": 0,
        "oldest_s": 0.0,
        "target_s": 1.0,
        "reserve_short": False,
        "backends": [BackendSnapshot("m", "b", 1, 0, up=True)],
    }
    state, findings = judge(recent=recent, **{**plain, **changes})
    return state, [finding.code for finding in findings]


@pytest.mark.parametrize(
    ("recent", "changes", "wanted"),
    [
        (QUIET, {}, (State.IDLE, [])),
        (QUIET, {"running": 1}, (State.SAFE, [])),
        (busy(), {}, (State.SAFE, [])),
        (busy(within_slo=0.99), {}, (State.SAFE, [])),
        (busy(within_slo=0.98), {}, (State.STRAINED, ["late"])),
        (busy(within_slo=0.94), {}, (State.UNSAFE, ["late"])),
        (busy(within_slo=0.5), {"target_s": None}, (State.SAFE, [])),
        (busy(), {"oldest_s": 0.6}, (State.STRAINED, ["waits"])),
        (busy(), {"oldest_s": 1.1}, (State.UNSAFE, ["waits"])),
        (busy(refusals={Reason.EXPIRED: 1}), {}, (State.UNSAFE, ["refused"])),
        (busy(refusals={Reason.TENANT_LIMIT: 5}), {}, (State.SAFE, [])),
        (QUIET, {"not_ready": "draining"}, (State.UNSAFE, ["not_ready"])),
        (busy(), {"reserve_short": True}, (State.STRAINED, ["reserve_short"])),
        (busy(), {"backends": [BackendSnapshot("m", "b", 1, 0, up=False)]}, (State.STRAINED, ["backends_down"])),
        (
            busy(),
            {"backends": [BackendSnapshot("m", "b", 1, 0, up=True, stale=True)]},
            (State.STRAINED, ["backends_stale"]),
        ),
    ],
)
def test_the_verdict(recent: Recent, changes: dict[str, Any], wanted: tuple[State, list[str]]) -> None:
    assert verdict(recent, **changes) == wanted


def band(numbers: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in numbers["bands"] if row["name"] == name)


async def run(stage: Stage, ticket: str, band: int, held_s: float, *, tokens: int, tenant: str = "acme") -> Lease:
    lease = await stage.driver.acquire(Ticket(ticket, "m", band, tenant))
    assert isinstance(lease, Lease)
    await asyncio.sleep(held_s / 2)
    stage.recorder.first_byte(lease, lease.waited_s + held_s / 2)
    await asyncio.sleep(held_s / 2)
    stage.driver.release(lease, Release(input_tokens=tokens, output_tokens=2 * tokens))
    return lease


def test_the_numbers_are_those_of_the_run() -> None:
    async def story() -> None:
        stage = Stage(FILE + "policy: {bands: {p2: {capacity: 2}}}")
        observer = Observer(stage.driver, stage.recorder, stage.live)
        work = [asyncio.create_task(run(stage, f"p2-{n}", 2, 4.0, tokens=10)) for n in range(3)]
        await asyncio.sleep(0.5)
        refused = await stage.driver.acquire(Ticket("more", "m", 2, "greedy"))
        assert not isinstance(refused, Lease)
        for _ in range(6):
            await asyncio.sleep(1)
            observer.mark()
        numbers = observer.numbers()
        p2 = band(numbers, "p2")
        assert (numbers["queued"], numbers["running"], numbers["seats"]) == (1, 1, 1)
        assert (p2["depth"], p2["running"], p2["oldest_s"]) == (1, 1, 6.5)
        assert (p2["dispatched"], p2["share"], p2["share_wanted"]) == (2, 1, 0.05)
        assert p2["wait_p99_s"] == pytest.approx(4, rel=0.1)
        assert p2["ttft_p50_s"] == pytest.approx(2, rel=0.1)
        assert p2["refusals"] == {"queue_full": 1}
        assert p2["written_per_s"] == pytest.approx(20 / 6.5, rel=0.01)
        assert numbers["tenants"] == {"tokens": [("acme", 30)], "refused": [("greedy", 1)]}
        assert numbers["service_s"] == 4.0
        assert (p2["gates"], p2["ttl_s"]) == ([{"pool": "m", "kind": "no_seat", "gated": True}], 86400.0)
        idle = [row for row in numbers["bands"] if not row["depth"]]
        assert idle
        assert all(row["gates"] == [] for row in idle), "who waits for nothing misses no seat"
        await asyncio.gather(*work)
        for _ in range(70):
            await asyncio.sleep(1)
            observer.mark()
        later = band(observer.numbers(), "p2")
        assert (later["dispatched"], later["share"], later["wait_p99_s"], later["refusals"]) == (0, None, None, {})

    run_virtual(story())


def test_waste_is_that_of_the_last_minute_with_its_causes_the_largest_first() -> None:
    async def story() -> None:
        stage = Stage()
        observer = Observer(stage.driver, stage.recorder, stage.live)
        assert observer.numbers()["waste"] == {"tokens": 0, "part": None, "causes": {}}
        stage.recorder.recomputed("preempted", 9)
        await run(stage, "done", 2, 1.0, tokens=300)  # of these 300 are the prompt and 600 the answer
        lease = await stage.driver.acquire(Ticket("gone", "m", 2, "acme"))
        assert isinstance(lease, Lease)
        stage.driver.release(lease, Release(Outcome.CANCELLED, 50, 41))
        observer.mark()
        wanted = {"tokens": 100, "part": 0.1, "causes": {"cancelled": 91, "preempted": 9}}
        assert observer.numbers()["waste"] == wanted
        for _ in range(70):
            await asyncio.sleep(1)
            observer.mark()
        assert observer.numbers()["waste"] == {"tokens": 0, "part": None, "causes": {}}
        stage.recorder.recomputed("broken", 5)
        assert observer.numbers()["waste"]["causes"] == {"broken": 5}, "what is over does not show again"

    run_virtual(story())


def test_what_the_switch_would_do_is_counted_before_it_is_pressed_and_batch_rows_are_not_among_it() -> None:
    class Jobs:
        def rows_waiting(self) -> list[int]:
            return [0, 0, 2]

        async def overview(self) -> dict[str, Any]:
            return {}

    async def story() -> None:
        stage = Stage()
        observer = Observer(stage.driver, stage.recorder, stage.live, Jobs())
        tickets = [Ticket(f"t{n}", "m", n % 3, "acme", patient=n in (2, 5)) for n in range(10)]
        tasks = [asyncio.create_task(stage.driver.acquire(ticket)) for ticket in tickets]
        await asyncio.sleep(0)
        wanted = {"name": "transactions_only", "observes": False}
        (mode,) = [row for row in observer.numbers()["modes"] if row["name"] == "transactions_only"]
        closes: list[dict[str, Any]] = [
            {"band": "p1", "requests": 3, "rows": 0},
            {"band": "p2", "requests": 1, "rows": 2},
        ]
        assert mode == {**wanted, "closes": closes}
        stage.live.switch("transactions_only", who="duty", revert_after_s=600)
        await asyncio.sleep(0.1)
        answered = [task for task in tasks if task.done() and not isinstance(task.result(), Lease)]
        assert len(answered) == sum(row["requests"] for row in closes)
        now = observer.numbers()
        assert (now["mode"]["name"], now["mode"]["by"], now["mode"]["reverts_to"]) == (
            "transactions_only",
            "duty",
            "normal",
        )
        assert now["mode"]["reverts_in_s"] == pytest.approx(600, abs=1)
        assert "mode" in [gate["kind"] for gate in band(now, "p2")["gates"]]
        for task in tasks:
            task.cancel()

    run_virtual(story())


def test_the_bounds_are_those_of_check_for_the_longest_hold_of_late() -> None:
    async def story() -> None:
        stage = Stage(FILE.replace("seats: 1", "seats: 16"))
        bounds = Bounds()
        policy = stage.settings.core_policy()
        found = bounds.of(policy, (16,), 3.21)
        assert bounds.service_s == 3.3
        waits = longest_waits(stage.settings.core_policy(), seats=16, service_s=3.3)
        for bound, wait, name in zip(found, waits, stage.settings.band_names, strict=True):
            ttl_s = stage.settings.policy.bands[name].ttl
            assert (bound.next_s, bound.ttl_s) == (wait.next_s, ttl_s)
            assert bound.oldest_s == min(ttl_s, wait.full_s or ttl_s)
        assert bounds.of(policy, (16,), 3.25) is found, "nothing that counts has changed"
        assert bounds.of(policy, (8,), 3.25) is not found
        endless = Stage(FILE + "preset: strict")
        assert bounds.of(endless.settings.core_policy(), (4,), 1.0)[2].next_s is None

    run_virtual(story())


@pytest.mark.parametrize(("value", "wanted"), [(0.0312, 0.032), (1.0, 1.0), (9.99, 10.0), (123.4, 130.0), (10, 10.0)])
def test_rounding_up_keeps_two_digits(value: float, wanted: float) -> None:
    assert rounded_up(value) == wanted


def test_under_the_weighted_discipline_parts_are_beside_shares() -> None:
    async def story() -> None:
        stage = Stage(FILE + "preset: shared-platform")
        observer = Observer(stage.driver, stage.recorder, stage.live)
        await run(stage, "a", 0, 0.1, tokens=1)
        rows = observer.numbers()["bands"]
        assert [(row["share_kind"], row["share_wanted"]) for row in rows] == [
            ("share", 0.727),
            ("share", 0.182),
            ("share", 0.0909),
        ]

    run_virtual(story())


def test_every_change_has_a_new_revision_and_nothing_else_has() -> None:
    async def story() -> None:
        stage = Stage()
        observer = Observer(stage.driver, stage.recorder, stage.live)
        seen = [observer.numbers()["revision"], observer.numbers()["revision"]]
        stage.live.switch("observe", who="duty")
        seen += [observer.numbers()["revision"], observer.numbers()["revision"]]
        assert (await stage.ask("PATCH", "/admin/policy", {"bands": {"p2": {"weight": 2}}})).status == 200
        seen.append(observer.numbers()["revision"])
        assert seen == [1, 1, 2, 2, 3]

    run_virtual(story())


def test_after_a_fault_of_the_scheduler_only_that_is_told() -> None:
    async def story() -> None:
        stage = Stage()
        observer = Observer(stage.driver, stage.recorder, stage.live)
        stage.driver._fault = RuntimeError("a bug")
        numbers = observer.numbers()
        assert numbers["fault"].startswith("the scheduler stopped")
        assert (observer.peaks(), observer.point()) == ({}, {})

    run_virtual(story())


def test_what_happens_while_the_numbers_are_put_together_is_in_the_next_ones() -> None:
    async def story() -> None:
        stage = Stage()
        observer = Observer(stage.driver, stage.recorder, stage.live)
        waiting = [asyncio.create_task(run(stage, f"t{n}", 1, 4.0, tokens=10)) for n in range(3)]
        await asyncio.sleep(0.1)
        before = observer.numbers()
        parts, steps = observer.in_parts(), 0
        numbers: dict[str, Any] = {}
        try:
            while True:
                next(parts)
                steps += 1
                waiting.append(asyncio.create_task(run(stage, f"u{steps}", 2, 4.0, tokens=10)))
                await asyncio.sleep(0)
                stage.live.switch("transactions_only" if steps % 2 else "normal", who="duty")
        except StopIteration as end:
            numbers = end.value
        assert steps >= 3
        assert numbers | {"tenants": 0, "refusals": 0} == before | {"tenants": 0, "refusals": 0}, "these come last"
        assert observer.numbers() != before
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run_virtual(story())


@pytest.mark.interpreted
def test_no_part_of_the_numbers_is_long_however_many_tenants_and_backends_there_are() -> None:
    """By the calls that it makes: a clock would measure the machine."""

    async def story() -> None:
        backends = [", ".join(f'{{name: b{m}-{b}, url: "http://b{m}-{b}:1"}}' for b in range(4)) for m in range(40)]
        stage = Stage(f"models: [{', '.join(f'{{name: m{m}, backends: [{b}]}}' for m, b in enumerate(backends))}]")
        for second in range(60):
            for n in range(1000):
                stage.recorder.tenant_tokens.add(second, f"t{n + second * 100}", 1 + n)
                stage.recorder.tenant_refusals.add(second, f"t{n + second * 100}", 1 + n)
        await asyncio.sleep(59.5)
        parts, calls = Observer(stage.driver, stage.recorder, stage.live).in_parts(), [0]

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            calls[-1] += event in {"call", "c_call"}

        sys.setprofile(count)
        try:
            for _ in parts:
                calls.append(0)
        finally:
            sys.setprofile(None)
        assert max(calls) < sum(calls) / 6, calls

    run_virtual(story())
