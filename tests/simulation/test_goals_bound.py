"""The clairvoyant bound of a whole scenario: above every run, and by hand where the answer is plain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.core import BackendSpec, Policy, PoolSpec
from tidegate.simulation import Record, profile_named
from tidegate.simulation.baselines import PASSTHROUGH, STRICT
from tidegate.simulation.bound import longest_s, value_bound
from tidegate.simulation.goals import value
from tidegate.simulation.run import TIDEGATE, run_one, run_scenario
from tidegate.simulation.scenario import Arrivals, EngineSpec, Kind, Length, Scenario, Slo, Source
from tidegate.simulation.sources import Load

SLOS = (
    Slo(ttft_s=1.0, end_s=2.0, per_token_s=0.05, value=8),
    Slo(ttft_s=10.0, end_s=20.0, per_token_s=0.1, value=2),
    Slo(ttft_s=120.0, end_s=300.0, per_token_s=0.2, value=1),
)
LEAST_S = profile_named("h100-8b").least_s(1000, 100)


def scenario(*sources: Source, duration_s: float = 20.0, drain_s: float = 10.0) -> Scenario:
    policy = Policy(pools=(PoolSpec("m", (BackendSpec("b", 128),)),))
    engines = (EngineSpec("b", noise=0.0),)
    return Scenario("s", policy, engines, sources, duration_s, drain_s=drain_s, slos=SLOS, seed=4)


def source(name: str, band: int, arrivals: Arrivals) -> Source:
    return Source(name, arrivals, prompt=Length(1000, 1000), output=Length(100, 100), band=band)


def test_what_fits_is_worth_its_value() -> None:
    some = scenario(source("a", 0, Arrivals(Kind.FIXED, rate=2.0)), source("c", 2, Arrivals(Kind.BATCH, rows=5)))
    assert value_bound(some, Load(some)) == pytest.approx((40 * 8 + 5) * 1200)


def test_a_long_scenario_may_go_without() -> None:
    some = scenario(source("a", 0, Arrivals(Kind.FIXED, rate=2.0)))
    assert value_bound(some, Load(some), most=39) is None
    assert value_bound(some, Load(some), most=40) == value_bound(some, Load(some))


def test_reports_say_how_much_of_the_bound_each_run_got() -> None:
    some = scenario(source("a", 0, Arrivals(Kind.FIXED, rate=2.0)))
    result = run_scenario(replace(some, claims=("all.value_of_bound >= 0.99",)), baselines=[STRICT])
    assert {name: report.extra["value_of_bound"] for name, report in result.runs.items()} == {
        TIDEGATE: 1.0,
        STRICT: 1.0,
    }
    assert result.holds


def test_the_cut_of_the_run_is_a_deadline() -> None:
    rows = 10_000
    flood = scenario(source("c", 2, Arrivals(Kind.BATCH, rows=rows)))
    assert value_bound(flood, Load(flood)) == pytest.approx(30 / LEAST_S * 1200, rel=1e-6)


def test_an_endless_source_fills_what_is_left() -> None:
    both = scenario(source("a", 0, Arrivals(Kind.FIXED, rate=2.0)), source("e", 2, Arrivals(Kind.ENDLESS)))
    left_s = 30 - 40 * LEAST_S
    assert value_bound(both, Load(both)) == pytest.approx((40 * 8 + left_s / LEAST_S) * 1200, rel=1e-6)


def test_a_shared_beginning_is_computed_once(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_ms,prompt_tokens,output_tokens,prefix_blocks_512\n" + "0,2048,1,1-4\n" * 200)
    flood = scenario(replace(source("c", 0, Arrivals(Kind.TRACE)), trace=trace))
    profile = profile_named("h100-8b")
    first, other = profile.least_s(2048, 1), profile.least_s(2048, 1, cached=2047)
    assert first + 199 * other < 1.0  # so all fit into the second that they have
    assert value_bound(flood, Load(flood)) == pytest.approx(200 * 8 * 2050)


@pytest.mark.parametrize(
    ("slo", "tokens", "seconds"),
    [
        (Slo(), 10, float("inf")),
        (Slo(ttft_s=1.0), 10, float("inf")),
        (Slo(ttft_s=1.0), 1, 1.0),
        (Slo(ttft_s=1.0, tpot_s=0.1), 11, 2.0),
        (Slo(ttft_s=9.0, tpot_s=0.1, end_s=2.0, per_token_s=0.5), 2, 3.0),
    ],
)
def test_the_latest_end_that_may_be_in_time(slo: Slo, tokens: int, seconds: float) -> None:
    assert longest_s(slo, tokens) == pytest.approx(seconds)


@pytest.mark.parametrize("run", [TIDEGATE, STRICT, PASSTHROUGH])
def test_no_run_gets_more(run: str) -> None:
    """Far more than the engine can do, and lengths of all kinds: little of the bound is lost to fluid work."""
    wide = {"prompt": Length(1, 6000, 600, 5000), "output": Length(1, 1500, 80, 1000)}
    load = [
        Source(f"s{band}", Arrivals(Kind.POISSON, rate=rate), band=band, **wide)  # type: ignore[arg-type]
        for band, rate in enumerate((6.0, 12.0, 18.0))
    ]
    crowded = scenario(*load, duration_s=40.0, drain_s=5.0)
    rows: list[Record] = []
    run_one(crowded, Load(crowded), run, sink=rows.append)
    part = value(rows, SLOS, value_bound(crowded, Load(crowded)) or 0.0)
    assert 0.0 < part < 1.0
    if run == TIDEGATE:
        assert part > 0.5
