"""Scenario kv-pressure on real sockets, a few seconds of it: who is answered, who is told what, what the engine does.

The whole two minutes are ``python -m benchmarks.kv_pressure``; the figures are held in virtual time.
"""

from __future__ import annotations

import pytest
from benchmarks import kv_plan
from benchmarks.kv_pressure import measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

SECONDS = 6.0
KV_TOKENS = 16_000  # a quarter of the bench's, so that it is full within seconds


def test_a_small_cache_under_overload() -> None:
    load = [r for r in kv_plan.requests(SECONDS) if r.prompt_tokens + r.output_tokens < KV_TOKENS / 2]
    assert len(load) > 50
    bare = measure(load, SECONDS, gated=False, kv_tokens=KV_TOKENS)
    gated = measure(load, SECONDS, gated=True, kv_tokens=KV_TOKENS)
    assert gated.answered(0) == len(gated.of(0)) > 3
    assert bare.answered(0) < len(bare.of(0))
    assert gated.reasons(2)["shed"] > 5
    assert {reason for band in range(3) for reason in gated.reasons(band)} == {"shed"}
    assert gated.fallbacks[1] + gated.fallbacks[2] == gated.reasons(1)["shed"] + gated.reasons(2)["shed"]
    assert bare.preemptions > 3
    assert gated.preemptions <= bare.preemptions / 4  # few seconds: one preemption is a large part
