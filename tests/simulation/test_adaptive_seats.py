"""The engine's own queue: the seat controller finds the knee, from below and from above; a burst does not pile up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.engine_queue import MIXES, Mix, best_fixed, burst, endless

from tidegate.core.adaptive import SeatController
from tidegate.core.policy import P0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=MIXES)
def mix(request: pytest.FixtureRequest) -> tuple[Mix, float]:
    """One mix and the throughput of its best fixed setting."""
    return MIXES[request.param], best_fixed(MIXES[request.param])


@pytest.mark.parametrize("start", [1, 1000])
def test_auto_finds_the_knee(mix: tuple[Mix, float], start: int) -> None:
    asked, best = mix
    seen = endless(asked, SeatController(start))
    assert seen.tokens_per_s >= 0.97 * best
    assert seen.waiting <= 2.0


def test_a_fixed_number_above_the_knee_keeps_the_queue_in_the_engine() -> None:
    """What the controller is for."""
    assert endless(MIXES["long prompts"], None, seats=64).waiting > 20


def test_time_per_token_target_holds_the_seats_below_the_knee() -> None:
    """With 12 ms per token the engine may run about 90 of this mix; it could run 256."""
    band = replace(P0, tpot_slo_s=0.012)
    seen = endless(replace(MIXES["chat"], span_s=300.0), SeatController(1), band=band, warm_s=150.0)
    assert 40 < sum(seen.seats[150:]) / 150 < 140


@pytest.mark.parametrize("output_tokens", [200, 600])
def test_a_burst_between_two_looks_does_not_wait_for_memory_in_the_engine(output_tokens: int) -> None:
    """Sooner or later all 200 are answered; a handful of preempted ones is the most that waits there meanwhile."""
    assert burst(output_tokens, scraped=True).most <= 4
    assert burst(output_tokens, scraped=False).most > 100
