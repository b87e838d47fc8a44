"""A scenario as plain values: engines, policy, sources, targets, claims. Everything that a run depends on.

The simulation imports the core alone (an import contract), so it knows no YAML and no schema: ``cli.scenario`` reads
files, with the very schema of the product for the policy, and makes these values. Tests, benches and the tuner may as
well write them by hand. All times are seconds, lengths tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from tidegate.core import Policy
from tidegate.simulation.profiles import DEFAULT_PROFILE
from tidegate.simulation.scraping import Scrape
from tidegate.simulation.sequences import WaitingOrder

NEVER = float("inf")

EXACT: Literal["exact"] = "exact"


@dataclass(slots=True, frozen=True)
class EngineSpec:
    """One engine behind one backend of the policy; ``None`` leaves what the profile says.

    Attributes:
        backend: name of the backend in the policy.
        profile: cost profile.
        kv_tokens, max_sequences: of the profile unless given.
        token_budget: most tokens computed in a step.
        order: of the engine's own waiting list.
        noise: standard deviation of a step's time, as a part of it.
        http_s: between dispatch and the engine's waiting list.
    """

    backend: str
    profile: str = DEFAULT_PROFILE
    kv_tokens: int | None = None
    max_sequences: int | None = None
    token_budget: int = 2048
    order: WaitingOrder = WaitingOrder.FCFS
    noise: float = 0.08
    http_s: float = 0.005


class Kind(StrEnum):
    """When the requests of a source come."""

    TRACE = "trace"  # at the times of its trace
    FIXED = "fixed"  # at equal gaps
    POISSON = "poisson"
    GAMMA = "gamma"
    BATCH = "batch"  # many at once
    ENDLESS = "endless"  # there is always one more


@dataclass(slots=True, frozen=True)
class Arrivals:
    """When the requests of a source come.

    Attributes:
        kind: the law.
        rate: per second, for ``FIXED``, ``POISSON``, ``GAMMA``.
        cv: coefficient of variation of the gaps, for ``GAMMA``.
        rows: at once, for ``BATCH``.
        every_s: between two batches; ``inf``: one batch.
        speed: how many times faster than its trace, for ``TRACE``.
    """

    kind: Kind
    rate: float = 1.0
    cv: float = 1.0
    rows: int = 1
    every_s: float = NEVER
    speed: float = 1.0


@dataclass(slots=True, frozen=True)
class Length:
    """A law of token counts: log-normal by ``median`` and ``p99``, or uniform from ``low`` to ``high``, which bound."""

    low: int = 1
    high: int = 1_000_000
    median: float | None = None
    p99: float | None = None


@dataclass(slots=True, frozen=True)
class Rule:
    """Gives ``band`` to requests within all its bounds; ``tenants`` match exactly, or as a prefix before ``*``."""

    band: int
    tenants: tuple[str, ...] = ()
    prompt: tuple[int, int] = (0, 1_000_000_000)
    output: tuple[int, int] = (0, 1_000_000_000)


@dataclass(slots=True, frozen=True)
class Source:
    """One part of the load.

    Attributes:
        name: unique in the scenario; seeds its chance and stands in ``Record.source``.
        arrivals: when its requests come.
        trace: file of lengths, tenants and (for ``TRACE``) times; ``None``: the laws ``prompt`` and ``output``.
        prompt, output: laws of lengths.
        band: of requests that no rule and no column of the trace places; ``None``: all are placed by those.
        rules: the first that matches places a request.
        tenant: who pays; empty: the trace's tenants, or the name of the source.
        pool: name of the pool.
        start_s, stop_s: its requests come in [start, stop).
        shift_s: the trace begins at this time of its own.
        repeat: after its last row, a trace begins again.
        limit: most requests.
        longest: rows of the trace with more tokens, prompt and answer together, are left out.
        window: most of its requests that wait in the gateway; the others are kept outside, as rows of a job are.
        patient: work of a job, which waits where other work is shed.
        patience_s: its clients leave then.
        max_tokens: what clients say of the longest answer: nothing, a number, or exactly the answer's length.
    """

    name: str
    arrivals: Arrivals
    trace: Path | None = None
    prompt: Length = Length(100, 100)
    output: Length = Length(100, 100)
    band: int | None = None
    rules: tuple[Rule, ...] = ()
    tenant: str = ""
    pool: str = "m"
    start_s: float = 0.0
    stop_s: float = NEVER
    shift_s: float = 0.0
    repeat: bool = False
    limit: int | None = None
    longest: int | None = None
    window: int | None = None
    patient: bool = False
    patience_s: float = NEVER
    max_tokens: int | Literal["exact"] | None = None


@dataclass(slots=True, frozen=True)
class Slo:
    """What counts as good service in a band: every target that is given has to be met.

    Attributes:
        ttft_s: arrival to first token.
        tpot_s: mean time per output token after the first.
        end_s, per_token_s: the answer is complete ``end_s + per_token_s * output_tokens`` after arrival.
        value: of a token of this band, beside the others; an answer is worth ``value * (prompt + 2 * output)``.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    end_s: float | None = None
    per_token_s: float = 0.0
    value: float = 1.0


@dataclass(slots=True, frozen=True)
class Edge:
    """What the gateway does to a request of a band before it is scheduled.

    Attributes:
        max_input_tokens: a longer prompt runs one band lower.
        max_output_tokens: a longer answer is cut.
    """

    max_input_tokens: int | None = None
    max_output_tokens: int | None = None


class Split(StrEnum):
    """Which of several gateways a request comes to."""

    BANDS = "bands"  # the hardest: all of the highest band to one, all of the third and below to another
    TURN = "turn"  # one after the other


@dataclass(slots=True, frozen=True)
class ReplicaSpec:
    """Several gateways in place of one.

    Attributes:
        count: how many.
        one_way_s: time of a message between a gateway and the store.
        split: see ``Split``.
    """

    count: int
    one_way_s: float = 0.0005
    split: Split = Split.BANDS


@dataclass(slots=True, frozen=True)
class Scenario:
    """Everything that a run depends on, the seed included.

    Attributes:
        name: for titles.
        description: one sentence or two for the reader of a report.
        policy: what decides; its backends are those of ``engines``.
        engines: one for each backend.
        sources: the load.
        duration_s: requests come until then.
        drain_s: how long the run goes on after that for what is open; ``inf``: until all has ended.
        seed: of all chance.
        slos: by band; empty: the policy's own targets, valued by ``share``.
        edges: by band; empty: nothing is cut or lowered.
        claims: sentences such as ``p0.wait_p99 <= 50ms`` (see ``claims``).
        baselines: names of what runs beside it on the same arrivals (see ``baselines``).
        scrape: how the engines' metrics pages are read; ``None``: nobody does.
        known_lengths: the scheduler is told true lengths instead of estimates.
        replicas: gateways that share the pools; ``None``: one alone. Baselines are always alone.
    """

    name: str
    policy: Policy
    engines: tuple[EngineSpec, ...]
    sources: tuple[Source, ...]
    duration_s: float
    description: str = ""
    drain_s: float = 0.0
    seed: int = 0
    slos: tuple[Slo, ...] = ()
    edges: tuple[Edge, ...] = ()
    claims: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    scrape: Scrape | None = field(default_factory=Scrape)
    known_lengths: bool = False
    replicas: ReplicaSpec | None = None

    @property
    def bands(self) -> tuple[str, ...]:
        """Band names, highest first."""
        return tuple(band.name for band in self.policy.bands)

    @property
    def until_s(self) -> float:
        """When the run is cut."""
        return self.duration_s + self.drain_s

    def slo(self, band: int) -> Slo:
        """The targets of a band."""
        if self.slos:
            return self.slos[band]
        spec = self.policy.bands[band]
        return Slo(spec.ttft_slo_s, spec.tpot_slo_s, value=float(spec.share))
