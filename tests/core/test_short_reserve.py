"""A reserve that is less than its band needs has no seat to spare for the age of lower bands either."""

from __future__ import annotations

from fractions import Fraction

from tidegate.core import (
    AUTO,
    Auto,
    BackendSpec,
    Band,
    Dispatch,
    Policy,
    PoolSpec,
    Release,
    Scheduler,
    Ticket,
    Turn,
    WorkEstimate,
)

SEATS = 16
QUARTER = SEATS // 4


def passing(reserve: int | Auto, floor: Fraction) -> list[Turn]:
    """Return what dispatches of p2 were while 60 p0 waited that came in a second, p2 older by a minute."""
    bands = (
        Band("p0", 100, 0.05, capacity=100, ttl_s=1000, reserve=reserve),
        Band("p2", 1, 0.005, floor=floor, capacity=1000, ttl_s=1e6),
    )
    scheduler = Scheduler(Policy(bands=bands, pools=(PoolSpec("m", (BackendSpec("b", SEATS),)),)))
    held: list[int] = []
    actions = []
    for number in range(200):
        actions = scheduler.submit(0.0, Ticket(f"old{number}", "m", 1, "t", WorkEstimate(10, 10)))
        held += [each.lease.id for each in actions if isinstance(each, Dispatch)]
    while len(held) < SEATS:  # a reserve is for those who come later: here p0 has it
        actions = scheduler.submit(1.0, Ticket(f"first{len(held)}", "m", 0, "t", WorkEstimate(10, 10)))
        held += [each.lease.id for each in actions if isinstance(each, Dispatch)]
    for number in range(60):
        assert not scheduler.submit(60.0 + number / 60, Ticket(f"new{number}", "m", 0, "t", WorkEstimate(10, 10)))
    passed = []
    for number in range(50):
        (dispatch,) = scheduler.release(61.0 + number / 20, held.pop(0), Release())
        assert isinstance(dispatch, Dispatch)
        held.append(dispatch.lease.id)
        if dispatch.ticket.band:
            passed.append(dispatch.lease.kind)
    short = [band.reserve_short for band in scheduler.snapshot(70.0).bands]
    assert short == [reserve == AUTO, False]
    return passed


def test_age_passes_a_reserve_that_was_set() -> None:
    assert passing(QUARTER, Fraction(0)).count(Turn.OVERTAKE) == 7, "15 of 100"


def test_age_does_not_pass_a_reserve_that_is_short() -> None:
    assert passing(AUTO, Fraction(0)) == []


def test_floors_pass_a_reserve_that_is_short() -> None:
    assert passing(AUTO, Fraction(1, 20)) == [Turn.FLOOR] * 2, "one of every 20 dispatches"
