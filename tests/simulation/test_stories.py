"""The shipped stories keep their claims, as they ship and with another seed."""

from __future__ import annotations

import pytest

from tidegate.cli.scenario import GatewayEstimator, load_scenario
from tidegate.simulation.claims import Verdict
from tidegate.simulation.run import Result, run_scenario

pytestmark = pytest.mark.slow


def played(name: str, seed: int | None = None) -> Result:
    return run_scenario(load_scenario(name, seed=seed), estimator=GatewayEstimator, baselines=[])


def failures(result: Result) -> list[str]:
    return [f"{v.claim.text}: {v.left} against {v.right}" for v in result.verdicts if not v.holds]


@pytest.mark.parametrize("name", ["flash-sale", "kv-pressure"])
def test_claims_hold(name: str) -> None:
    result = played(name)
    assert len(result.verdicts) == 4
    assert failures(result) == []


@pytest.mark.parametrize("name", ["flash-sale", "kv-pressure"])
def test_claims_nearly_hold_whatever_the_seed(name: str) -> None:
    """With seeds 2 to 5 the p99 of p0 in flash-sale is 44 to 59 ms; tokens in kv-pressure move by less than 1 %."""
    assert [verdict.claim.text for verdict in played(name, seed=2).verdicts if not nearly(verdict)] == []


def nearly(verdict: Verdict) -> bool:
    """Whether a claim holds, or misses by what one seed moves it."""
    assert verdict.left is not None
    assert verdict.right is not None
    if "<=" in verdict.claim.text:
        return verdict.left <= 1.25 * verdict.right
    return verdict.left >= 0.99 * verdict.right


@pytest.mark.timeout(900)
def test_half_an_hour_of_the_shared_platform() -> None:
    """470,000 requests: online p99 within 200 ms, each batch within 15 minutes."""
    result = played("shared-platform")
    assert failures(result) == []
    online = result.runs["tidegate"].bands[0]
    assert online.sent > 350_000
    assert online.refused == {}
