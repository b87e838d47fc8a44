"""Who is stopped for whom, when, and how often."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from core.preemption_stage import HALF_S, Stage, bands, starts, stops
from tidegate.core import (
    BackendSpec,
    Began,
    Declined,
    Dispatch,
    Evict,
    Health,
    Paused,
    Reason,
    Reject,
    Seats,
    Stoppable,
    TenantSpec,
    Turn,
    Waiter,
)


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
