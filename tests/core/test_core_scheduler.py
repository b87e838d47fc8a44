"""The surface of the scheduler: portions, faults, queries, live changes."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from tidegate.core import (
    BackendSpec,
    Band,
    Discipline,
    Dispatch,
    Drain,
    Evict,
    GateKind,
    Health,
    Outcome,
    Policy,
    PolicyError,
    PoolSpec,
    Progress,
    Promote,
    Reason,
    Reject,
    Release,
    Scheduler,
    Seats,
    Status,
    TenantSpec,
    Ticket,
    TidegateError,
    Turn,
    WhyKind,
    WorkEstimate,
)

BANDS = (Band("p0", 100, 0.05), Band("p1", 20, 0.02), Band("p2", 1, 0.005))


def policy(seats: int = 1, **changes: object) -> Policy:
    plain = Policy(bands=BANDS, pools=(PoolSpec("m", (BackendSpec("b", seats),)),))
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def ticket(ident: str, band: int = 1, /, **more: object) -> Ticket:
    return Ticket(ident, "m", band, "a", **more)  # type: ignore[arg-type]


def dispatched(actions: object) -> list[str]:
    assert isinstance(actions, list)
    return [action.ticket.id for action in actions if isinstance(action, Dispatch)]


def test_at_most_256_evictions_a_call_and_nothing_runs_meanwhile() -> None:
    scheduler = Scheduler(policy())
    scheduler.submit(0.0, ticket("run"))
    for number in range(600):
        scheduler.submit(0.0, ticket(f"x{number}", ttl_s=5.0))
    scheduler.submit(0.0, ticket("long"))
    actions = scheduler.release(5.0, 1, Release())
    assert len(actions) == 255
    assert {type(action) for action in actions} == {Evict}
    assert scheduler.next_wakeup() == 5.0
    assert len(scheduler.tick(5.0)) == 255
    assert dispatched(scheduler.tick(5.0)) == ["long"]
    assert scheduler.next_wakeup() is None


def test_a_drain_is_portioned_too() -> None:
    scheduler = Scheduler(policy())
    for number in range(300):
        scheduler.submit(0.0, ticket(str(number), number % 3))
    first = scheduler.observe(1.0, Drain())
    assert {action.reason for action in first if isinstance(action, Evict)} == {Reason.DRAINING}
    assert scheduler.next_wakeup() == 1.0
    assert scheduler.why(1.0, "297").kind == WhyKind.DRAINING
    assert len(first) + len(scheduler.tick(1.0)) == 299
    assert scheduler.next_wakeup() is None
    assert scheduler.release(2.0, 1, Release()) == []
    assert scheduler.snapshot(2.0).draining


def test_a_thousand_dependents_are_told_in_portions() -> None:
    scheduler = Scheduler(policy(seats=2000))
    scheduler.submit(0.0, ticket("root", name="root"))
    for number in range(1000):
        scheduler.submit(0.0, ticket(str(number), depends_on=("root",)))
    assert scheduler.snapshot(0.0).parked == 1000
    assert len(scheduler.release(1.0, 1, Release())) == 256
    assert scheduler.next_wakeup() == 1.0
    assert sum(len(scheduler.tick(1.0)) for _ in range(3)) == 744
    assert scheduler.snapshot(1.0).running == 1000


def test_telling_the_last_dependent_leaves_nothing_to_wake_for() -> None:
    scheduler = Scheduler(policy())
    scheduler.submit(0.0, ticket("root", name="root"))
    scheduler.submit(0.0, ticket("dependent", depends_on=("root",)))
    scheduler.submit(0.0, ticket("other", 2, ttl_s=50.0))
    scheduler.release(1.0, 1, Release())
    assert scheduler.next_wakeup() == 50.0


def test_a_live_id_cannot_be_submitted_again() -> None:
    scheduler = Scheduler(policy())
    scheduler.submit(0.0, ticket("x"))
    with pytest.raises(TidegateError, match="waits or runs already"):
        scheduler.submit(0.0, ticket("x"))


def test_time_never_runs_back() -> None:
    scheduler = Scheduler(policy())
    scheduler.submit(10.0, ticket("run"))
    scheduler.submit(3.0, ticket("x", ttl_s=5.0))
    assert scheduler.next_wakeup() == 15.0
    assert scheduler.tick(1.0) == []
    assert scheduler.snapshot(0.0).now == 10.0


def test_snapshot() -> None:
    scheduler = Scheduler(policy(seats=2))
    for name, band in (("a", 2), ("b", 1), ("c", 2), ("d", 2)):
        scheduler.submit(0.0, ticket(name, band, size_bytes=10))
    view = scheduler.snapshot(4.0)
    assert (view.queued, view.queued_bytes, view.running, view.parked) == (2, 20, 2, 0)
    rows = {row.name: row for row in view.bands}
    assert (rows["p2"].depth, rows["p2"].running, rows["p2"].oldest_wait_s, rows["p2"].dispatches) == (2, 1, 4.0, 1)
    assert (rows["p1"].depth, rows["p1"].running, rows["p1"].oldest_wait_s) == (0, 1, 0.0)
    assert rows["p0"].gate is not None
    assert rows["p0"].gate.kind == GateKind.NO_SEAT
    assert [(each.name, each.seats, each.running, each.up) for each in view.backends] == [("b", 2, 2, True)]


def test_counts_of_floors_overtakes_and_promotions() -> None:
    bands = (*BANDS[:2], dataclasses.replace(BANDS[2], floor=Fraction(1, 4), promote_after_s=50.0))
    scheduler = Scheduler(policy(bands=bands, overtake_cap=Fraction(1, 3)))
    leases = [scheduler.submit(0.0, ticket("run", 0))[0]]
    for number in range(30):
        scheduler.submit(0.0, ticket(f"low{number}", 2))
    for number in range(30):
        scheduler.submit(99.0, ticket(f"high{number}", 0))
    seen = []
    while leases:
        last = leases.pop()
        assert isinstance(last, Dispatch)
        seen.append(last.lease.kind)
        actions = scheduler.release(100.0, last.lease.id, Release())
        leases.extend(action for action in actions if isinstance(action, Dispatch))
    row = scheduler.snapshot(100.0).bands[2]
    assert row.overtakes == seen.count(Turn.OVERTAKE) > 0
    assert row.floors == seen.count(Turn.FLOOR) > 0
    assert row.promotions == 30


def test_why_a_ticket_waits() -> None:
    tenants = (TenantSpec("a", max_running=1),)
    bands = (dataclasses.replace(BANDS[0], reserve=1), *BANDS[1:])
    scheduler = Scheduler(policy(seats=3, tenants=tenants, bands=bands))
    scheduler.submit(0.0, ticket("run", name="run"))
    scheduler.submit(0.0, ticket("same"))
    scheduler.submit(0.0, ticket("parked", depends_on=("run",)))
    scheduler.submit(0.0, Ticket("other1", "m", 1, "b"))
    scheduler.submit(0.0, Ticket("other2", "m", 1, "b"))
    assert scheduler.why(2.0, "run").kind == WhyKind.RUNNING
    assert scheduler.why(2.0, "nobody").kind == WhyKind.UNKNOWN
    assert scheduler.why(2.0, "same").kind == WhyKind.TENANT_RUNNING
    assert scheduler.why(2.0, "same").waited_s == 2.0
    assert "a/run" in scheduler.why(2.0, "parked").detail
    held = scheduler.why(2.0, "other2")
    assert held.kind == WhyKind.GATE
    assert held.gate == scheduler.hold("m", 1)
    assert held.gate is not None
    assert held.gate.kind == GateKind.RESERVE
    assert scheduler.hold("m", 0) is None
    scheduler.observe(2.0, Health("b", up=False))
    gate = scheduler.hold("m", 0)
    assert gate is not None
    assert gate.kind == GateKind.NO_BACKEND


def test_a_ceiling_is_a_gate_of_its_own() -> None:
    bands = (*BANDS[:2], dataclasses.replace(BANDS[2], ceiling=Fraction(1, 3)))
    scheduler = Scheduler(policy(seats=3, bands=bands))
    for name in "abc":
        scheduler.submit(0.0, ticket(name, 2))
    gate = scheduler.hold("m", 2)
    assert gate is not None
    assert gate.kind == GateKind.CEILING
    assert scheduler.snapshot(0.0).bands[2].depth == 1


def test_behind_others_that_go_first() -> None:
    bands = (dataclasses.replace(BANDS[0], ceiling=Fraction(1, 3)), *BANDS[1:])
    scheduler = Scheduler(policy(seats=3, bands=bands))
    for number in range(600):
        scheduler.submit(0.0, ticket(str(number), 2, ttl_s=5.0))
    scheduler.submit(0.0, ticket("x"))
    scheduler.release(5.0, 1, Release())  # more expires than one call may say: the seat is dealt afterwards
    assert scheduler.why(5.0, "x").kind == WhyKind.BEHIND


def test_status_of_a_name() -> None:
    scheduler = Scheduler(policy())
    scheduler.submit(0.0, ticket("1", name="run"))
    scheduler.submit(0.0, ticket("2", name="next"))
    scheduler.submit(0.0, ticket("3", name="last", depends_on=("run",)))
    assert scheduler.status(0.0, "a/run") == Status(Progress.RUNNING, "1")
    assert scheduler.status(0.0, "a/next") == Status(Progress.WAITING, "2")
    assert scheduler.status(0.0, "a/last") == Status(Progress.PARKED, "3")
    assert scheduler.status(0.0, "a/nobody") == Status(Progress.UNKNOWN)
    scheduler.release(1.0, 1, Release(Outcome.FAILED))
    assert scheduler.status(1.0, "a/run") == Status(Progress.DONE, None, Outcome.FAILED)
    assert scheduler.status(1.0, "a/last") == Status(Progress.DONE, None, Outcome.EVICTED)
    assert scheduler.status(601.0, "a/run") == Status(Progress.UNKNOWN)


def test_a_reused_name_means_the_latest() -> None:
    scheduler = Scheduler(policy(seats=2))
    scheduler.submit(0.0, ticket("1", name="x"))
    scheduler.submit(0.0, ticket("old", depends_on=("x",)))
    scheduler.submit(0.0, ticket("2", name="x"))
    scheduler.submit(0.0, ticket("new", depends_on=("x",)))
    assert dispatched(scheduler.release(1.0, 1, Release())) == ["old"]
    assert scheduler.status(1.0, "a/x") == Status(Progress.RUNNING, "2")
    assert dispatched(scheduler.release(2.0, 2, Release())) == ["new"]
    scheduler.submit(3.0, ticket("3", name="x"))
    assert scheduler.status(700.0, "a/x").ticket_id == "3"


def test_set_policy_refuses_other_bands_and_changes_nothing() -> None:
    scheduler = Scheduler(policy())
    with pytest.raises(PolicyError, match="same bands"):
        scheduler.set_policy(0.0, policy(bands=BANDS[:2]))
    assert scheduler.policy == policy()


def test_a_refused_call_loses_no_eviction_that_was_due() -> None:
    scheduler = Scheduler(policy())
    scheduler.submit(0.0, ticket("run"))
    scheduler.submit(0.0, ticket("late", ttl_s=5.0))
    with pytest.raises(PolicyError):
        scheduler.set_policy(6.0, policy(bands=BANDS[:2]))
    with pytest.raises(TidegateError):
        scheduler.submit(6.0, ticket("run"))
    (gone,) = scheduler.tick(6.0)
    assert isinstance(gone, Evict)
    assert gone.ticket.id == "late"


def test_pools_and_backends_come_and_go() -> None:
    scheduler = Scheduler(policy())
    scheduler.submit(0.0, ticket("run"))
    scheduler.submit(0.0, ticket("wait", ttl_s=50.0))
    other = PoolSpec("n", (BackendSpec("c", 1),))
    assert scheduler.set_policy(1.0, policy(pools=(other,))) == []
    assert dispatched(scheduler.submit(1.0, Ticket("n1", "n", 1, "a"))) == ["n1"]
    gone = scheduler.submit(1.0, ticket("late"))
    assert isinstance(gone[0], Reject)
    assert gone[0].reason == Reason.UNKNOWN_MODEL
    assert scheduler.release(2.0, 1, Release()) == []
    assert dispatched(scheduler.set_policy(3.0, policy())) == ["wait"]


def test_a_policy_overrides_seats_only_where_it_changed() -> None:
    scheduler = Scheduler(policy(seats=1))
    scheduler.observe(0.0, Seats("b", 3))
    scheduler.set_policy(0.0, policy(seats=1, queue_capacity=9))
    assert scheduler.snapshot(0.0).backends[0].seats == 3
    scheduler.set_policy(0.0, policy(seats=2))
    assert scheduler.snapshot(0.0).backends[0].seats == 2


def test_disciplines_and_floors_change_live() -> None:
    scheduler = Scheduler(policy())
    scheduler.submit(0.0, ticket("run"))
    for number in range(80):
        scheduler.submit(0.0, ticket(f"low{number}", 2))
        scheduler.submit(0.0, ticket(f"high{number}", 0))
    floored = (*BANDS[:2], dataclasses.replace(BANDS[2], floor=Fraction(1, 10)))
    lease = 1
    kinds = []
    for step, changed in enumerate([policy(discipline=Discipline.WEIGHTED), policy(bands=floored), policy()] * 3):
        scheduler.set_policy(float(step), changed)
        scheduler.set_policy(float(step), changed)
        for _ in range(12):
            action = scheduler.release(float(step), lease, Release())[-1]
            assert isinstance(action, Dispatch)
            lease = action.lease.id
            kinds.append(action.lease.kind)
    assert Turn.FLOOR in kinds


def test_a_lowered_capacity_discards_nothing() -> None:
    scheduler = Scheduler(policy())
    for number in range(10):
        scheduler.submit(0.0, ticket(str(number), 2))
    assert scheduler.set_policy(1.0, policy(queue_capacity=2)) == []
    displaced = scheduler.submit(1.0, ticket("high", 0))
    assert [type(action) for action in displaced] == [Evict]
    assert scheduler.snapshot(1.0).queued == 9


def test_a_wide_newcomer_displaces_many_small_ones_or_none() -> None:
    scheduler = Scheduler(policy(queue_bytes=1000))
    scheduler.submit(0.0, ticket("run", 0))
    for number in range(1000):
        scheduler.submit(0.0, ticket(str(number), 2, size_bytes=1))
    assert len(scheduler.submit(0.0, ticket("wide", 0, size_bytes=200))) == 200
    actions = scheduler.submit(0.0, ticket("wider", 0, size_bytes=800))
    assert len(actions) == 257  # 256 displaced are the most for one call, then the newcomer is refused
    assert isinstance(actions[-1], Reject)


def test_a_promoted_ticket_claims_with_the_better_of_both_weights() -> None:
    bands = (
        BANDS[0],
        dataclasses.replace(BANDS[1], aging_per_ms=0.0),
        dataclasses.replace(BANDS[2], promote_after_s=9.0),
    )
    scheduler = Scheduler(policy(bands=bands, overtake_cap=Fraction(1)))
    scheduler.submit(0.0, ticket("run"))
    scheduler.submit(0.0, ticket("old", 2))
    scheduler.submit(99.0, ticket("mid", 1))
    actions = scheduler.release(100.0, 1, Release())
    assert isinstance(actions[0], Promote)
    assert dispatched(actions) == ["old"]


def test_actual_tokens_settle_the_quota() -> None:
    scheduler = Scheduler(policy(seats=9, tenants=(TenantSpec("a", tokens_per_minute=100),)))
    scheduler.submit(0.0, ticket("x", work=WorkEstimate(50, 60)))
    assert isinstance(scheduler.submit(1.0, ticket("y"))[0], Reject)
    scheduler.release(2.0, 1, Release(input_tokens=10))
    assert dispatched(scheduler.submit(3.0, ticket("z"))) == ["z"]


def test_the_same_events_give_the_same_actions() -> None:
    def story() -> str:
        scheduler = Scheduler(policy(seats=2))
        log: list[object] = []
        for number in range(50):
            log.extend(scheduler.submit(number * 0.1, Ticket(str(number), "m", number % 3, f"t{number % 7}")))
        for lease in range(1, 40):
            log.extend(scheduler.release(5.0 + lease, lease, Release()))
        return repr(log)

    assert story() == story()
