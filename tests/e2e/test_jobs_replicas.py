"""Batches at three gateways of one order, one of which is killed: real processes, PostgreSQL and Valkey.

Bounds are wide, since the machine may do much else; ``python -m benchmarks.jobs_replicas`` tells the figures.
"""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.jobs_replicas import story

from tidegate.testing.replicas import quantile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.timeout(90),  # of which a machine that does much else needs most to start a dozen processes
]

ROWS, SEATS, HOLD_S = 200, 16, 0.25
LEASE_S = 60.0


def test_batches_of_three_gateways_survive_one_and_keep_out_of_the_way() -> None:
    outcome = asyncio.run(story(gateways=3, rows=ROWS, seats=SEATS, hold_s=HOLD_S, seconds=4.0))
    assert len(outcome.records) == len(outcome.calls) == ROWS
    assert max(outcome.records.values()) == 1
    assert outcome.calls.total() <= ROWS + SEATS, "more was asked for again than can have run at the one that died"
    assert outcome.end_s < LEASE_S / 2, "rows of the one that died waited for their leases"
    assert sum(share > 0 for share in outcome.shares) >= 2, "one gateway pumped all"
    assert outcome.shares[-1] > 0, "who died had no rows"
    assert outcome.failed == 0
    assert outcome.window is not None
    assert outcome.window >= 2, "the floor of p2 is 5 of 100"
    # A machine that stands still makes all wait; the order shows in who waits less.
    assert quantile(outcome.waits, 0.5) <= max(6 * HOLD_S, 0.7 * quantile(outcome.others, 0.5))
