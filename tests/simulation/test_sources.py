"""Sources become requests: the same seed gives the same ones, bands are laid over, pumps keep a window."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidegate.core import BackendSpec, Policy, PoolSpec
from tidegate.simulation import Request, TraceError
from tidegate.simulation.scenario import Arrivals, Edge, EngineSpec, Kind, Length, Rule, Scenario, Source
from tidegate.simulation.sources import Load

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 8),)),))
POISSON = Source("a", Arrivals(Kind.POISSON, rate=20), prompt=Length(1, 4000, 100, 900), output=Length(5, 9), band=1)


def scenario(*sources: Source, duration_s: float = 60.0, **more: Any) -> Scenario:
    return Scenario("s", POLICY, (EngineSpec("b"),), sources, duration_s, **more)


def opened(*sources: Source, **more: Any) -> list[Request]:
    return list(Load(scenario(*sources, **more)).open())


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    rows = [(0, 10, 1, "a"), (1000, 900, 2, "b"), (2500, 30, 3, "b2"), (4000, 40, 900, "c")]
    text = "arrival_ms,prompt_tokens,output_tokens,tenant\n" + "".join(
        f"{at},{p},{o},{name}\n" for at, p, o, name in rows
    )
    path.write_text(text)
    return path


def test_the_same_seed_gives_the_same_requests_and_another_source_changes_none() -> None:
    alone = opened(POISSON, seed=3)
    other = replace(POISSON, name="b", tenant="u")
    assert alone == opened(POISSON, seed=3) == [r for r in opened(other, POISSON, seed=3) if r.source == "a"]
    assert alone != opened(POISSON, seed=4)
    assert len(alone) == pytest.approx(1200, rel=0.1)
    assert statistics.median(r.prompt_tokens for r in alone) == pytest.approx(100, rel=0.15)
    assert 700 < sorted(r.prompt_tokens for r in alone)[int(0.99 * len(alone))] < 1200
    assert {r.output_tokens for r in alone} == {5, 6, 7, 8, 9}
    assert {(r.band, r.tenant) for r in alone} == {(1, "a")}


def test_a_trace_keeps_its_times_by_speed_and_begins_where_it_is_told(trace: Path) -> None:
    source = Source("t", Arrivals(Kind.TRACE, speed=2), trace=trace, band=2, start_s=10)
    assert [r.at for r in opened(source)] == [10.0, 10.5, 11.25, 12.0]
    assert [r.tenant for r in opened(source)] == ["a", "b", "b2", "c"]
    assert [r.at for r in opened(replace(source, shift_s=1.0))] == [10.0, 10.75, 11.5]
    assert [r.at for r in opened(replace(source, stop_s=11.0))] == [10.0, 10.5]
    assert len(opened(replace(source, limit=3))) == 3
    assert [r.prompt_tokens for r in opened(replace(source, longest=100))] == [10, 30]


def test_a_repeated_trace_goes_round_and_holds_each_row_as_often(trace: Path) -> None:
    source = Source("t", Arrivals(Kind.TRACE), trace=trace, band=0, shift_s=2.0, repeat=True)
    found = opened(source, duration_s=15.0)  # the last row to the first of the next round: a mean gap
    assert [r.at for r in found] == [0.5, 2.0, 3.0, 4.0, 5.5, 7.0, 8.0, 9.0, 10.5, 12.0, 13.0, 14.0]
    assert [r.prompt_tokens for r in found] == [30, 40, 10, 900] * 3


def test_bands_by_rule_then_by_the_trace_then_by_the_source(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,tenant,band\n10,1,shop-a,p2\n10,1,x,p1\n500,9,x,\n10,9,y,\n")
    rules = (Rule(0, ("shop-*",)), Rule(1, ("x",), (400, 1000), (0, 9)))
    source = Source("t", Arrivals(Kind.TRACE), trace=path, band=2, rules=rules)
    assert [r.band for r in opened(source)] == [0, 1, 1, 2]
    with pytest.raises(TraceError, match="source 't': expected a band for every request"):
        opened(replace(source, band=None))


def test_the_gateway_lowers_long_prompts_and_cuts_long_answers(trace: Path) -> None:
    source = Source("t", Arrivals(Kind.TRACE), trace=trace, band=0)
    found = opened(source, edges=(Edge(100, 2), Edge(None, 50), Edge()))
    assert [(r.band, r.output_tokens, r.max_tokens) for r in found] == [(0, 1, 2), (1, 2, 50), (0, 2, 2), (0, 2, 2)]
    exact = opened(replace(source, max_tokens="exact"))
    assert [r.max_tokens for r in exact] == [r.output_tokens for r in exact] == [1, 2, 3, 900]


def test_block_numbers_of_different_files_are_different_blocks(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("prompt_tokens,output_tokens,prefix_blocks_512\n1030,5,7-8\n1030,5,7 9\n")
    found = opened(*(Source(n, Arrivals(Kind.TRACE), trace=tmp_path / n, band=0) for n in ("a.csv", "b.csv")))
    first = {r.chain[0] for r in found}
    assert len(found) == 4
    assert len(first) == len({r.affinity for r in found}) == 2
    assert 0 not in {r.affinity for r in found}


def test_a_request_that_fits_no_engine_is_told(trace: Path) -> None:
    small = replace(
        scenario(Source("t", Arrivals(Kind.TRACE), trace=trace, band=0)), engines=(EngineSpec("b", kv_tokens=512),)
    )
    with pytest.raises(TraceError, match=r"source 't': expected at most 512 tokens .* got a request of 902"):
        list(Load(small).open())


def test_an_empty_trace_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens\n")
    with pytest.raises(TraceError, match="expected rows, none is left"):
        Load(scenario(Source("t", Arrivals(Kind.TRACE), trace=path, band=0)))


def test_a_pump_offers_as_many_as_its_window_has_room_for() -> None:
    source = Source("jobs", Arrivals(Kind.BATCH, rows=5, every_s=30.0), band=2, window=3, patient=True, start_s=2.0)
    load = Load(scenario(source))
    assert list(load.open()) == []
    assert [r.at for r in load.whole()] == [2.0] * 5 + [32.0] * 5
    (pump,) = load.pumps()
    offered: list[tuple[float, float]] = []
    for now in (0.0, 10.0, 11.0, 12.0):
        pump.fill(now, lambda at, request: offered.append((at, request.at)))
        pump.leave()
    assert offered == [(2.0, 2.0)] * 3 + [(10.0, 2.0), (11.0, 2.0), (32.0, 32.0)]


def test_an_endless_source_stops_when_the_scenario_does() -> None:
    (pump,) = Load(scenario(Source("e", Arrivals(Kind.ENDLESS), band=2, window=2), duration_s=5.0)).pumps()
    offered: list[tuple[float, float]] = []
    for now in (0.0, 1.5, 4.9, 5.0, 6.0):
        pump.fill(now, lambda at, request: offered.append((at, request.at)))
        pump.leave()
    assert offered == [(0.0, 0.0), (0.0, 0.0), (1.5, 1.5), (4.9, 4.9)]  # each counts from when it is offered


def test_gamma_and_fixed_arrivals() -> None:
    fixed = opened(Source("f", Arrivals(Kind.FIXED, rate=4), band=0), duration_s=2.0)
    assert [r.at for r in fixed] == [n / 4 for n in range(8)]
    bursty = opened(Source("g", Arrivals(Kind.GAMMA, rate=20, cv=4), band=0), duration_s=2000.0)
    gaps = [after.at - before.at for before, after in itertools.pairwise(bursty)]
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(4, rel=0.15)
