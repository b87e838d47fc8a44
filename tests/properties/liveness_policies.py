"""Random policies for walks over the scheduler: two pools, three bands, four tenants, all that can hold work back."""

from __future__ import annotations

import random
from fractions import Fraction

from tidegate.core import AUTO, BackendSpec, Band, Full, Policy, PoolSpec, Reason, Saturated, TenantSpec

AGES = 1e9
"""Seconds that no walk lasts: who is ended by this has waited for ever."""
BACKENDS = {"a": "m", "b": "m", "c": "n"}
TENANTS = ("t0", "t1", "t2", "t3")
NO_BACKEND = (Reason.NO_BACKEND, Reason.UPSTREAM_ERROR)


def make_policy(rng: random.Random) -> Policy:
    """Return one of very many valid policies over the same two pools, with one of the modes."""
    everybody = (True, True, True)
    admitted = rng.choice([*[everybody] * 5, (True, False, False), (True, True, False), (False, True, False)])
    bands = tuple(
        Band(
            f"p{index}",
            100 / 5**index,
            rng.choice([0.005, 0.05]),
            floor=rng.choice([Fraction(0), Fraction(1, 20)]) if index else Fraction(0),
            promote_after_s=rng.choice([None, 0.5]),
            capacity=rng.choice([3, 9, 100]),
            full=rng.choice(list(Full)),
            ttl_s=AGES,
            reserve=rng.choice([0, 0, 1, AUTO]),
            ceiling=rng.choice([Fraction(1), Fraction(1), Fraction(1, 2)]),
            ttft_slo_s=rng.choice([None, 1.0]),
            shed_hopeless=rng.random() < 0.2,
            kv_watermark=0.2 if index else 0.0,
            kv_resume=0.3 if index else 0.0,
            when_saturated=rng.choice([Saturated.QUEUE, Saturated.QUEUE, Saturated.SHED]),
            admit=admitted[index],
            preemptible=index > 0,
            may_preempt=index < 2,
            target_wait_s=rng.choice([0.01, 0.2]),
        )
        for index in range(3)
    )
    tenants = (
        TenantSpec("t0", max_running=rng.choice([1, 2, None])),
        TenantSpec("t1", max_queued=rng.choice([3, 20])),
        TenantSpec("t2", requests_per_minute=rng.choice([60, None])),
        TenantSpec("t3", allow_lending=True),
    )
    pools = (
        PoolSpec(
            "m",
            (
                BackendSpec("a", rng.choice([2, 3]), requests_per_minute=rng.choice([60, None])),
                BackendSpec("b", 2, kv_tokens=rng.choice([2000, None])),
            ),
        ),
        PoolSpec("n", (BackendSpec("c", rng.choice([2, 4])),)),
    )
    return Policy(
        bands=bands,
        pools=pools,
        tenants=tenants,
        overtake_cap=Fraction(1, 4),
        queue_capacity=rng.choice([5, 30, 500]),
        preempt_rate=rng.choice([Fraction(1, 2), Fraction(1)]),
        max_preemptions=rng.choice([1, 5]),
        observe_only=rng.random() < 0.1,
    )
