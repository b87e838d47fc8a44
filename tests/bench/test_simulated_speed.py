"""A million simulated requests in memory that does not grow, and a scheduler that is not what makes runs slow."""

from __future__ import annotations

import sys

import pytest
from benchmarks import simulated_speed

pytestmark = [pytest.mark.bench, pytest.mark.timeout(240)]


def test_a_million_requests_take_no_more_memory_than_a_tenth_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    rate, grown = simulated_speed.long_run(1_000_000)
    with capsys.disabled():
        sys.stdout.write(f"\na million simulated requests: {rate:,.0f} a second, memory {grown:+.1f} MiB")
    assert grown < 8.0  # one kept float for each of 900,000 would be 7 MiB, one kept entry 250 MiB


def test_the_scheduler_alone_does_tens_of_thousands_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    rate, served = simulated_speed.scheduler_rate(simulated_speed.policy(plain=True), 30_000)
    with capsys.disabled():
        sys.stdout.write(f"\nscheduler alone on a virtual clock: {rate:,.0f} requests a second")
    assert rate > 5_000
    assert served == pytest.approx(10_000, rel=0.1)
