"""Shares: floors in every window, smooth weighted turns, the overtake cap, fair shares between tenants."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest

from theory.closed_forms import sfq_gap
from theory.stage import Arrival, Log, Scheduling, band, play, policy
from tidegate.core import (
    Action,
    Discipline,
    Dispatch,
    Lease,
    Policy,
    Release,
    Ticket,
    Turn,
    Unit,
)

TWENTIETH = Fraction(1, 20)
CAP = Fraction(15, 100)


def backlog(counts: Sequence[int], *, service_s: float = 1.0, tokens: int = 10) -> list[Arrival]:
    """Return a backlog present from the start, ``counts[i]`` tickets in band i."""
    return [Arrival(0.0, index, service_s, tokens=tokens) for index, count in enumerate(counts) for _ in range(count)]


def three(discipline: Discipline, seats: int = 4, **settings: object) -> Policy:
    """Return the three default-like bands with two floors of 5 % and the cap of 15 %."""
    bands = [band("p0", weight=100, aging_per_ms=0.05, share=8)]
    bands += [band("p1", weight=20, aging_per_ms=0.02, share=2, floor=TWENTIETH)]
    bands += [band("p2", weight=1, aging_per_ms=0.005, share=1, floor=TWENTIETH)]
    return policy(bands, seats, discipline=discipline, overtake_cap=CAP, **settings)


def windows(log: Log, size: int, wanted: Callable[[int], bool], *, skip: int = 0) -> list[int]:
    """Return, for every window of ``size`` dispatches after the first ``skip``, how many were of wanted bands."""
    hits = [int(wanted(row.arrival.band)) for row in log.served[skip:]]
    sums = [0, *itertools.accumulate(hits)]
    return [sums[i + size] - sums[i] for i in range(len(hits) - size + 1)]


def p0_alone(load: float, seats: int, seconds: float, seed: int = 1) -> list[Arrival]:
    """Return p0 at ``load`` x capacity over a p1 and p2 backlog that never ends in time."""
    rng, now, rows = random.Random(seed), 0.0, backlog([0, 2000, 2000])
    while now < seconds:
        now += rng.expovariate(load * seats)
        rows.append(Arrival(now, 0, 1.0))
    return rows


@pytest.mark.parametrize(
    "discipline", [Discipline.AGING, Discipline.WEIGHTED, pytest.param(Discipline.STRICT, marks=pytest.mark.slow)]
)
def test_floors_are_met_in_every_window_of_100(discipline: Discipline) -> None:
    log = play(three(discipline), p0_alone(3.0, 4, 1000.0), until=1000.0)
    assert len(log.served) > 3000
    for index in (1, 2):  # the first four seats were given before everybody waited
        assert min(windows(log, 100, lambda b, index=index: b == index, skip=4)) >= 5  # type: ignore[misc]


def test_overtakes_stay_within_the_cap_in_every_window() -> None:
    rows = backlog([0, 0, 9000])
    rng, now = random.Random(2), 60.0
    while now < 1560.0:
        now += rng.expovariate(4.0)
        rows.append(Arrival(now, 0, 1.0))
    bands = [band("p0", weight=100, aging_per_ms=0.05), band("p1", weight=20, aging_per_ms=0.02, floor=TWENTIETH)]
    bands.append(band("p2", weight=1, aging_per_ms=0.005, floor=TWENTIETH))
    log = play(policy(bands, 4, overtake_cap=CAP), sorted(rows, key=lambda row: row.at), until=1560.0)
    late = Log(served=[row for row in log.served if row.started is not None and row.started > 160.0])
    # p0 alone offers the whole capacity, so it waits almost always: count what went past it
    assert max(windows(late, 100, lambda b: b == 2)) > 0
    passed = [row for row in late.served if row.kind is not Turn.TURN]
    assert len(passed) <= CAP * len(late.served) + 1


def test_weighted_turns_are_smooth() -> None:
    log = play(three(Discipline.WEIGHTED, seats=1, unit=Unit.REQUESTS), backlog([900, 250, 150]))
    first = [row.arrival.band for row in log.served[:1000]]
    for index, share in ((0, 8), (1, 2), (2, 1)):
        places = [i for i, b in enumerate(first) if b == index]
        gaps = [b - a - 1 for a, b in itertools.pairwise(places)]
        assert len(places) == pytest.approx(1000 * share / 11, abs=3)
        assert max(gaps) <= 10


def test_weighted_by_tokens_shares_tokens_not_requests() -> None:
    sizes, shares = [300, 100, 100], [8, 2, 1]
    rows = [Arrival(0.0, b, 1.0, tokens=sizes[b]) for b in range(3) for _ in range(1500)]
    bands = [band(f"p{i}", share=s) for i, s in enumerate(shares)]
    log = play(policy(bands, 1, discipline=Discipline.WEIGHTED, overtake_cap=CAP), rows)
    used = [0, 0, 0]
    for row in log.served[:1500]:
        used[row.arrival.band] += row.arrival.tokens
    for index in range(3):
        assert used[index] / sum(used) == pytest.approx(shares[index] / 11, rel=0.03)


def _prefix_gaps(log: Log, tenants: tuple[str, str], weights: tuple[float, float]) -> float:
    """Return the largest difference of weighted service of two tenants over any interval while both wait."""
    level = low = high = worst = 0.0
    left = {tenant: sum(row.arrival.tenant == tenant for row in log.served) for tenant in tenants}
    for row in log.served:
        if row.arrival.tenant not in left:
            continue
        left[row.arrival.tenant] -= 1
        sign, weight = (1, weights[0]) if row.arrival.tenant == tenants[0] else (-1, weights[1])
        level += sign * row.arrival.tokens / weight
        low, high = min(low, level), max(high, level)
        worst = max(worst, high - level, level - low)
        if not min(left.values()):
            break
    return worst


@pytest.mark.parametrize("seats", [1, 4])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 1.0)])
def test_two_backlogged_tenants_stay_within_the_sfq_bound(seats: int, weights: tuple[float, float]) -> None:
    from tidegate.core import TenantSpec

    rng = random.Random(3)
    rows = [
        Arrival(0.0, 0, rng.uniform(0.5, 2), tenant=tenant, tokens=rng.randint(1, most))
        for tenant, most in (("a", 500), ("b", 80))
        for _ in range(800)
    ]
    tenants = (TenantSpec("a", weights[0]), TenantSpec("b", weights[1]))
    log = play(policy([band("p0")], seats, tenants=tenants), rows)
    bound = sfq_gap(seats, 500 / weights[0], 80 / weights[1])
    assert _prefix_gaps(log, ("a", "b"), weights) <= bound


def _flooded(scheduler: Policy | Scheduling) -> float:
    """Return the small tenant's part of the tokens served while it had work, against a flood ten times its size."""
    rng = random.Random(4)
    rows = [
        Arrival(rng.uniform(0, 100), 0, 1.0, tenant=tenant, tokens=rng.randint(50, 150))
        for tenant, count in (("flood", 4000), ("small", 400))
        for _ in range(count)
    ]
    log = play(scheduler, sorted(rows, key=lambda row: row.at))
    last = max(i for i, row in enumerate(log.served) if row.arrival.tenant == "small")
    head = log.served[: last + 1]
    return sum(row.arrival.tokens for row in head if row.arrival.tenant == "small") / sum(
        row.arrival.tokens for row in head
    )


def test_a_tenant_keeps_its_half_against_ten_times_its_load() -> None:
    assert _flooded(policy([band("p0")], 4)) >= 0.45


class GlobalFifo:
    """A scheduler that does nothing but queue: every oracle of fairness and starvation must fail on it."""

    def __init__(self, seats: int) -> None:
        self.free, self.line, self.count = seats, deque[Ticket](), itertools.count()

    def _go(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self.free and self.line:
            self.free -= 1
            ticket = self.line.popleft()
            lease = Lease(next(self.count), ticket, "b", Turn.TURN, ticket.band, 0.0, now)
            actions.append(Dispatch(ticket, lease))
        return actions

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        self.line.append(ticket)
        return self._go(now)

    def release(self, now: float, lease_id: int, outcome: Release) -> list[Action]:
        self.free += 1
        return self._go(now)

    def tick(self, now: float) -> list[Action]:
        return []

    def next_wakeup(self) -> float | None:
        return None


def test_the_fairness_oracle_fails_on_a_plain_queue() -> None:
    assert _flooded(GlobalFifo(4)) < 0.2


def test_the_starvation_oracle_fails_on_a_plain_queue() -> None:
    rows = [Arrival(i / 100, 0, 1.0) for i in range(2000)] + [Arrival(20.0, 2, 1.0)]
    log = play(GlobalFifo(4), rows)
    assert min(windows(log, 100, lambda b: b == 2)) == 0
    assert log.mean_wait(2, warm=0.0) > 400
