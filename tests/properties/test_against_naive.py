"""The fast scheduler makes the very decisions of a slow, obvious one, on random traffic."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from properties.naive import Decision, NaiveScheduler
from tidegate.core import (
    Action,
    BackendSpec,
    Band,
    Discipline,
    Dispatch,
    Evict,
    Full,
    Policy,
    PoolSpec,
    Reject,
    Release,
    Scheduler,
    Ticket,
)

NONE, FIVE = Fraction(0), Fraction(1, 20)
FLOORS = [(NONE, NONE, NONE), (NONE, FIVE, FIVE), (NONE, Fraction(1, 10), NONE), (NONE, Fraction(1, 7), Fraction(1, 9))]


def _policy(rng: random.Random) -> Policy:
    floors = rng.choice(FLOORS)
    cap = sum(floors, Fraction(0)) + rng.choice([Fraction(0), Fraction(1, 20), Fraction(1, 3)])
    bands = tuple(
        Band(
            f"p{i}",
            weight,
            alpha,
            floor=floors[i],
            capacity=rng.choice([3, 10, 1000]),
            full=rng.choice(list(Full)),
            ttl_s=rng.choice([2.0, 30.0, 1e6]),
            reserve=rng.choice([0, 0, 1]) if i < 2 else 0,
        )
        for i, (weight, alpha) in enumerate(((100, 0.05), (20, 0.02), (1, 0.005)))
    )
    return Policy(
        bands=bands,
        pools=(PoolSpec("m", (BackendSpec("b", rng.choice([1, 2, 5])),)),),
        discipline=rng.choice([Discipline.AGING, Discipline.STRICT]),
        overtake_cap=cap,
        queue_capacity=rng.choice([5, 20, 10_000]),
    )


def _seen(actions: list[Action]) -> list[Decision]:
    out = []
    for action in actions:
        if isinstance(action, Dispatch):
            out.append(Decision("dispatch", action.ticket.id, action.lease.kind))
        elif isinstance(action, Reject | Evict):
            out.append(Decision(type(action).__name__.lower(), action.ticket.id, action.reason))
    return out


@pytest.mark.parametrize("seed", range(150))
def test_same_decisions_as_the_naive_scheduler(seed: int) -> None:
    rng = random.Random(seed)
    policy = _policy(rng)
    naive, fast = NaiveScheduler(policy), Scheduler(policy)
    leases: dict[str, int] = {}
    waiting: set[str] = set()
    now, load = 0.0, rng.choice([0.5, 1.0, 3.0])
    for step in range(400):
        now += rng.expovariate(10)
        kind = rng.random()
        if kind < load / (1 + load):
            band = rng.randrange(3)
            waiting.add(str(step))
            expected = naive.submit(now, str(step), band)
            actions = fast.submit(now, Ticket(str(step), "m", band, "t"))
        elif kind < 0.95 and leases:
            id_ = rng.choice(sorted(leases))
            expected = naive.release(now, id_)
            actions = fast.release(now, leases.pop(id_), Release())
        elif waiting:
            id_ = rng.choice(sorted(waiting))
            waiting.discard(id_)
            expected = naive.cancel(now, id_)
            actions = fast.cancel(now, id_)
        else:
            expected, actions = naive.expire(now), fast.tick(now)
        seen = _seen(actions)
        order = [d for d in expected if d.what == "dispatch"]
        assert [d for d in seen if d.what == "dispatch"] == order, f"step {step}"
        assert sorted(seen, key=repr) == sorted(expected, key=repr), f"step {step}"
        for action in actions:
            if isinstance(action, Dispatch):
                leases[action.ticket.id] = action.lease.id
            if isinstance(action, Dispatch | Evict | Reject):
                waiting.discard(action.ticket.id)
