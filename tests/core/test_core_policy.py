"""A policy that contradicts itself is refused, and the message names the setting."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from tidegate.core import BackendSpec, Band, Policy, PolicyError, PoolSpec, WorkEstimate

P0, P1, P2 = Policy().bands


def band(**changes: object) -> tuple[Band, ...]:
    return (P0, P1, dataclasses.replace(P2, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"bands": ()}, "policy.bands"),
        ({"bands": (P0, P0)}, "policy.bands.p0"),
        ({"bands": band(weight=-1)}, "policy.bands.p2.weight"),
        ({"bands": band(weight=21)}, "policy.bands.p2.weight"),
        ({"bands": band(capacity=0)}, "policy.bands.p2.capacity"),
        ({"bands": band(ttl_s=0.0)}, "policy.bands.p2.ttl"),
        ({"bands": band(floor=Fraction(1))}, "policy.bands.p2.floor"),
        ({"bands": band(floor=Fraction(2, 5)), "overtake_cap": Fraction(1)}, "policy.bands.p2.floor"),
        ({"bands": band(ceiling=Fraction(0))}, "policy.bands.p2.ceiling"),
        ({"bands": band(promote_after_s=0.0)}, "policy.bands.p2.promote_after"),
        ({"overtake_cap": Fraction(2)}, "policy.overtake_cap"),
        ({"overtake_cap": Fraction(1, 20)}, "policy.overtake_cap"),
        ({"queue_capacity": 0}, "policy.queue_capacity"),
        (
            {"pools": (PoolSpec("m", (BackendSpec("b", 1),)), PoolSpec("n", (BackendSpec("b", 1),)))},
            "models.n.backends",
        ),
        ({"pools": (PoolSpec("m", ()), PoolSpec("m", ()))}, "models.m"),
        ({"pools": (PoolSpec("m", (BackendSpec("b", -1),)),)}, "models.m.backends.b.seats"),
    ],
)
def test_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(PolicyError) as refused:
        Policy(**changes)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert str(refused.value).startswith(field)
    assert "expected" in refused.value.message or "twice" in refused.value.message


def test_work_in_tokens() -> None:
    assert WorkEstimate(3, 4).tokens == 7
