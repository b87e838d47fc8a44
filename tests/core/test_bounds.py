"""What `tidegate check` says of a policy."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from tidegate.core import BackendSpec, Band, Discipline, Policy, PoolSpec, Release, Scheduler, Ticket, Unit
from tidegate.core.bounds import FindingKind, findings, longest_waits

DEFAULT = Policy()
NO_FLOORS = tuple(dataclasses.replace(band, floor=Fraction(0), promote_after_s=None) for band in DEFAULT.bands)


def kinds(policy: Policy, seats: int = 16, service_s: float = 5.0) -> list[FindingKind]:
    return [finding.kind for finding in findings(policy, seats=seats, service_s=service_s)]


def test_a_floor_of_a_twentieth_on_sixteen_seats() -> None:
    waits = {wait.band: wait for wait in longest_waits(DEFAULT, seats=16, service_s=5.0, tenants=4)}
    assert waits["p1"].next_s == 10.0  # 20 dispatches, two rounds of 16 seats
    assert waits["p1"].fair_s == 50.0  # 4 · (2 · 20 - 1) = 156 dispatches: an overtake may come before each floor
    assert waits["p2"].fair_s == 620.0  # two bands above, each with credit: 1,980 dispatches at the very worst
    assert waits["p1"].full_s == 31_250.0  # 5,000 · 20 / 16 · 5 s
    assert "1 of every 20" in waits["p1"].lines[0]
    assert waits["p1"].lines[-1] == "the time to live ends every wait after 15 s"


def test_the_highest_band_is_bounded_by_the_cap() -> None:
    wait = longest_waits(DEFAULT, seats=16, service_s=5.0)[0]
    assert wait.next_s == wait.fair_s == 5.0
    assert "3 that pass" in wait.lines[0]  # two floors together and an overtake saved up
    assert wait.full_s == 745.0  # 2,000 / 0.845 = 2,371 dispatches, 149 rounds
    assert longest_waits(DEFAULT, seats=1, service_s=1.0)[0].next_s == 4.0


def test_strict_without_floors_starves_and_says_so() -> None:
    policy = Policy(bands=NO_FLOORS, discipline=Discipline.STRICT, overtake_cap=Fraction(0))
    first, *lower = longest_waits(policy, seats=4, service_s=1.0)
    assert first.next_s == 1.0
    assert [wait.next_s for wait in lower] == [None, None]
    assert "it may wait for ever" in lower[0].lines
    assert kinds(policy)[:2] == [FindingKind.STARVES, FindingKind.STARVES]


def test_shares_bound_the_weighted_discipline() -> None:
    policy = Policy(bands=NO_FLOORS, discipline=Discipline.WEIGHTED, unit=Unit.REQUESTS)
    assert [wait.next_s for wait in longest_waits(policy, seats=1, service_s=1.0)] == [3.0, 7.0, 13.0]
    assert "tokens" in longest_waits(dataclasses.replace(policy, unit=Unit.TOKENS), seats=1, service_s=1.0)[1].lines[0]
    promoting = dataclasses.replace(
        policy, bands=(*NO_FLOORS[:2], dataclasses.replace(NO_FLOORS[2], promote_after_s=9))
    )
    assert longest_waits(promoting, seats=1, service_s=1.0)[2].next_s == 13.0  # it overtakes, nobody overtakes it
    promoting = dataclasses.replace(
        policy, bands=(NO_FLOORS[0], dataclasses.replace(NO_FLOORS[1], promote_after_s=9), NO_FLOORS[2])
    )
    assert longest_waits(promoting, seats=1, service_s=1.0)[2].next_s == 18.0  # overtakes of three bands may gather
    reserved = dataclasses.replace(policy, bands=(dataclasses.replace(NO_FLOORS[0], reserve=1), *NO_FLOORS[1:]))
    assert [wait.next_s for wait in longest_waits(reserved, seats=2, service_s=1.0)][1:] == [None, None]


def test_seats_that_may_idle_do_not_count() -> None:
    bands = (dataclasses.replace(DEFAULT.bands[0], reserve=4), *DEFAULT.bands[1:])
    wait = longest_waits(dataclasses.replace(DEFAULT, bands=bands), seats=8, service_s=1.0)[1]
    assert wait.next_s == 5.0  # 20 dispatches on the 4 seats that p0 does not keep from it
    assert "4 of 8 seats idle" in wait.lines[1]
    assert longest_waits(DEFAULT, seats=8, service_s=1.0)[1].next_s == 3.0
    auto = (dataclasses.replace(DEFAULT.bands[0], reserve="auto"), *DEFAULT.bands[1:])
    assert longest_waits(dataclasses.replace(DEFAULT, bands=auto), seats=8, service_s=1.0)[1].next_s == 4.0  # on 6


def test_where_floors_and_overtakes_may_take_all() -> None:
    bands = (NO_FLOORS[0], dataclasses.replace(NO_FLOORS[1], floor=Fraction(1, 2)))
    for discipline in Discipline:
        policy = Policy(bands=bands, discipline=discipline, overtake_cap=Fraction(1))
        first = longest_waits(policy, seats=1, service_s=1.0)[0]
        assert (first.next_s is None) == (discipline is Discipline.AGING)
    weighted = Policy(
        bands=(NO_FLOORS[0], dataclasses.replace(bands[1], promote_after_s=9.0)),
        discipline=Discipline.WEIGHTED,
        overtake_cap=Fraction(1),
    )
    assert "may take every dispatch" in longest_waits(weighted, seats=1, service_s=1.0)[0].lines[0]


def test_a_floorless_band_that_overtakes_is_bounded_by_its_share_and_age() -> None:
    bands = tuple(dataclasses.replace(band, promote_after_s=9.0) for band in NO_FLOORS)
    policy = Policy(bands=bands, discipline=Discipline.WEIGHTED, unit=Unit.REQUESTS)
    wait = longest_waits(policy, seats=1, service_s=1.0, tenants=2)[1]
    assert wait.fair_s is not None
    assert wait.full_s is not None
    assert wait.fair_s > wait.full_s  # one more than the band holds
    endless = dataclasses.replace(policy, bands=(dataclasses.replace(bands[0], capacity=10**9), *bands[1:]))
    assert longest_waits(endless, seats=1, service_s=1.0)[0].full_s is None
    lost = dataclasses.replace(policy, bands=(dataclasses.replace(bands[0], ceiling=Fraction(1, 2)), *bands[1:]))
    assert longest_waits(lost, seats=2, service_s=1.0)[0].next_s is None


def test_no_seats_no_bound() -> None:
    assert {wait.next_s for wait in longest_waits(DEFAULT, seats=0, service_s=5.0)} == {None}


def test_the_default_policy_has_nothing_to_say() -> None:
    assert kinds(DEFAULT) == []


def test_warnings() -> None:
    spent = dataclasses.replace(DEFAULT, overtake_cap=Fraction(1, 10))
    assert kinds(spent) == [FindingKind.CAP_SPENT]
    assert kinds(DEFAULT, seats=2) == [FindingKind.TTL_SHORT]  # 10 rounds of 5 s for p1, which lives 15 s
    low = tuple(dataclasses.replace(band, ceiling=Fraction(1, 2)) for band in DEFAULT.bands)
    assert FindingKind.IDLE_SEATS in kinds(dataclasses.replace(DEFAULT, bands=low))
    reserved = (dataclasses.replace(DEFAULT.bands[0], reserve=16), *DEFAULT.bands[1:])
    starved = [FindingKind.STARVES, FindingKind.STARVES, FindingKind.IDLE_SEATS]  # no p0, no dispatch, no floor
    assert kinds(dataclasses.replace(DEFAULT, bands=reserved)) == starved
    four = (*DEFAULT.bands, Band("p3", 0, 0.001, floor=Fraction(1, 50)))
    assert kinds(dataclasses.replace(DEFAULT, bands=four)) == [FindingKind.MANY_BANDS]
    whole = dataclasses.replace(DEFAULT, bands=DEFAULT.bands[:1], overtake_cap=Fraction(1))
    assert kinds(whole) == []


def test_a_cap_of_one_promises_the_highest_band_nothing() -> None:
    policy = dataclasses.replace(DEFAULT, overtake_cap=Fraction(1))
    assert longest_waits(policy, seats=1, service_s=1.0)[0].next_s is None


@pytest.mark.parametrize("seats", [1, 3])
def test_the_scheduler_keeps_the_bound(seats: int) -> None:
    """A single p2 ticket under endless p0: dispatched within the promised number of rounds."""
    policy = dataclasses.replace(DEFAULT, pools=(PoolSpec("m", (BackendSpec("b", seats),)),))
    scheduler = Scheduler(policy)
    held = [scheduler.submit(0.0, Ticket(f"r{n}", "m", 0, "v"))[0].lease for n in range(seats)]  # type: ignore[union-attr]
    scheduler.submit(0.0, Ticket("low", "m", 2, "b"))
    bound = longest_waits(policy, seats=seats, service_s=1.0)[2].next_s
    now, number = 0.0, 0
    while now <= 100.0:
        for _ in range(seats):
            number += 1
            scheduler.submit(now, Ticket(f"v{number}", "m", 0, "v"))
        now += 1.0
        done, held = held, []
        for lease in done:
            for action in scheduler.release(now, lease.id, Release()):
                held.append(action.lease)  # type: ignore[union-attr]
        if any(lease.ticket.id == "low" for lease in held):
            break
    assert bound is not None
    assert now <= bound + 1.0  # plus the round that was under way on arrival
