"""Runs a scenario: the policy by the scheduler of the gateway, and baselines on the same arrivals.

The scheduler is that of ``tidegate.core``, as in the gateway; nothing of it is copied here (a test holds that).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tidegate.core import AUTO, Policy, Stoppable, WorkEstimate
from tidegate.simulation.arrivals import Request
from tidegate.simulation.baselines import (
    BARE_AGING,
    BASELINES,
    FIFO,
    PASSTHROUGH,
    STRICT,
    bare_aging_like,
    fifo_like,
    strict_like,
    ungated_like,
)
from tidegate.simulation.bound import MOST, value_bound
from tidegate.simulation.claims import Claim, Verdict, judge, parse_claim
from tidegate.simulation.engine_model import EngineModel
from tidegate.simulation.gaps import Gaps, Starvation
from tidegate.simulation.log import Fleeting
from tidegate.simulation.metering import MeteredServer
from tidegate.simulation.records import Record, Sink
from tidegate.simulation.replicas import Replicas, by_band, in_turn
from tidegate.simulation.report import Report, ReportFold
from tidegate.simulation.scenario import EngineSpec, Scenario, Split
from tidegate.simulation.series import CELLS
from tidegate.simulation.sources import Load, Pump
from tidegate.simulation.world import SchedulerLike, World, known_lengths

TIDEGATE = "tidegate"
"""Name of the run of the scenario's own policy."""

RUNS = (TIDEGATE, *BASELINES)

Progress = Callable[[str, float], None]
"""Told the name of the run and the virtual time that it has come to, now and then."""

_TELL_EVERY = 256
_MANY = 64  # seats


class Estimator(Protocol):
    """Guesses the work of requests as they come, in order, and learns from what became of them."""

    def predict(self, request: Request) -> WorkEstimate:
        """Return the estimate of the next request; called once for each, in order of their record's id."""
        ...

    def learn(self, record: Record) -> None:
        """Take in how a request ended, whatever the outcome."""
        ...


class Knowing:
    """Knows the lengths."""

    def predict(self, request: Request) -> WorkEstimate:
        """See ``Estimator``."""
        return known_lengths(request)

    def learn(self, record: Record) -> None:
        """See ``Estimator``."""


@dataclass(slots=True, frozen=True)
class Result:
    """A scenario's runs, the policy's own first, and what its claims came to."""

    scenario: Scenario
    runs: Mapping[str, Report]
    verdicts: tuple[Verdict, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return all(verdict.holds for verdict in self.verdicts)


def run_scenario(
    scenario: Scenario,
    *,
    estimator: Callable[[], Estimator] = Knowing,
    baselines: Sequence[str] | None = None,
    progress: Progress | None = None,
    sink: Sink | None = None,
) -> Result:
    """Run a scenario and its baselines, and judge its claims.

    Args:
        scenario: what to run.
        estimator: makes what guesses lengths, anew for each run; not asked where the scenario knows lengths.
        baselines: in place of the scenario's; those that a claim speaks of run in any case.
        progress: is told how far it is.
        sink: takes the records of the policy's own run, too.

    Raises:
        ClaimError: a claim that cannot be read; nothing has run then.
        TraceError: a trace that cannot be used.
    """
    claims = claims_of(scenario)
    load = Load(scenario)
    wanted = scenario.baselines if baselines is None else baselines
    spoken_of = {run for claim in claims for run in claim.runs}
    names = [TIDEGATE, *(name for name in BASELINES if name in wanted or name in spoken_of)]
    make = Knowing if scenario.known_lengths else estimator
    gaps = gaps_of(scenario)
    runs = {}
    for name in names:
        own, counted = (sink, gaps) if name == TIDEGATE else (None, None)
        runs[name] = run_one(scenario, load, name, estimator=make(), progress=progress, sink=own, gaps=counted)
    bound = value_bound(scenario, load, most=MOST)
    for name, report in runs.items():
        extra = {"value_of_bound": report.total.value / bound} if bound else {}
        if name == TIDEGATE:
            extra["starvation"] = starvation(gaps).ratio
        runs[name] = replace(report, extra=extra)
    return Result(scenario, runs, tuple(judge(claim, runs) for claim in claims))


def gaps_of(scenario: Scenario) -> dict[str, Gaps]:
    """Return what counts the gaps of a scenario's pools; of seats that move, as of a pool that may reserve some."""
    return {
        pool.name: Gaps(
            scenario.policy, seats=sum(_MANY if spec.seats == AUTO else spec.seats for spec in pool.backends)
        )
        for pool in scenario.policy.pools
    }


def starvation(gaps: Mapping[str, Gaps]) -> Starvation:
    """Return the worst of all pools."""
    found = [each.found() for each in gaps.values()]
    least = zip(*(each.least for each in found), strict=True)
    known = [[count for count in counts if count is not None] for counts in least]
    return Starvation(max((each.ratio for each in found), default=0.0), tuple(min(c, default=None) for c in known))


def claims_of(scenario: Scenario) -> tuple[Claim, ...]:
    """Read the claims.

    Raises:
        ClaimError: one cannot be read.
    """
    groups = (*scenario.bands, *(source.name for source in scenario.sources))
    return tuple(parse_claim(text, groups=groups, runs=RUNS) for text in scenario.claims)


def run_one(
    scenario: Scenario,
    load: Load,
    name: str = TIDEGATE,
    *,
    estimator: Estimator | None = None,
    progress: Progress | None = None,
    sink: Sink | None = None,
    gaps: Mapping[str, Gaps] | None = None,
) -> Report:
    """Run one of ``RUNS`` once and return its report; ``gaps`` are counted on the way."""
    estimator = estimator or Knowing()
    fold = ReportFold(scenario)
    engines = {spec.backend: engine(spec, scenario, number) for number, spec in enumerate(scenario.engines)}
    gate = gate_named(name, scenario, {backend: server.model.max_sequences for backend, server in engines.items()})
    queues_jobs = name not in (FIFO, PASSTHROUGH)
    pumps = {pump.source.name: pump for pump in (load.pumps() if queues_jobs else load.endless())}
    arrivals = load.open() if queues_jobs else load.whole()

    def ended(record: Record) -> None:
        estimator.learn(record)
        fold.add(record)
        if sink is not None:
            sink(record)
        pump = pumps.get(record.source)
        if pump is not None and record.outcome is not None and (record.dispatched_s is None or not queues_jobs):
            refill(pump, record.finished_s or 0.0)

    def started(now: float, request: Request) -> None:
        pump = pumps.get(request.source)
        if pump is not None and queues_jobs:
            refill(pump, now)

    def refill(pump: Pump, now: float) -> None:
        pump.leave()
        pump.fill(now, world.offer)

    world = World(
        gate,
        engines,
        _told(arrivals, name, progress),
        estimate=estimator.predict,
        scrape=scenario.scrape,
        sink=ended,
        started=started if pumps else None,
        log=Fleeting(),
        stoppable=Stoppable.ALWAYS,
        gaps=gaps,
    )
    for pump in pumps.values():
        pump.fill(pump.source.start_s, world.offer)
    log = world.run(scenario.until_s)
    end = min(scenario.until_s, max(log.ended_at, min(scenario.duration_s, scenario.until_s)))
    return fold.close(name, end, [server.metered(backend, end) for backend, server in engines.items()])


def engine(spec: EngineSpec, scenario: Scenario, number: int) -> MeteredServer:
    """Build the engine of a spec, idle; ``number`` keeps the noise of several apart."""
    model = EngineModel(
        spec.profile,
        kv_tokens=spec.kv_tokens,
        max_sequences=spec.max_sequences,
        token_budget=spec.token_budget,
        order=spec.order,
        noise=spec.noise,
        seed=scenario.seed * 1_000_003 + number,
    )
    return MeteredServer(model, cell_s=scenario.duration_s / CELLS, http_s=spec.http_s)


def gate_named(name: str, scenario: Scenario, engine_seats: Mapping[str, int]) -> SchedulerLike | Policy:
    """Return what decides in the run of that name."""
    policy = scenario.policy
    gates: dict[str, Callable[[], SchedulerLike | Policy]] = {
        TIDEGATE: lambda: _shared(scenario),
        FIFO: lambda: fifo_like(policy, engine_seats),
        PASSTHROUGH: lambda: ungated_like(policy),
        STRICT: lambda: strict_like(policy),
        BARE_AGING: lambda: bare_aging_like(policy),
    }
    return gates[name]()


def _shared(scenario: Scenario) -> SchedulerLike | Policy:
    """Return the scheduler of the scenario's own run: that of several gateways where there are some."""
    spec = scenario.replicas
    if spec is None:
        return scenario.policy
    place = by_band(spec.count) if spec.split is Split.BANDS else in_turn(spec.count)
    return Replicas(scenario.policy, spec.count, one_way_s=spec.one_way_s, place=place, seed=scenario.seed)


def _told(arrivals: Iterable[Request], name: str, progress: Progress | None) -> Iterator[Request]:
    for number, request in enumerate(arrivals):
        if progress is not None and number % _TELL_EVERY == 0:
            progress(name, request.at)
        yield request
