"""How long a newcomer would wait."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from tidegate.core import BackendSpec, Discipline, Policy, PoolSpec, Release, Scheduler, Ticket
from tidegate.core.forecast import INFINITE, Arrivals, Drain, expected_wait, guaranteed_part, sure_s
from tidegate.core.pools import Pool

POLICY = Policy(
    bands=tuple(dataclasses.replace(band, shed_hopeless=False) for band in Policy().bands),
    pools=(PoolSpec("m", (BackendSpec("b", 2),)),),
)


def pool_with(policy: Policy, waiting: dict[int, int], held_s: float = 4.0) -> Pool:
    """A pool whose two seats are taken and drain one ticket in two seconds; ``waiting`` tickets per band."""
    scheduler = Scheduler(policy)
    for name in ("x", "y"):
        scheduler.submit(0.0, Ticket(name, "m", 0, "a"))
    pool = scheduler._state.pools["m"]
    pool.drain.note(held_s)
    for band, count in waiting.items():
        for number in range(count):
            scheduler.submit(0.0, Ticket(f"{band}-{number}", "m", band, "a"))
    return pool


def test_drain_is_seats_over_mean_seat_time() -> None:
    drain = Drain()
    assert drain.rate(4) is None
    drain.note(2.0)
    assert drain.rate(4) == 2.0
    assert drain.rate(0) is None
    for _ in range(500):
        drain.note(4.0)
    assert drain.rate(4) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("place", "decile"), [(1, 2.3026), (2, 3.8897), (5, 7.9936), (20, 25.9025)])
def test_nine_times_in_ten_so_many_seats_come_free(place: int, decile: float) -> None:
    """The ninth decile of an Erlang distribution, from a table of chi-squared with twice as many degrees."""
    assert sure_s(place, 1.0) == pytest.approx(decile, rel=0.01)
    assert sure_s(place, 4.0) == sure_s(place, 1.0) / 4.0


def test_arrivals_are_counted_without_a_timer() -> None:
    arrivals = Arrivals()
    assert arrivals.rate(1.0, 10) == 2.0
    assert arrivals.rate(10.0, 10) == 1.0
    assert arrivals.rate(11.0, 10) == 1.0
    assert arrivals.rate(20.0, 10) == 0.0


@pytest.mark.parametrize(
    ("discipline", "waiting", "band", "part"),
    [
        (Discipline.AGING, {}, 1, 1.0),
        (Discipline.AGING, {2: 1}, 0, 0.85),
        (Discipline.AGING, {0: 1}, 1, 0.10),
        (Discipline.AGING, {0: 1, 2: 1}, 1, 0.075),
        (Discipline.STRICT, {0: 1}, 1, 0.05),
        (Discipline.WEIGHTED, {0: 1}, 1, 0.2),
    ],
)
def test_the_part_a_band_is_sure_of(discipline: Discipline, waiting: dict[int, int], band: int, part: float) -> None:
    policy = dataclasses.replace(POLICY, discipline=discipline)
    assert guaranteed_part(pool_with(policy, waiting), policy, band) == pytest.approx(part)


def test_unknown_before_the_first_completion() -> None:
    assert expected_wait(Scheduler(POLICY)._state.pools["m"], POLICY, 0, backlog=None, now=1.0) is None


def test_work_ahead_over_the_drain() -> None:
    assert expected_wait(pool_with(POLICY, {1: 3}), POLICY, 1, backlog=3, now=1.0) == pytest.approx(8.0)
    pool = pool_with(POLICY, {0: 1, 1: 3})
    # Three of p0 came lately, more than drain: p1 is only sure of its floor and half of what ageing may spend.
    assert expected_wait(pool, POLICY, 1, backlog=3, now=1.0) == pytest.approx(4 / (0.5 * 0.10))
    assert expected_wait(pool, POLICY, 1, backlog=3, now=1000.0) == pytest.approx(10.0, rel=0.01)


def test_fair_queuing_shortens_the_wait_of_a_newcomer_flow() -> None:
    pool = pool_with(POLICY, {1: 30})
    own = expected_wait(pool, POLICY, 1, backlog=30, now=1000.0)
    other = expected_wait(pool, POLICY, 1, backlog=None, now=1000.0)
    assert own is not None
    assert other is not None
    assert other < own / 10


def test_without_floor_under_a_flood_the_wait_is_endless() -> None:
    bands = tuple(dataclasses.replace(band, floor=Fraction(0)) for band in POLICY.bands)
    policy = dataclasses.replace(POLICY, bands=bands, discipline=Discipline.STRICT)
    pool = pool_with(policy, {0: 30})
    assert expected_wait(pool, policy, 1, backlog=None, now=1.0) == INFINITE
    assert Release().outcome == "completed"
