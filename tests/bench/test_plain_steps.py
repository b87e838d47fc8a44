"""What Python does for a plain request, counted: a figure that no busy machine moves."""

from __future__ import annotations

import pytest
from benchmarks import steps

MOST_CALLS = 265
"""Somewhat above the 247 of today. More is a decision: each call is some 0.4 µs of every request."""


@pytest.mark.bench
def test_a_plain_request_takes_no_more_calls_than_it_did() -> None:
    calls, did = steps.count()
    per_request = {part: number / steps.REQUESTS for part, number in calls.items()}
    assert {"core", "forwarding", "estimate", "metrics", "log line", "who calls"} <= set(per_request)
    assert 150 < sum(per_request.values()) <= MOST_CALLS, per_request
    assert did.total() > 10 * calls.total()
