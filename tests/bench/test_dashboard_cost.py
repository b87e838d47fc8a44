"""A snapshot for the dashboard costs the same in a full house: it walks neither tickets nor tenants."""

from __future__ import annotations

import sys

import pytest
from benchmarks import dashboard

pytestmark = [pytest.mark.bench, pytest.mark.timeout(60)]


def test_a_snapshot_costs_the_same_with_a_thousand_times_as_many_tickets(capsys: pytest.CaptureFixture[str]) -> None:
    few, size = dashboard.snapshot_us(waiting=100, tenants=10)
    many, _ = dashboard.snapshot_us(waiting=100_000, tenants=10_000)
    with capsys.disabled():
        sys.stdout.write(f"\nsnapshot: {few:.0f} µs with 100 waiting, {many:.0f} µs with 100,000; {size} B")
    assert many <= 10 * few  # cold caches make it twice as long at times; a walk, some hundred times
