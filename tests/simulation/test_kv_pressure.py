"""Scenario kv-pressure in virtual time: 2.5 times the load, little KV memory, the preset ``kv-guard`` as it ships."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmarks import kv_plan
from benchmarks.kv_plan import ENGINE, LOAD, STARTS, Played, completed, played

from tidegate.core import Outcome, Reason

pytestmark = pytest.mark.slow

SECONDS = 120.0


@pytest.fixture(scope="module")
def runs() -> list[tuple[Played, Played]]:
    """Straight at the engine, and through the gateway's scheduler."""
    return [(played(SECONDS, gated=False, start=start), played(SECONDS, gated=True, start=start)) for start in STARTS]


def test_every_p0_completes_and_soon(runs: list[tuple[Played, Played]]) -> None:
    for bare, gated in runs:
        assert len(gated.log.of_band(0)) > 200
        assert completed(gated.log, 0) == len(gated.log.of_band(0))
        assert typical_first_token_s(gated) < 0.3
        assert typical_first_token_s(bare) > 10


def typical_first_token_s(run: Played) -> float:
    times = sorted(
        entry.first_token - entry.request.at for entry in run.log.of_band(0) if entry.first_token is not None
    )
    return times[len(times) // 2]


def test_the_engine_preempts_at_most_one_in_a_hundred(runs: list[tuple[Played, Played]]) -> None:
    assert min(bare.preemptions for bare, _ in runs) > 50
    assert sum(gated.preemptions for _, gated in runs) <= 0.01 * sum(bare.preemptions for bare, _ in runs)
    for bare, gated in runs:
        assert gated.preemptions <= max(3, 0.01 * bare.preemptions)


def test_the_engine_does_as_much_useful_work(runs: list[tuple[Played, Played]]) -> None:
    """What ungated fuller memory gains, computing preempted work anew loses."""
    assert sum(gated.tokens_per_s for _, gated in runs) >= sum(bare.tokens_per_s for bare, _ in runs)
    for bare, gated in runs:
        assert gated.tokens_per_s >= 0.94 * bare.tokens_per_s


@pytest.mark.parametrize("start", STARTS[:2])
def test_over_ten_minutes_the_engine_does_more_useful_work_and_every_p0_completes(start: int) -> None:
    """In two the ungated engine still has the start of the answers that it throws away later."""
    bare, gated = (played(600.0, gated=which, start=start) for which in (False, True))
    assert gated.tokens_per_s >= bare.tokens_per_s
    assert gated.preemptions <= 0.01 * bare.preemptions
    assert completed(gated.log, 0) == len(gated.log.of_band(0)) > 1000


def test_only_the_lower_bands_are_shed_and_for_no_other_reason(runs: list[tuple[Played, Played]]) -> None:
    for _, gated in runs:
        reasons = Counter((entry.request.band, entry.reason) for entry in gated.log.entries if entry.reason)
        assert set(reasons) == {(1, Reason.SHED), (2, Reason.SHED)}
        assert reasons[2, Reason.SHED] > 0.5 * len(gated.log.of_band(2))
        assert all(entry.outcome in (Outcome.COMPLETED, Outcome.REJECTED) for entry in gated.log.entries)


def test_the_load_is_what_it_says() -> None:
    """2.5 seconds of engine a second, and a full engine does one second of it a second."""
    load = kv_plan.requests(240.0)
    asked = [sum(ENGINE.cost_ms(r.prompt_tokens, r.output_tokens) for r in load if r.band == band) for band in range(3)]
    assert [ms / 240_000 for ms in asked] == pytest.approx(LOAD, rel=0.02)
    bare = played(240.0, gated=False)
    ended = [e.request for e in bare.log.entries if e.finished is not None and 60.0 < e.finished <= 240.0]
    assert sum(ENGINE.cost_ms(r.prompt_tokens, r.output_tokens) for r in ended) / 180_000 == pytest.approx(
        1.0, abs=0.07
    )
