"""Work with a part of its answer, stopped or cut, in a band that a mode closes: it counts as running, and goes on."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from core.capacity_stage import changed, homes, leases, policy, refusals, ticket
from core.preemption_stage import Stage, bands, starts, stops
from tidegate.core import (
    BackendSpec,
    Band,
    Capacity,
    Evict,
    GateKind,
    Granted,
    Paused,
    Reason,
    Release,
    Requeue,
    Scheduler,
    Seats,
    TenantSpec,
    WhyKind,
)


def closed(*, floor: Fraction = Fraction(0)) -> tuple[Band, ...]:
    """The highest band alone is admitted."""
    first, *others = bands(floor=floor)
    return (first, *(replace(band, admit=False) for band in others))


def stopped(seats: int = 1, **more: object) -> Stage:
    """Return a full pool of which each seat's p2 was stopped for p0; p0 has all its seats."""
    stage = Stage(seats, fill=False, **more)  # type: ignore[arg-type]
    for number in range(seats):
        stage.submit(number / 100, f"v{number}", 2)
    for number in range(seats):
        stage.submit(1.0, f"p{number}", 0)
    for ident, _ in stops(stage.tick(1.1)):
        stage.back(1.2, ident)
    return stage


def shut(stage: Stage, now: float, **more: Fraction) -> list[str]:
    """Close the lower bands; return who goes."""
    stage.policy = replace(stage.policy, bands=closed(**more))
    return [each.ticket.id for each in stage.core.set_policy(now, stage.policy) if isinstance(each, Evict)]


def test_what_was_stopped_goes_on_where_its_band_is_closed_and_what_has_not_begun_is_turned_away() -> None:
    stage = stopped()
    stage.submit(1.3, "new", 2)
    assert shut(stage, 2.0) == ["new"]
    assert starts(stage.done(3.0, "p0")) == ["v0"]
    assert stage.done(4.0, "v0") == []
    assert stage.core.snapshot(4.0).queued == 0


def test_patient_work_that_has_not_begun_stays_where_it_is() -> None:
    stage = stopped()
    stage.submit(0.1, "row", 2, patient=True, arrived=0.1)
    shut(stage, 2.0)
    assert starts(stage.done(3.0, "p0")) == ["v0"]
    assert starts(stage.done(4.0, "v0")) == []
    stage.policy = replace(stage.policy, bands=bands())
    assert starts(stage.core.set_policy(5.0, stage.policy)) == ["row"]


def test_a_stopped_row_of_a_job_is_running_work_too() -> None:
    stage = Stage(1, fill=False)
    stage.submit(0.0, "v0", 2, patient=True)
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == [("v0", 0)]
    stage.back(1.2, "v0")
    shut(stage, 2.0)
    assert starts(stage.done(3.0, "p0")) == ["v0"]


def test_it_does_not_go_before_the_bands_that_are_admitted() -> None:
    stage = stopped()
    shut(stage, 2.0)
    stage.submit(2.5, "later", 0)
    assert starts(stage.done(2.51, "p0")) == ["later"]
    assert starts(stage.done(2.6, "later")) == ["v0"]


def test_its_floor_is_kept_against_a_band_that_never_ends() -> None:
    stage = stopped()
    shut(stage, 2.0, floor=Fraction(1, 20))
    order = ["p0"]
    for number in range(1, 40):
        stage.submit(2.0, f"p{number}", 0)
        order += starts(stage.done(2.0, order[-1]))
    assert "v0" in order[:21]


def test_several_go_on_in_the_order_of_their_arrival() -> None:
    stage = stopped(seats=3)
    shut(stage, 2.0)
    order = [*starts(stage.done(3.0, "p0")), *starts(stage.done(3.0, "p1")), *starts(stage.done(3.0, "p2"))]
    assert order == ["v0", "v1", "v2"]


def test_one_whose_tenant_is_at_its_limit_waits_for_it_and_holds_up_nobody() -> None:
    stage = Stage(2, fill=False, tenants=(TenantSpec("a", max_running=1),))
    stage.submit(0.0, "a1", 2, tenant="a")
    stage.submit(0.0, "b1", 2, tenant="b")
    for number in range(2):
        stage.submit(1.0, f"p{number}", 0)
    for ident, _ in stops(stage.tick(1.1)):
        stage.back(1.2, ident)
    stage.submit(1.3, "a2", 0, tenant="a")
    assert starts(stage.done(1.4, "p0")) == ["a2"]
    shut(stage, 2.0)
    assert starts(stage.done(3.0, "p1")) == ["b1"], "a runs one already"
    assert starts(stage.done(4.0, "a2")) == ["a1"]


def test_nobody_passes_for_it_whose_tenant_is_at_its_limit() -> None:
    stage = Stage(1, fill=False, tenants=(TenantSpec("a", max_running=1),))
    stage.submit(0.0, "a1", 2, tenant="a")
    stage.submit(0.1, "row", 2, tenant="b", patient=True)
    stage.submit(1.0, "a2", 0, tenant="c")
    assert stops(stage.tick(1.1)) == [("a1", 0)]
    stage.submit(1.15, "a3", 0, tenant="a")
    assert starts(stage.back(1.2, "a1")) == ["a2"]
    assert starts(stage.done(1.3, "a2")) == ["a3"]
    shut(stage, 2.0)
    stage.core.observe(2.1, Seats("b", 2))
    assert starts(stage.tick(2.2)) == []


def test_it_may_not_pass_another_gate() -> None:
    stage = stopped()
    shut(stage, 2.0)
    stage.core.observe(2.1, Paused("b", 9.0))
    assert starts(stage.done(3.0, "p0")) == []
    assert starts(stage.tick(9.0)) == ["v0"]


def test_band_and_ticket_say_what_stops_them() -> None:
    stage = stopped()
    stage.submit(1.3, "row", 2, patient=True)
    shut(stage, 2.0)
    gate = stage.core.snapshot(2.0).bands[2].gate
    assert gate is not None
    assert gate.kind is GateKind.MODE
    row, begun = stage.core.why(2.0, "row"), stage.core.why(2.0, "v0")
    assert (row.kind, row.gate and row.gate.kind) == (WhyKind.GATE, GateKind.MODE)
    assert (begun.kind, begun.gate and begun.gate.kind) == (WhyKind.GATE, GateKind.NO_SEAT)


# -- answers that were cut by their backend -------------------------------------------------------------------------

TWO = BackendSpec("b", 1), BackendSpec("c", 1)


def cut(*, begun: bool) -> tuple[Scheduler, int, str]:
    """Return a scheduler of two seats with a p2 and a p0 in them, the lease of the first, and the other's backend."""
    scheduler = Scheduler(policy(*TWO))
    (low,) = leases(scheduler.submit(0.0, ticket("low", 2))).values()
    (high,) = leases(scheduler.submit(0.0, ticket("high", 0))).values()
    assert scheduler.release(1.0, low, Requeue(avoid=True, begun=begun)) == []
    return scheduler, high, "c"


@pytest.mark.parametrize("begun", [True, False])
def test_a_mode_turns_away_what_waits_for_another_backend_unless_it_has_begun(*, begun: bool) -> None:
    scheduler, high, other = cut(begun=begun)
    gone = refusals(scheduler.set_policy(2.0, policy(*TWO, bands=changed(2, admit=False))))
    assert gone == ({} if begun else {"low": Reason.SHED})
    assert homes(scheduler.release(3.0, high, Release())) == ({"low": other} if begun else {})


def test_it_stays_begun_after_the_next_backend_asks_it_to_come_later() -> None:
    scheduler, high, other = cut(begun=True)
    (again,) = leases(scheduler.release(2.0, high, Release())).values()
    scheduler.observe(2.5, Paused("b", 9.0))
    scheduler.observe(2.5, Paused(other, 9.0))
    assert scheduler.release(2.5, again, Requeue()) == []
    assert refusals(scheduler.set_policy(3.0, policy(*TWO, bands=changed(2, admit=False)))) == {}
    assert list(homes(scheduler.tick(9.0))) == ["low"]


def test_a_newcomer_does_not_displace_it() -> None:
    plan = policy(*TWO, queue_capacity=1)
    scheduler = Scheduler(plan)
    (low,) = leases(scheduler.submit(0.0, ticket("low", 2))).values()
    scheduler.submit(0.0, ticket("high", 0))
    scheduler.observe(0.5, Paused("b", 9.0))
    scheduler.observe(0.5, Paused("c", 9.0))
    scheduler.release(1.0, low, Requeue(begun=True))
    assert list(refusals(scheduler.submit(1.1, ticket("another", 1)))) == ["another"]


# -- where seats are granted ----------------------------------------------------------------------------------------


def granted() -> Stage:
    """Return a pool of two seats whose grants come from outside, with two stopped p2, a p2 row, lower bands closed."""
    stage = stopped(seats=2)
    stage.submit(1.3, "row", 2, patient=True)
    stage.core.observe(1.4, Capacity("m", 0, share=2))
    shut(stage, 2.0)
    return stage


def test_a_closed_band_bids_for_what_has_begun_alone() -> None:
    stage = granted()
    (bid,) = stage.core.bids(2.5, "m").bids if stage.done(2.4, "p0") == [] else ()
    assert (bid.band, bid.count, len(bid.heads)) == (2, 2, 2)
    assert bid.backends == ("b",)


def test_a_grant_serves_what_has_begun_alone() -> None:
    stage = granted()
    found = []
    for ident in ("p0", "p1"):
        assert stage.done(2.4, ident) == []
        found += starts(stage.note(stage.core.observe(2.5, Granted("m", 2, "b"))))
    assert found == ["v0", "v1"]
    assert stage.core.observe(2.6, Granted("m", 2, "b")) == []
    assert stage.core.bids(2.7, "m").bids == ()


def test_more_than_a_bid_lists_are_counted() -> None:
    stage = stopped(seats=9)
    stage.submit(1.3, "row", 2, patient=True)
    stage.core.observe(1.4, Capacity("m", 0, share=9))
    shut(stage, 2.0)
    stage.done(2.4, "p0")
    (bid,) = stage.core.bids(2.5, "m").bids
    assert (bid.count, len(bid.heads)) == (9, 8)


def test_a_grant_serves_what_waits_for_another_backend_and_has_begun() -> None:
    scheduler, high, other = cut(begun=True)
    scheduler.observe(1.5, Capacity("m", 0, share=2))
    scheduler.set_policy(2.0, policy(*TWO, bands=changed(2, admit=False)))
    assert scheduler.release(2.1, high, Release()) == []
    (bid,) = scheduler.bids(2.2, "m").bids
    assert bid.backends == (other,)
    assert homes(scheduler.observe(2.3, Granted("m", 2, other))) == {"low": other}
