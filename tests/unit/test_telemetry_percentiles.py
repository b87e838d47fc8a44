from __future__ import annotations

import random

import pytest

from tidegate.telemetry.accounts import TTFT_BOUNDS_S, WAIT_BOUNDS_S, FineHistogram, Histogram
from tidegate.telemetry.percentiles import SlidingCounts, part_within, quantile


@pytest.mark.parametrize("bounds", [WAIT_BOUNDS_S, TTFT_BOUNDS_S])
def test_a_fine_histogram_tells_prometheus_what_the_coarse_one_would(bounds: tuple[float, ...]) -> None:
    fine, coarse = FineHistogram(bounds), Histogram(bounds)
    values = [*bounds, 0.0, 9000.0, *(random.Random(1).expovariate(0.3) for _ in range(500))]
    for value in values:
        fine.observe(value)
        coarse.observe(value)
    assert fine.cumulative() == coarse.cumulative()
    assert fine.total == coarse.total


@pytest.mark.parametrize("part", [0.5, 0.99])
@pytest.mark.parametrize("mean_s", [0.003, 0.2, 8.0, 900.0])
def test_a_percentile_is_off_by_less_than_a_tenth(mean_s: float, part: float) -> None:
    chance, histogram = random.Random(7), FineHistogram(WAIT_BOUNDS_S)
    values = sorted(chance.expovariate(1 / mean_s) for _ in range(2000))
    for value in values:
        histogram.observe(value)
    found = quantile(histogram.bounds, histogram.counts, part)
    assert found == pytest.approx(values[int(part * len(values))], rel=0.1, abs=0.001)


def test_percentiles_of_nothing_and_of_what_is_beyond_the_last_edge() -> None:
    histogram = FineHistogram(WAIT_BOUNDS_S)
    assert quantile(histogram.bounds, histogram.counts, 0.5) is None
    assert part_within(histogram.bounds, histogram.counts, 1.0) is None
    histogram.observe(99_999.0)
    assert quantile(histogram.bounds, histogram.counts, 0.5) == 7200.0


def test_only_the_last_minute_counts() -> None:
    histogram = FineHistogram(WAIT_BOUNDS_S)
    sliding = SlidingCounts(histogram, 0.0, span_s=60)
    for second in range(200):
        histogram.observe(5.0 if second < 120 else 0.5)
        sliding.mark(second + 1.0)
    assert sum(sliding.recent()) == 60
    assert part_within(histogram.bounds, sliding.recent(), 1.0) == 1.0
    assert len(sliding._marks) == 61


def test_the_part_within_a_target_that_is_an_edge_is_exact() -> None:
    histogram = FineHistogram(TTFT_BOUNDS_S)
    for value in (0.2, 1.0, 1.001, 7.0):
        histogram.observe(value)
    assert part_within(histogram.bounds, histogram.counts, 1.0) == 0.5
