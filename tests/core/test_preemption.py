"""Who is stopped for whom, when, and how often."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from tidegate.core import (
    AUTO,
    Action,
    BackendSpec,
    Band,
    Began,
    Declined,
    Discipline,
    Dispatch,
    Drain,
    Evict,
    Health,
    Outcome,
    Paused,
    Policy,
    PolicyError,
    PoolSpec,
    Preempt,
    Reason,
    Reject,
    Release,
    Requeue,
    Scheduler,
    Seats,
    Stoppable,
    TenantSpec,
    Ticket,
    Turn,
    Unit,
    Waiter,
    WorkEstimate,
)

ALL = Fraction(1)
HALF_S = 0.025


def bands(*, floor: Fraction = Fraction(0), p1: dict[str, Any] | None = None) -> tuple[Band, ...]:
    return (
        Band("p0", 100, 0.05, may_preempt=True, capacity=50, ttl_s=1000),
        Band("p1", 20, 0.02, ttl_s=1000, **(p1 or {})),
        Band("p2", 1, 0.005, floor=floor, preemptible=True),
    )


class Stage:
    """One pool; p2 fills its seats at 0.0 unless told otherwise."""

    def __init__(self, seats: int = 2, fill: bool = True, backends: tuple[BackendSpec, ...] = (), **more: Any) -> None:
        pools = (PoolSpec("m", backends or (BackendSpec("b", seats),)),)
        self.policy = Policy(**{"bands": bands(), "pools": pools, "preempt_rate": ALL, **more})
        self.core = Scheduler(self.policy)
        self.leases: dict[str, int] = {}
        if fill:
            for number in range(seats):
                self.submit(0.0, f"v{number}", 2)

    def note(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Dispatch):
                self.leases[action.ticket.id] = action.lease.id
        return actions

    def submit(
        self, now: float, id_: str, band: int, stoppable: Stoppable = Stoppable.ALWAYS, tokens: int = 100, **more: Any
    ) -> list[Action]:
        work = WorkEstimate(10, tokens)
        return self.note(
            self.core.submit(now, Ticket(id_, "m", band, more.pop("tenant", "t"), work, stoppable=stoppable, **more))
        )

    def tick(self, now: float) -> list[Action]:
        return self.note(self.core.tick(now))

    def began(self, now: float, id_: str) -> None:
        assert not self.core.observe(now, Began(self.leases[id_]))

    def back(self, now: float, id_: str, requeue: Requeue | None = None) -> list[Action]:
        return self.note(self.core.release(now, self.leases[id_], requeue or Requeue()))

    def done(self, now: float, id_: str, **more: Any) -> list[Action]:
        return self.note(self.core.release(now, self.leases[id_], Release(**more)))


def stops(actions: list[Action]) -> list[tuple[str, int]]:
    return [(action.ticket.id, action.by) for action in actions if isinstance(action, Preempt)]


def starts(actions: list[Action]) -> list[str]:
    return [action.ticket.id for action in actions if isinstance(action, Dispatch)]


def test_half_of_the_target_passes_before_anybody_is_stopped() -> None:
    stage = Stage()
    assert stage.submit(1.0, "p0", 0) == []
    assert stage.core.next_wakeup() == pytest.approx(1.0 + HALF_S)
    stage.submit(1.01, "second", 0)
    assert stage.tick(1.0 + HALF_S - 0.001) == []
    assert stops(stage.tick(1.0 + HALF_S)) == [("v1", 0)]
    assert stage.tick(1.0 + HALF_S) == []
    assert stage.core.next_wakeup() == pytest.approx(1.0 + HALF_S + 0.01), "when the second one's half has passed"


def test_the_seat_goes_to_who_pressed_and_the_victim_waits_in_its_old_place() -> None:
    stage = Stage()
    stage.submit(0.5, "late", 2)
    stage.submit(1.0, "p0", 0)
    stage.tick(1.1)
    assert starts(stage.back(1.2, "v1")) == ["p0"]
    assert starts(stage.done(2.0, "p0")) == ["v1"], "it came before late"


def test_a_victim_outlives_its_time_to_live_and_displacement() -> None:
    short = (bands()[0], bands()[1], replace(bands()[2], ttl_s=5.0))
    stage = Stage(bands=short, queue_capacity=2)
    stage.submit(1.0, "p0", 0)
    stage.tick(1.1)
    stage.back(1.2, "v1")
    assert stage.submit(2.0, "x0", 0) == []
    actions = stage.submit(2.1, "x1", 0)
    refused = [(a.ticket.id, a.reason) for a in actions if isinstance(a, (Reject, Evict))]
    assert refused == [("x1", Reason.QUEUE_FULL)]
    assert not [action for action in stage.tick(600.0) if isinstance(action, Evict)]
    assert starts(stage.done(601.0, "p0")) == ["x0"]
    assert starts(stage.done(602.0, "x0")) == ["v1"]


def test_only_the_lowest_preemptible_band_is_stopped_and_never_one_that_is_not_lower() -> None:
    stage = Stage(bands=bands(p1={"preemptible": True, "may_preempt": True}), fill=False)
    stage.submit(0.0, "mid", 1)
    stage.submit(0.0, "low", 2)
    stage.submit(1.0, "p1", 1)
    assert stops(stage.tick(1.1)) == [("low", 1)]
    stage.submit(1.2, "p0", 0)
    assert stops(stage.tick(1.3)) == [], "the seat that is on its way is for the one above"
    assert starts(stage.back(1.4, "low")) == ["p0"]
    stage.submit(1.5, "next", 0)
    assert stops(stage.tick(1.6)) == [("mid", 0)]


def test_p1_stops_no_p1() -> None:
    stage = Stage(bands=bands(p1={"preemptible": True, "may_preempt": True}), fill=False)
    stage.submit(0.0, "a", 1)
    stage.submit(0.0, "b", 1)
    stage.submit(1.0, "c", 1)
    assert stage.tick(2.0) == []


def test_not_begun_goes_first_then_the_least_computed_then_the_most_left() -> None:
    stage = Stage(seats=12, fill=False)
    for number in range(8):
        stage.submit(0.0, f"x{number}", 2, Stoppable.NEVER)
    for id_, at in (("old", 0.0), ("young", 1.0), ("long", 1.0), ("fresh", 2.0)):
        stage.submit(at, id_, 2, tokens=500 if id_ == "long" else 100)
    for id_, at in (("old", 0.1), ("young", 1.1), ("long", 1.1)):
        stage.began(at if id_ == "old" else 2.1, id_)
    order = []
    for number in range(3):
        stage.submit(3.0, f"p{number}", 0)
        order += [id_ for id_, _ in stops(stage.tick(3.1 + number))]
    assert order == ["fresh", "long", "young"]


def test_one_is_stopped_for_each_that_waits_and_the_next_when_the_seat_is_free() -> None:
    stage = Stage(seats=8)
    for number in range(2):
        stage.submit(1.0, f"p{number}", 0)
    assert len(stops(stage.tick(1.1))) == 2
    assert stage.tick(5.0) == []
    assert starts(stage.back(5.1, "v7")) == ["p0"]
    assert starts(stage.back(5.2, "v6")) == ["p1"]
    assert stage.tick(9.0) == []


def test_no_stop_when_a_seat_is_in_sight() -> None:
    stage = Stage(seats=2)
    stage.submit(0.0, "quick", 0)
    stage.done(0.02, "v0")
    assert stage.submit(0.03, "p0", 0) == [], "a seat is held for 20 ms on average"
    assert stage.tick(0.03 + HALF_S) == []
    assert stops(stage.tick(0.2)) != [], "and none came"


def test_stops_are_at_most_their_part_of_the_dispatches() -> None:
    stage = Stage(seats=8, preempt_rate=Fraction(1, 8))
    for number in range(3):
        stage.submit(1.0, f"p{number}", 0)
    assert len(stops(stage.tick(1.1))) == 1
    assert stops(stage.tick(2.0)) == []
    assert starts(stage.back(2.1, "v7")) == ["p0"]
    assert stops(stage.tick(3.0)) == []
    for number in range(20):
        stage.submit(3.1, f"w{number}", 2)
    found = []
    for number in range(7):  # seven dispatches and p0's own earn the next one
        found += stops(stage.done(3.2 + number, f"v{number}"))
        found += stops(stage.tick(3.5 + number))
    assert len(found) <= 1


def test_credit_is_kept_up_to_the_number_of_seats() -> None:
    stage = Stage(seats=8, fill=False)
    for number in range(40):
        stage.submit(0.0, f"q{number}", 2)
    for number in range(32):
        stage.done(0.5, f"q{number}")
    pool = stage.core._state.pools["m"]
    assert pool.press.allowed(pool) == 8
    for number in range(9):
        stage.submit(100.0, f"p{number}", 0)
    assert len(stops(stage.tick(100.1))) == 8


def test_a_ticket_is_stopped_only_so_often() -> None:
    stage = Stage(seats=1, max_preemptions=2)
    for number in range(3):
        stage.submit(10.0 * number + 1, f"p{number}", 0)
        asked = stops(stage.tick(10.0 * number + 2))
        assert asked == ([("v0", 0)] if number < 2 else [])
        if asked:
            stage.back(10.0 * number + 3, "v0")
            assert starts(stage.done(10.0 * number + 4, f"p{number}")) == ["v0"]


@pytest.mark.parametrize(("held_s", "stopped"), [(0.02, False), (0.08, True), (1.0, True)])
def test_nobody_is_stopped_when_nine_times_in_ten_a_seat_comes_free_within_the_other_half(
    held_s: float, stopped: bool
) -> None:
    """Four seats of 80 ms: the next one is expected after 20 ms, but one time in ten takes more than 46."""
    stage = Stage(seats=4)
    for number in range(4):
        stage.done(held_s, f"v{number}")
        stage.submit(held_s, f"w{number}", 2)
    stage.submit(2.0, "p0", 0)
    assert bool(stops(stage.tick(2.0 + HALF_S))) is stopped


def test_work_that_was_stopped_is_not_taken_for_a_short_answer() -> None:
    """Its seat was held before it was stopped too: of two answers that took 80 ms in all, one seat is free each 40."""
    stage = Stage(seats=1)
    stage.submit(0.0, "p0", 0)
    assert stops(stage.tick(HALF_S)) == [("v0", 0)]
    stage.back(HALF_S, "v0")
    drain = stage.core._state.pools["m"].drain
    assert (drain.count, drain.total_s) == (0, HALF_S)
    assert starts(stage.done(0.05, "p0")) == ["v0"]
    stage.done(0.08, "v0")
    assert drain.count == 2
    assert drain.mean_s == pytest.approx(0.04)
    assert drain.rate(1) == pytest.approx(25.0)


@pytest.mark.parametrize("stoppable", [Stoppable.NEVER, Stoppable.UNSTARTED])
def test_what_cannot_go_on_is_stopped_before_its_first_token_or_not_at_all(stoppable: Stoppable) -> None:
    stage = Stage(seats=1, fill=False)
    stage.submit(0.0, "v", 2, stoppable)
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == ([("v", 0)] if stoppable else [])
    again = Stage(seats=1, fill=False)
    again.submit(0.0, "v", 2, stoppable)
    if stoppable:
        again.began(0.5, "v")
        again.began(0.6, "v")
    again.submit(1.0, "p0", 0)
    assert stops(again.tick(1.1)) == []


def test_floors_and_overtakes_are_not_taken_back() -> None:
    stage = Stage(seats=1, fill=False, bands=bands(floor=Fraction(1, 3)), overtake_cap=Fraction(1, 3))
    stage.submit(0.0, "a", 0)
    stage.submit(0.0, "b", 0)
    stage.submit(0.0, "c", 0)
    stage.submit(0.0, "d", 0)
    stage.submit(0.0, "low", 2)
    stage.done(0.1, "a")
    stage.done(0.2, "b")
    actions = stage.done(0.3, "c")
    assert [(a.ticket.id, a.lease.kind) for a in actions if isinstance(a, Dispatch)] == [("low", Turn.FLOOR)]
    assert stops(stage.tick(9.0)) == []


def test_work_that_somebody_waits_for_is_not_stopped() -> None:
    stage = Stage(seats=1, fill=False)
    stage.submit(0.0, "v", 2, name="job")
    stage.note(stage.core.observe(0.5, Waiter("w", "t", 1, "t/job", waiting=True)))
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == []
    stage.note(stage.core.observe(2.0, Waiter("w", "t", 1, "t/job", waiting=False)))
    assert stops(stage.tick(2.1)) == [("v", 0)]


def test_lent_work_is_not_stopped_and_does_not_press() -> None:
    stage = Stage(seats=1)
    stage.submit(0.5, "named", 2, name="job")
    stage.note(stage.core.observe(0.6, Waiter("w", "t", 0, "t/job", waiting=True)))
    assert stage.tick(5.0) == []
    stage.done(6.0, "v0")
    stage.submit(7.0, "p0", 0)
    assert stops(stage.tick(8.0)) == []


def test_a_seat_that_would_be_nobodys_is_not_freed() -> None:
    stage = Stage(backends=(BackendSpec("a", 1), BackendSpec("b", 1)))
    stage.core.observe(0.1, Health("a", up=False))
    stage.core.observe(0.1, Seats("b", 0))
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == []
    stage.core.observe(1.2, Paused("a", 5.0))
    assert stage.core.observe(1.3, Health("a", up=True)) == []
    assert stops(stage.tick(1.4)) == []
    assert stops(stage.tick(5.1)) == [("v0", 0)]


def test_a_tenant_at_its_limit_does_not_press() -> None:
    stage = Stage(tenants=(TenantSpec("t", max_running=2),))
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == []
    stage.submit(2.0, "other", 0, tenant="u")
    assert stops(stage.tick(2.1)) == [("v1", 0)]


def test_one_that_ends_by_itself_is_as_good() -> None:
    stage = Stage(preempt_rate=Fraction(1, 2))
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == [("v1", 0)]
    assert starts(stage.done(1.2, "v1", output_tokens=5, tpot_s=0.02)) == ["p0"]
    stage.submit(2.0, "next", 0)
    assert stops(stage.tick(2.1)) == [("v0", 0)], "the stop that came to nothing cost nothing"


def test_one_that_cannot_be_stopped_is_not_asked_again() -> None:
    stage = Stage()
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == [("v1", 0)]
    assert stops(stage.note(stage.core.observe(1.2, Declined(stage.leases["v1"])))) == [("v0", 0)]
    assert stage.core.observe(1.3, Declined(stage.leases["v1"])) == []
    assert stage.core.observe(1.3, Declined(999)) == []
    assert stage.core.observe(1.3, Began(999)) == []


def test_one_declined_before_it_was_asked_is_never_asked() -> None:
    stage = Stage(seats=1)
    stage.core.observe(0.5, Declined(stage.leases["v0"]))
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == []


def test_who_left_or_was_served_presses_no_more() -> None:
    stage = Stage()
    stage.submit(1.0, "gone", 0)
    stage.core.cancel(1.01, "gone")
    assert stage.tick(2.0) == []
    stage.submit(3.0, "served", 0)
    stage.submit(3.0, "left", 0)
    assert starts(stage.done(3.01, "v0")) == ["served"]
    stage.tick(3.05)
    stage.core.cancel(3.06, "left")
    assert stage.tick(4.0) == []


def test_a_broken_victim_goes_elsewhere_and_its_stop_is_refunded() -> None:
    stage = Stage(backends=(BackendSpec("a", 1), BackendSpec("b", 1)))
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == [("v1", 0)]
    assert starts(stage.back(1.2, "v1", Requeue(avoid=True))) == ["p0"]
    assert starts(stage.done(2.0, "v0")) == ["v1"]
    stage.submit(3.0, "next", 0)
    assert stops(stage.tick(3.1)) == [("v1", 0)], "it may be stopped where it is now"


@pytest.mark.parametrize("begun", [False, True])
def test_a_dispatch_stopped_before_its_first_token_is_no_turn_of_its_band(begun: bool) -> None:
    stage = Stage(seats=1, fill=False, bands=bands(floor=Fraction(1, 5)), overtake_cap=Fraction(1, 5))
    stage.submit(0.0, "a", 0)
    for number in range(2):
        stage.submit(0.01 * number, f"low{number}", 2)
    for number in range(2):
        stage.submit(0.1, f"b{number}", 0)
    stage.done(0.2, "a")
    stage.done(0.3, "b0")
    stage.done(0.4, "b1")
    assert "low0" in stage.leases
    if begun:
        stage.began(0.5, "low0")
    for number in range(9):
        stage.submit(1.0, f"c{number}", 0)
    assert stops(stage.tick(1.1)) == [("low0", 0)]
    order = starts(stage.back(1.2, "low0"))
    for _ in range(6):
        order += starts(stage.done(2.0, order[-1]))
    assert order.index("low0") == (4 if begun else 2)


def test_only_the_latest_dispatch_is_taken_back() -> None:
    stage = Stage(seats=2, fill=False, bands=bands(floor=Fraction(1, 5)), overtake_cap=Fraction(1, 5))
    stage.submit(0.0, "v0", 2)
    stage.submit(0.0, "v1", 2)
    stage.began(0.1, "v1")
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == [("v0", 0)]
    assert starts(stage.back(1.2, "v0")) == ["p0"]


@pytest.mark.parametrize("unit", list(Unit))
def test_shares_are_given_back_too(unit: Unit) -> None:
    stage = Stage(seats=1, discipline=Discipline.WEIGHTED, unit=unit)
    stage.submit(0.5, "more", 2)
    stage.submit(1.0, "p0", 0)
    assert stops(stage.tick(1.1)) == [("v0", 0)]
    assert starts(stage.back(1.2, "v0")) == ["p0"]
    assert starts(stage.done(1.3, "p0")) == ["v0"]


def test_a_live_policy_turns_it_on_and_off() -> None:
    stage = Stage()
    stage.submit(1.0, "p0", 0)
    stage.core.set_policy(1.01, replace(stage.policy, preempt_rate=Fraction(0)))
    assert stage.tick(2.0) == []
    stage.core.set_policy(3.0, stage.policy)
    stage.submit(4.0, "next", 0)
    assert stops(stage.tick(4.1)) == [("v1", 0)]
    stage.core.set_policy(5.0, replace(stage.policy, preempt_rate=Fraction(1, 2)))
    assert starts(stage.back(5.1, "v1")) == ["p0"]


def test_a_policy_without_preemptible_bands_stops_nobody() -> None:
    plain = (bands()[0], bands()[1], replace(bands()[2], preemptible=False))
    stage = Stage(bands=plain)
    stage.submit(1.0, "p0", 0)
    assert stage.core.next_wakeup() == pytest.approx(1001.0)
    assert stage.tick(2.0) == []


def test_while_the_policy_only_observes_nobody_is_stopped() -> None:
    stage = Stage(observe_only=True)
    stage.submit(1.0, "p0", 0)
    assert stage.tick(2.0) == []


def test_draining_stops_nobody_and_ends_who_was_stopped() -> None:
    stage = Stage()
    stage.submit(1.0, "p0", 0)
    stage.tick(1.1)
    stage.back(1.2, "v1")
    actions = stage.core.observe(1.3, Drain())
    assert [(a.ticket.id, a.reason) for a in actions if isinstance(a, Evict)] == [("v1", Reason.DRAINING)]


def test_a_mode_that_closes_a_band_keeps_those_who_hold_a_part_of_an_answer() -> None:
    stage = Stage()
    stage.submit(0.5, "waits", 2)
    stage.submit(1.0, "p0", 0)
    stage.tick(1.1)
    stage.back(1.2, "v1")
    closed = (bands()[0], bands()[1], replace(bands()[2], admit=False))
    actions = stage.core.set_policy(1.3, replace(stage.policy, bands=closed))
    assert [a.ticket.id for a in actions if isinstance(a, Evict)] == ["waits"]
    assert starts(stage.done(1.4, "p0")) == []
    assert starts(stage.note(stage.core.set_policy(2.0, stage.policy))) == ["v1"]


def test_a_ticket_freed_from_its_dependency_presses() -> None:
    stage = Stage(seats=1)
    stage.submit(0.5, "job", 1, name="first")
    stage.submit(0.6, "p0", 0, depends_on=("first",))
    assert stops(stage.tick(1.0)) == []
    assert starts(stage.done(2.0, "v0")) == ["job"]
    stage.submit(2.1, "v1", 2, tenant="u")
    stage.submit(2.1, "v2", 2, tenant="u")
    assert starts(stage.done(3.0, "job")) == ["p0"]


def test_a_ticket_freed_while_all_seats_are_taken_presses_at_once() -> None:
    stage = Stage(seats=2, fill=False)
    stage.submit(0.0, "v0", 2)
    stage.submit(0.0, "job", 1, Stoppable.NEVER, name="first")
    stage.submit(0.5, "p0", 0, depends_on=("first",))
    stage.submit(0.6, "older", 0, arrived=0.1)
    stage.core.cancel(0.61, "older")
    stage.core.observe(0.7, Seats("b", 1))
    assert stops(stage.done(1.0, "job")) == [("v0", 0)]


def test_a_pool_that_holds_a_band_back_is_looked_at_again() -> None:
    held = (replace(bands()[0], reserve=1), replace(bands()[1], may_preempt=True), bands()[2])
    stage = Stage(bands=held, fill=False)
    stage.submit(0.0, "v0", 2)
    stage.submit(0.1, "p1", 1)
    assert stops(stage.tick(1.0)) == [], "a seat is free, and kept for p0"


def test_running_work_counts_as_reserve_beyond_two_seats() -> None:
    auto = (replace(bands()[0], reserve=AUTO), *bands()[1:])
    reserves = {}
    for rate in (Fraction(0), ALL):
        stage = Stage(seats=32, fill=False, bands=auto, preempt_rate=rate)
        now = 0.0
        for number in range(600):
            now += 0.05
            stage.submit(now, f"p{number}", 0)
            stage.submit(now, f"v{number}", 2)
            for id_ in [id_ for id_, lease in stage.leases.items() if lease <= 2 * number - 20]:
                stage.done(now, id_)
                del stage.leases[id_]
        reserves[rate] = stage.core.snapshot(now).bands[0].reserve
    assert reserves[Fraction(0)] > 2
    assert reserves[ALL] == 2


def test_where_a_quarter_of_the_seats_is_not_enough_running_work_takes_none_of_it_away() -> None:
    """The credit that small bursts would use up is kept for those that the reserve cannot take."""
    auto = (replace(bands()[0], reserve=AUTO), *bands()[1:])
    stage = Stage(seats=32, fill=False, bands=auto)
    now = 0.0
    for burst in range(120):
        now = burst * 1.0
        for number in range(28):
            stage.submit(now, f"p{burst}-{number}", 0)
        stage.submit(now, f"v{burst}", 2)
        while stage.leases:
            id_ = next(iter(stage.leases))
            stage.note(stage.core.release(now + 0.9, stage.leases.pop(id_), Release()))
    for number in range(40):
        stage.submit(now + 1.0, f"v{number}-", 2)
    stage.submit(now + 1.3, "later", 2)
    row = stage.core.snapshot(now + 1.3).bands[0]
    assert row.reserve_short
    assert row.reserve == 8


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"preempt_rate": Fraction(3, 2)}, "policy.preempt_rate"),
        ({"max_preemptions": -1}, "policy.max_preemptions"),
        ({"bands": (Band("p0", 1, 0, target_wait_s=0.0),)}, "policy.bands.p0.target_wait"),
    ],
)
def test_bad_settings_name_their_field(more: dict[str, Any], field: str) -> None:
    with pytest.raises(PolicyError) as found:
        Policy(**more)
    assert found.value.field == field


def test_a_failed_release_of_a_floor_is_no_stop() -> None:
    stage = Stage(seats=1)
    stage.began(0.5, "v0")
    assert starts(stage.done(1.0, "v0", outcome=Outcome.FAILED)) == []


def test_who_is_held_by_more_than_the_want_of_a_seat_is_not_looked_at_again_by_time() -> None:
    stage = Stage(seats=2, fill=False, bands=bands(p1={"may_preempt": True, "target_wait_s": 0.05}, floor=Fraction(0)))
    stage.policy = replace(
        stage.policy,
        bands=(replace(stage.policy.bands[0], reserve=1), *stage.policy.bands[1:]),
        overtake_cap=Fraction(0),
    )
    stage.core = Scheduler(stage.policy)
    stage.submit(0.0, "first", 1)
    stage.submit(0.0, "held", 1)  # one seat is free, and reserved for p0
    assert stage.core.next_wakeup() == HALF_S
    assert stage.core.tick(HALF_S) == []
    wake = stage.core.next_wakeup()
    assert wake is not None
    assert wake > 100  # its expiry
