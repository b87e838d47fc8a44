"""The bounds of ``tidegate check`` against the real scheduler and an adversary: never broken, and not far from broken.

The adversary decides when each band comes and goes, whose flood is old enough to overtake or to be promoted, and how
long each request holds its seat, up to the longest time allowed. From every moment at which a band began to wait, or
was just served, it is counted in how many dispatches of the pool, and after how long, the band got its n-th.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from tidegate.config import load_settings, preset_names
from tidegate.core import (
    Action,
    BackendSpec,
    Band,
    Discipline,
    Dispatch,
    Order,
    Policy,
    PoolSpec,
    Release,
    Saturated,
    Scheduler,
    Ticket,
    Unit,
    WorkEstimate,
)
from tidegate.core.bounds import longest_waits
from tidegate.core.promises import fair_dispatch, nth_dispatch

LONGEST_S = 4.0
DEPTHS = (1, 2, 5, 13)
STEPS = 700


class Adversary:
    """Plays one policy; ``worst[band][n]`` is the most dispatches and the longest time until a band's n-th."""

    def __init__(self, policy: Policy, rng: random.Random, *, seats: int, tenants: int, keeps_arrivals: bool) -> None:
        self.policy, self.rng, self.tenants, self.keeps = policy, rng, tenants, keeps_arrivals
        self.scheduler = Scheduler(policy)
        self.count = len(policy.bands)
        self.now, self.number, self.dispatches = 0.0, 0, 0
        self.ends: list[tuple[float, int]] = []
        self.waiting: list[dict[str, int]] = [{} for _ in range(self.count)]  # ticket id -> dispatches when it came
        self.marks: list[list[tuple[int, float]]] = [[] for _ in range(self.count)]
        self.worst: list[dict[int, tuple[int, float]]] = [defaultdict(lambda: (0, 0.0)) for _ in range(self.count)]
        self.newcomers = [0] * self.count
        self.wanted = [True] * self.count
        self.calm = rng.choice([0.0, 0.02, 0.2])  # how often a band changes between flood and silence
        self.depth = rng.choice([2 * tenants + 1, 38])  # a deep flood has old tickets to overtake with
        self.slow = rng.choice([0.0, 0.0, 0.5])  # how often a request is shorter than it may be

    def play(self, steps: int = STEPS) -> None:
        """Go on until there were enough releases."""
        for _ in range(steps):
            self._arrive()
            if not self.ends:
                break
            self.now, lease = heapq.heappop(self.ends)
            self._take(self.scheduler.release(self.now, lease, Release()))

    def _arrive(self) -> None:
        rng = self.rng
        for band in rng.sample(range(self.count), self.count):
            if rng.random() < self.calm:
                self.wanted[band] = not self.wanted[band]
            while self.wanted[band] and len(self.waiting[band]) < self.depth:
                self._submit(band, f"t{rng.randrange(self.tenants)}")
        if not self.ends:  # never let the pool run dry
            self._submit(rng.randrange(self.count), "t0")
        band = rng.randrange(self.count)
        if self.waiting[band] and not any(name.startswith("new") for name in self.waiting[band]):
            self._submit(band, f"new{self.number}")

    def _submit(self, band: int, tenant: str) -> None:
        self.number += 1
        name = f"{tenant}-{self.number}"
        arrived = self.now - self.rng.choice([0.0, 50.0, 4000.0]) if self.keeps else None
        if not self.waiting[band]:
            self.marks[band] = [(self.dispatches, self.now)]
        self.waiting[band][name] = self.dispatches
        self._take(self.scheduler.submit(self.now, Ticket(name, "m", band, tenant, WorkEstimate(10), arrived=arrived)))

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            if not isinstance(action, Dispatch):
                continue
            ticket, band = action.ticket, action.ticket.band
            self.dispatches += 1
            came = self.waiting[band].pop(ticket.id)
            if ticket.tenant.startswith("new"):
                self.newcomers[band] = max(self.newcomers[band], self.dispatches - came)
            marks, worst = self.marks[band], self.worst[band]
            marks.append((self.dispatches, self.now))
            for n in DEPTHS:
                if len(marks) > n:
                    at, since = marks[-1 - n]
                    most, longest_s = worst[n]
                    worst[n] = (max(most, self.dispatches - at), max(longest_s, self.now - since))
            held_s = LONGEST_S if self.rng.random() >= self.slow else self.rng.uniform(0.0, LONGEST_S)
            heapq.heappush(self.ends, (self.now + held_s, action.lease.id))


def random_policy(rng: random.Random, seats: int) -> Policy:
    count = rng.randint(1, 4)
    # p0 may have a floor too: it is due among the others then, and moves theirs
    floored = [rng.random() < (0.2 if band == 0 else 0.6) for band in range(count)]
    most = Fraction(1, sum(floored) + 1)
    floors = [
        min(most, rng.choice([Fraction(1, rng.randint(2, 25)), Fraction(7, 100)])) if each else Fraction(0)
        for each in floored
    ]
    spent = sum(floors, Fraction(0))
    cap = min(Fraction(1), spent + rng.choice([Fraction(0), Fraction(1, 20), Fraction(1, 3)]))
    if spent > cap:
        floors, cap = [Fraction(0)] * count, Fraction(1, 4)
    bands = tuple(
        Band(
            f"p{band}",
            (count - band) * 10.0,
            rng.choice([0.001, 0.01, 0.05]),
            share=rng.choice([1, 2, 3, 8, 20]),
            floor=floors[band],
            promote_after_s=rng.choice([None, 30.0]),
            order=rng.choice(list(Order)),
            reserve=rng.choice([0, 0, rng.randrange(seats), "auto"]),
            ceiling=rng.choice([Fraction(1), Fraction(1), Fraction(3, 5)]),
            ttl_s=1e9,
            capacity=40,
        )
        for band in range(count)
    )
    return Policy(
        bands=bands,
        pools=(PoolSpec("m", (BackendSpec("b", seats),)),),
        discipline=rng.choice(list(Discipline)),
        unit=rng.choice(list(Unit)),
        overtake_cap=cap,
    )


@pytest.mark.parametrize("seed", range(150))
def test_no_adversary_breaks_a_bound(seed: int) -> None:
    rng = random.Random(seed)
    seats, tenants = rng.randint(1, 8), rng.randint(1, 5)
    policy = random_policy(rng, seats)
    keeps = rng.random() < 0.5  # kept arrivals make claims older than the band's: not for the fair order by age
    played = Adversary(policy, rng, seats=seats, tenants=tenants, keeps_arrivals=keeps)
    played.play()
    waits = longest_waits(policy, seats=seats, service_s=LONGEST_S, tenants=tenants + 1)
    for band, worst in enumerate(played.worst):
        for n, (most, _) in worst.items():
            bound = nth_dispatch(policy, band, n, seats=seats).count
            assert bound is None or most <= bound, f"{n} of p{band}"
        next_s = waits[band].next_s
        assert next_s is None or worst[1][1] <= next_s + 1e-6
        fair = fair_dispatch(policy, band, tenants + 1, seats=seats).count
        assert keeps or fair is None or played.newcomers[band] <= fair, f"a newcomer in p{band}"


def patient(policy: Policy, seats: int) -> Policy:
    """Return a policy that queues for ever what it would expire, shed or refuse."""
    bands = tuple(
        replace(band, ttl_s=1e9, capacity=40, shed_hopeless=False, when_saturated=Saturated.QUEUE)
        for band in policy.bands
    )
    return replace(policy, bands=bands, pools=(PoolSpec("m", (BackendSpec("b", seats),)),))


@pytest.mark.slow
@pytest.mark.parametrize("preset", preset_names())
def test_the_presets_come_close_to_their_bounds(preset: str) -> None:
    """The bound is at most 1.5 times what an adversary reached, so it cannot be made true by being loose."""
    settings = load_settings(None, environ={}, backend_url="http://127.0.0.1:1", preset=preset, seats=1)
    policy = patient(settings.core_policy(), 1)
    reached: dict[tuple[int, int], int] = defaultdict(int)
    for seed in range(8):
        played = Adversary(policy, random.Random(seed), seats=1, tenants=2, keeps_arrivals=True)
        played.play(900)
        for band, worst in enumerate(played.worst):
            for n, (most, _) in worst.items():
                reached[band, n] = max(reached[band, n], most)
    judged = 0
    for (band, n), most in reached.items():
        bound = nth_dispatch(policy, band, n, seats=1).count
        if bound is not None:
            assert most <= bound <= 1.5 * most, f"{n} of p{band}: {most} of {bound}"
            judged += 1
    assert judged >= len(DEPTHS)


def test_bounds_grow_with_what_is_asked() -> None:
    counts = [nth_dispatch(Policy(), 0, n, seats=64).count or 0 for n in range(1, 60)]
    assert counts[0] == 4  # two floors, an overtake saved up, then its own
    assert all(before < after for before, after in pairwise(counts))
