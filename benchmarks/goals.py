"""The goals of the scheduler on the research workloads: calm, harvest, value, starvation, memory; and tenants.

The formulas are in ``tidegate.simulation.goals``; ``docs/explanation/goals.md`` explains them. The same seed gives the
same figures on every machine. ``python -m benchmarks goals`` takes a quarter of an hour;
TIDEGATE_GOAL_MINUTES sets the simulated length of each run (15), TIDEGATE_GOAL_HOURS that of ``shared-platform`` (2).
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from benchmarks import workloads
from benchmarks.workloads import SLOS, TRACES, engine, policy, workload
from tidegate.cli.report import verdict_sentence
from tidegate.cli.scenario import GatewayEstimator, load_scenario
from tidegate.core import Policy
from tidegate.simulation import Record
from tidegate.simulation.baselines import FIFO, PASSTHROUGH, STRICT
from tidegate.simulation.bound import value_bound
from tidegate.simulation.gaps import Starvation
from tidegate.simulation.goals import HARVEST_SLO, calm, harvest, memory, value
from tidegate.simulation.report import Report
from tidegate.simulation.run import TIDEGATE, gaps_of, run_one, run_scenario, starvation
from tidegate.simulation.scenario import Arrivals, EngineSpec, Kind, Scenario, Source
from tidegate.simulation.sources import Load

Row = tuple[str, str, str]
MINUTES = float(os.environ.get("TIDEGATE_GOAL_MINUTES", "15"))
HOURS = float(os.environ.get("TIDEGATE_GOAL_HOURS", "2"))

CALM = """
preset: flash-sale
policy:
  overtake_cap: 0.10
  sjf_aging: 0.02
  preempt_rate: 0
  bands:
    p1: {ceiling: 0.35, order: sjf}
    p2: {ceiling: 0.35, order: sjf}
"""
"""A seat for every p0 that may come; others start while two thirds of the seats are free, or by their floors.

Of those the shortest go first, so that the step that a p0 finds running is short.
"""
CALM_SEATS = 220
CALM_BUDGET = 3072
"""Tokens of a step: nearly every p0's prompt is computed in one or two."""

VALUE = """
preset: flash-sale
policy:
  overtake_cap: 0.10
  sjf_aging: 0.1
  bands:
    p0: {ttl: 800ms}
    p1: {order: sjf, ttl: 7s, shed_hopeless: false}
    p2: {order: sjf, ttl: 105s}
"""
"""Shorter first in all bands, nothing kept waiting beyond its use, nothing passed by age beyond the floors."""
VALUE_SEATS, VALUE_BUDGET = 345, 1472
"""As many as the cache takes, and steps as long as p0's time per token allows with so many."""
BURST = VALUE.replace("p0: {ttl: 800ms}", "p0: {ttl: 400ms}")
"""Where p0 itself comes in bunches: what waits that long would have its first token too late."""
BURST_SEATS, BURST_BUDGET = 64, 2048
"""So few that a bunch waits in the gateway, where the shorter go first, and is not late together in the engine."""
MOST_SEQUENCES = 512
"""Of engines with more than 256 seats."""
PLAIN_SEATS = 220
"""Of what runs beside it, on the engine as it comes."""

HARVEST = """
preset: flash-sale
policy:
  bands:
    p0: {reserve: 0}
    p2: {ceiling: 0.47}
"""
"""Summaries start while more than half of the seats are free."""
HARVEST_SEATS, HARVEST_BUDGET = 220, 4352
"""Steps in which the longest prompts of p0 (4,100 tokens) are computed at once."""

FREE = """
preset: flash-sale
policy:
  preempt_rate: 0
  bands:
    p0: {reserve: 0, ttl: 1h}
    p2: {kv_watermark: 0.02, kv_resume: 0.05}
"""
"""No targets: p0 goes first and may wait, and the engine is as full as it gets."""
FREE_SEATS = 256

MEMORY = """
preset: kv-guard
policy:
  bands:
    p0: {ttl: 60s}
    p1: {kv_watermark: 0.03, kv_resume: 0.04, when_saturated: queue}
    p2: {kv_watermark: 0.05, kv_resume: 0.06, when_saturated: queue, ceiling: 1}
"""
MEMORY_SEATS = 400


@dataclass(slots=True, frozen=True)
class Played:
    """One run: its records, its report, and the gaps of its bands."""

    scenario: Scenario
    records: list[Record]
    report: Report
    starvation: Starvation


def play(scenario: Scenario, run: str = TIDEGATE) -> Played:
    """Run a scenario once with lengths unknown, by its own policy or a baseline."""
    records: list[Record] = []
    gaps = gaps_of(scenario)
    report = run_one(scenario, Load(scenario), run, estimator=GatewayEstimator(), sink=records.append, gaps=gaps)
    return Played(scenario, records, report, starvation(gaps))


def without_preemption(rule: Policy) -> Policy:
    """Return the policy with the reserve alone."""
    return replace(rule, preempt_rate=Fraction(0))


def without_floors(rule: Policy) -> Policy:
    """Return the policy without floors, so that the lower bands may wait for ever: what the promise costs."""
    bands = tuple(replace(band, floor=Fraction(0)) for band in rule.bands)
    return replace(rule, bands=bands, overtake_cap=Fraction(0))


def one_flow(rule: Policy) -> Policy:
    """Return the policy without fair sharing between tenants: what fairness costs where short requests go first."""
    return replace(rule, max_flows=1)


def calm_rows() -> Iterator[Row]:
    """p0 at 40 % of capacity among three times the load, and alone."""
    rule, spec = policy(CALM, seats=CALM_SEATS), engine(token_budget=CALM_BUDGET, priority=True)
    alone = play(workload("rush", rule, load=3.0, minutes=MINUTES, bands=(0,), engine=spec))
    for name, run, used in (
        ("tidegate", TIDEGATE, spec),
        ("strict", STRICT, spec),
        ("the engine's own priority", PASSTHROUGH, spec),
        ("FCFS", PASSTHROUGH, engine()),
    ):
        among = play(workload("rush", rule, load=3.0, minutes=MINUTES, engine=used), run)
        found = calm(among.records, alone.records)
        wait = f"wait p99 {found.wait_s * 1e3:.0f} ms"
        figure = f"{found.ratio:.2f} ({found.among_s:.3f} s / {found.alone_s:.3f} s); {wait}"
        yield f"calm, rush at 3 times: {name}", figure, "≤ 1.25; ≤ 10 ms" if run == TIDEGATE else ""


def harvest_scenario(rule: Policy, spec: EngineSpec) -> Scenario:
    """Return p0 at 40 % of capacity, and summaries without end."""
    base = workload("rush", rule, minutes=MINUTES, bands=(0,), engine=spec)
    path = TRACES / f"{workloads.ARXIV}.csv.gz"
    endless = Source("p2", Arrivals(Kind.ENDLESS), trace=path, band=2, window=256, patient=True)
    return replace(base, sources=(*base.sources, endless), drain_s=0.0)


def harvest_rows() -> Iterator[Row]:
    """Offline tokens beside a p0 that keeps its targets, of those without any targets."""
    rule = policy(HARVEST, seats=HARVEST_SEATS)
    spec = engine(token_budget=HARVEST_BUDGET, priority=True)
    free = play(harvest_scenario(policy(FREE, seats=FREE_SEATS), engine()))
    runs = {
        "seats kept free alone": play(harvest_scenario(without_preemption(rule), spec)),
        "with preemption": play(harvest_scenario(rule, spec)),
        "no targets": free,
    }
    for name, played in runs.items():
        found = harvest(played.records, free.records)
        targets = f"{HARVEST_SLO.ttft_s:g} s, {HARVEST_SLO.tpot_s:g} s/token"
        goal = "≥ 0.95; ≥ 99 %" if played is not free else ""
        yield f"harvest: {name}", f"{found.part:.3f}; p0 within {targets}: {found.kept:.1%}", goal


def value_rows() -> Iterator[Row]:
    """Value in time over the clairvoyant bound, and with it the gaps that starvation is judged by."""
    gaps: list[tuple[str, float, tuple[int | None, ...]]] = []
    for name, load in (("rush", 2.0), ("rush", 2.5), ("rush", 3.0), ("burst", 2.5), ("memory", 2.5), ("agents", 2.5)):
        burst = name == "burst"
        rule = policy(BURST, seats=BURST_SEATS) if burst else policy(VALUE, seats=VALUE_SEATS)
        budget = BURST_BUDGET if burst else VALUE_BUDGET
        spec = engine(token_budget=budget, max_sequences=MOST_SEQUENCES, priority=True)
        scenario = workload(name, without_preemption(rule), load=load, minutes=MINUTES, engine=spec)
        bound = value_bound(scenario, Load(scenario))
        parts = []
        strict = replace(scenario, policy=policy("preset: strict", seats=PLAIN_SEATS), engines=(engine(),))
        for which, run in ((scenario, TIDEGATE), (strict, TIDEGATE), (strict, PASSTHROUGH)):
            played = play(which, run)
            parts.append(value(played.records, SLOS, bound or 0.0))
            if which is scenario:
                gaps.append((scenario.name, played.starvation.ratio, played.starvation.least))
        yield f"value, {scenario.name}", "{:.3f}; strict {:.3f}, FCFS {:.3f}".format(*parts), "≥ 0.90"
        if (name, load) == ("rush", 2.5):
            for what, other in (("p2 without its floor", without_floors(rule)), ("one flow for all", one_flow(rule))):
                freed = play(replace(scenario, policy=without_preemption(other)))
                yield f"  the same, {what}", f"{value(freed.records, SLOS, bound or 0.0):.3f}", ""
    for name, ratio, least in gaps:
        fewest = "never so long" if least[2] is None else f"{least[2]} of 100"
        yield f"starvation, {name}: gap / bound; p2", f"{ratio:.2f}; {fewest}", "≤ 1; ≥ 5 of 100"


def memory_rows() -> Iterator[Row]:
    """Use and waste of the KV cache where memory is the limit."""
    for name in ("memory", "agents"):
        spec = engine(max_sequences=MOST_SEQUENCES)
        scenario = workload(name, policy(MEMORY, seats=MEMORY_SEATS), minutes=MINUTES, engine=spec)
        for run in (TIDEGATE, PASSTHROUGH):
            played = play(replace(scenario, drain_s=0.0), run)
            found = memory(played.records, played.report.kv_mean or 0.0)
            figure = f"use {found.use:.1%}; thrown away {found.wasted:.2%}; p0 refused {found.refused}"
            told = "" if run == TIDEGATE else f" ({run})"
            yield f"memory, {scenario.name}{told}", figure, "" if told else "≥ 90 %; ≤ 0.1 %; none"


def tenants_rows() -> Iterator[Row]:
    """How long tenants wait that ask for less than an equal part, beside some that ask for much more."""
    scenario = load_scenario("tenants", traces=(TRACES,))
    for run in (TIDEGATE, FIFO):
        played = play(scenario, run)
        asked, served = Counter[str](), 0
        for record in played.records:
            asked[record.tenant] += record.prompt_tokens + record.output_tokens
            served += record.computed_tokens
        modest = {tenant for tenant, tokens in asked.items() if tokens < served / len(asked)}
        waits = sorted(
            scenario.until_s - record.arrival_s if record.wait_s is None else record.wait_s
            for record in played.records
            if record.tenant in modest
        )
        figure = f"p99 {waits[ceil(0.99 * len(waits)) - 1]:.2f} s"
        told = f"tenants: wait of the {len(modest)} of {len(asked)} that ask for less than an equal part"
        yield told if run == TIDEGATE else f"  the same, {run}", figure, ""
        if run == TIDEGATE:
            yield "starvation, tenants: gap / bound", f"{played.starvation.ratio:.2f}", "≤ 1"


def platform_rows() -> Iterator[Row]:
    """The claims of ``shared-platform`` over some hours."""
    scenario = replace(load_scenario("shared-platform"), duration_s=HOURS * 3600.0)
    result = run_scenario(scenario, estimator=GatewayEstimator, baselines=[])
    for verdict in result.verdicts:
        yield f"shared-platform, {HOURS:g} h", verdict_sentence(verdict), "holds" if verdict.holds else "FAILS"


PARTS = {
    "calm": calm_rows,
    "harvest": harvest_rows,
    "value": value_rows,
    "memory": memory_rows,
    "tenants": tenants_rows,
    "platform": platform_rows,
}


def run(wanted: tuple[str, ...] = tuple(PARTS)) -> list[Row]:
    """Measure; without the traces say so in place of figures."""
    if not TRACES.is_dir():
        return [("goals", f"no traces in {TRACES}: set TIDEGATE_TRACES to their folder", "")]
    return [row for name in wanted for row in PARTS[name]()]


if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        for row in PARTS[part]():
            print(" | ".join(row), flush=True)
