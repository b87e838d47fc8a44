"""Very many valid policies over the same two pools, for random commands."""

from __future__ import annotations

import random
from fractions import Fraction

from tidegate.core import (
    BackendSpec,
    BacklogOrder,
    Band,
    Discipline,
    Full,
    Order,
    Policy,
    PoolSpec,
    TenantSpec,
    Unit,
)

BACKENDS = {"a1": "a", "a2": "a", "b1": "b"}
TENANTS = ("t0", "t1", "t2", "t3")


def make_policy(seed: int) -> Policy:
    """Return one of very many valid policies over the same two pools."""
    rng = random.Random(seed)
    bands = tuple(
        Band(
            f"p{i}",
            100 / 5**i,
            rng.choice([0, 0.005, 0.05]),
            share=rng.choice([1, 2, 8]),
            floor=rng.choice([Fraction(0), Fraction(1, 20), Fraction(1, 10)]) if i else Fraction(0),
            promote_after_s=rng.choice([None, 0.5, 20.0]),
            order=rng.choice(list(Order)),
            backlog_order=rng.choice(list(BacklogOrder)),
            capacity=rng.choice([2, 8, 100]),
            full=rng.choice(list(Full)),
            ttl_s=rng.choice([1.0, 20.0, 1e5]),
            reserve=rng.choice([0, 0, 1]),
            ceiling=rng.choice([Fraction(1), Fraction(1), Fraction(4, 5)]),
            preemptible=i > 0 and rng.random() < 0.7,
            may_preempt=i < 2 and rng.random() < 0.7,
            target_wait_s=rng.choice([0.001, 0.5, 20.0]),
        )
        for i in range(3)
    )
    tenants = (
        TenantSpec("t0", weight=3),
        TenantSpec("t1", max_queued=4, max_running=1),
        TenantSpec("t2", requests_per_minute=30, tokens_per_minute=4000),
        TenantSpec("t3", allow_lending=True),
    )
    pools = (
        PoolSpec("a", (BackendSpec("a1", rng.randint(1, 3)), BackendSpec("a2", rng.randint(0, 2)))),
        PoolSpec("b", (BackendSpec("b1", rng.randint(1, 2)),)),
    )
    return Policy(
        bands=bands,
        pools=pools,
        tenants=tenants,
        discipline=rng.choice(list(Discipline)),
        unit=rng.choice(list(Unit)),
        overtake_cap=Fraction(1, 4),
        queue_capacity=rng.choice([4, 30, 500]),
        max_flows=rng.choice([2, 100]),
        preempt_rate=rng.choice([Fraction(0), Fraction(1, 20), Fraction(1)]),
        max_preemptions=rng.choice([0, 1, 3]),
    )


def specs(policy: Policy) -> list[BackendSpec]:
    return [backend for pool in policy.pools for backend in pool.backends]
