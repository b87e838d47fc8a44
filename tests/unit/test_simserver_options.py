"""What the simulated engine can be told, and what it refuses by name."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tidegate.simserver import EngineOptions, Fault, FaultKind


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share", 1.5),
        ("share", -0.1),
        ("share", math.nan),
        ("factor", 0.0),
        ("factor", -1.0),
        ("factor", math.inf),
        ("times", -1),
        ("after_tokens", -1),
        ("retry_after_s", -1.0),
        ("retry_after_s", math.inf),
    ],
)
def test_a_fault_that_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}: expected "):
        Fault(kind=FaultKind.SLOW, **{field: value})


def test_a_fault_that_comes_by_http_is_judged_alike() -> None:
    with pytest.raises(msgspec.ValidationError, match="factor: expected a number above 0, got -1"):
        msgspec.json.decode(b'{"kind": "slow", "factor": -1}', type=Fault)
    assert msgspec.json.decode(b'{"kind": "429", "share": 0.5, "times": 3}', type=Fault).times == 3


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_speed_that_no_engine_has_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"^speed: expected more than 0, got "):
        EngineOptions(speed=value)
