"""What a waiter of a higher band costs: work that it waits for takes as long as work of its own band."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from theory.stage import POOL, policy
from tidegate.core import Action, Band, Dispatch, Evict, Reject, Release, Scheduler, Signal, Ticket, Waiter

SEATS, SERVICE_S, TRIALS = 8, 1.0, 120
BANDS = (
    Band("p0", 100, 0.05, ttl_s=1e6, capacity=10**6),
    Band("p1", 20, 0.02, floor=Fraction(1, 20), ttl_s=1e6, capacity=10**6),
    Band("p2", 1, 0.005, floor=Fraction(1, 20), ttl_s=1e6, capacity=10**6),
)
Event = tuple[float, Ticket | Signal]


def run(events: Sequence[Event], seed: int) -> dict[str, float]:
    """Play events over a saturated pool until all is served; return when each ticket finished."""
    core = Scheduler(policy(BANDS, SEATS, overtake_cap=Fraction(15, 100)))
    rng, order = random.Random(seed), itertools.count()
    line: list[tuple[float, int, Ticket | Signal | int]] = [(at, next(order), what) for at, what in events]
    heapq.heapify(line)
    finished: dict[str, float] = {}
    names: dict[int, str] = {}

    def apply(now: float, actions: list[Action]) -> None:
        for action in actions:
            assert not isinstance(action, Reject | Evict), action
            if isinstance(action, Dispatch):
                names[action.lease.id] = action.ticket.id
                heapq.heappush(line, (now + rng.uniform(0.8, 1.2) * SERVICE_S, next(order), action.lease.id))

    while line:
        now, _, what = heapq.heappop(line)
        if isinstance(what, int):
            finished[names[what]] = now
            apply(now, core.release(now, what, Release()))
        elif isinstance(what, Ticket):
            apply(now, core.submit(now, what))
        else:
            apply(now, core.observe(now, what))
    return finished


def background(rng: random.Random) -> list[Event]:
    """Return an old p2 and p1 backlog and p0 at a fifth of the capacity, over the whole run."""
    span = TRIALS * 10.0
    events: list[Event] = [(0.0, Ticket(f"low{i}", POOL, 1 + i % 2, "shop")) for i in range(int(SEATS * span))]
    now = 0.0
    while now < span:
        now += rng.expovariate(0.2 * SEATS / SERVICE_S)
        events.append((now, Ticket(f"p0-{len(events)}", POOL, 0, "shop")))
    return events


def chains(bands: Sequence[int]) -> list[Event]:
    """Return, every ten seconds, tickets of the given bands that each depend on the one before."""
    events: list[Event] = []
    for trial in range(TRIALS):
        at = trial * 10.0 + 0.37
        for place, number in enumerate(bands):
            name = f"{trial}-{place}"
            depends = (f"{trial}-{place - 1}",) if place else ()
            events.append((at, Ticket(name, POOL, number, "shop", name=name, depends_on=depends)))
    return events


def mean_time(finished: dict[str, float], last: int) -> float:
    """Return the mean time from the start of a trial to the end of its last ticket, seconds."""
    return sum(finished[f"{trial}-{last}"] - (trial * 10.0 + 0.37) for trial in range(TRIALS)) / TRIALS


@pytest.mark.parametrize("bands", [(2, 0), (2, 1, 0)], ids=["p0 on p2", "p0 on p1 on p2"])
def test_a_p0_on_lower_work_is_as_fast_as_one_on_p0_work(bands: tuple[int, ...]) -> None:
    last = len(bands) - 1
    native = run([*background(random.Random(1)), *chains([0] * len(bands))], 1)
    lent = run([*background(random.Random(1)), *chains(bands)], 1)
    assert mean_time(lent, last) <= 1.1 * mean_time(native, last)


def test_a_p0_caller_that_waits_for_p2_work_has_it_as_soon_as_p0_work() -> None:
    native = run([*background(random.Random(2)), *chains([0])], 2)
    waits: list[Event] = [
        (trial * 10.0 + 0.37, Waiter(f"w{trial}", "shop", 0, f"shop/{trial}-0", waiting=True))
        for trial in range(TRIALS)
    ]
    lent = run([*background(random.Random(2)), *chains([2]), *waits], 2)
    assert mean_time(lent, 0) <= 1.1 * mean_time(native, 0)


def test_without_lending_the_p2_work_would_be_far_slower() -> None:
    native = run([*background(random.Random(3)), *chains([0])], 3)
    alone = run([*background(random.Random(3)), *chains([2])], 3)
    assert mean_time(alone, 0) > 5 * mean_time(native, 0)
