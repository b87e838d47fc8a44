"""What a stop does to accounts, policies and reserves; the rules of who is stopped are in ``test_preemption``."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from core.preemption_stage import ALL, HALF_S, Stage, bands, starts, stops
from tidegate.core import (
    AUTO,
    BackendSpec,
    Band,
    Discipline,
    Drain,
    Evict,
    Outcome,
    Policy,
    PolicyError,
    Reason,
    Release,
    Requeue,
    Scheduler,
    Seats,
    Stoppable,
    Unit,
)


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
    assert starts(stage.done(1.4, "p0")) == ["v1"]


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
