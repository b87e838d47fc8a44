"""The load of ``kv_pressure`` and the same run in virtual time.

Three bands laid over lengths and arrivals of a reasoning model's service (``tidegate/cli/data``), 2.5 times what the
engine can do, before an engine whose KV pool is the limit: it holds some 60 of these requests at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tidegate import cli
from tidegate.classify import ParsedBody, Route
from tidegate.classify.estimates import LearnedPredictor, Quantiles
from tidegate.config import parse_settings
from tidegate.core import Outcome, Policy, WorkEstimate
from tidegate.simulation import (
    EngineModel,
    EngineServer,
    Log,
    Request,
    Scrape,
    TraceRow,
    Ungated,
    World,
    profile_named,
    read_trace,
)
from tidegate.simulation.world import SchedulerLike

TRACE = Path(cli.__file__).parent / "data" / "servegen_deepseek_r1_3000.csv.gz"
MAX_SEQUENCES, NOISE = 256, 0.08
SEATS = 256
LOAD = (0.3, 0.4, 1.8)
"""Engine time that each band asks for, as a multiple of what there is; together 2.5."""

P0_PROMPT, P0_OUTPUT = 8192, 512
"""What the preset takes as p0: a longer prompt goes one band lower, a longer answer is cut."""

MOST = 30_000
"""Longest prompt and answer together: half of the pool."""

SETTINGS = """\
preset: kv-guard
gateway: {{listen: "127.0.0.1:0", drain_timeout: 1s}}
control: {{listen: "127.0.0.1:0"}}
models:
  - name: m
    backends: [{{name: b, url: "{url}", engine: tidegate, seats: {seats}}}]
tenants:
{tenants}
"""
"""All that is set besides the preset: where the engine is, its most sequences, and a tenant for each band."""


@dataclass(slots=True, frozen=True)
class Engine:
    """An engine with little memory.

    Attributes:
        profile: of its step cost.
        kv_tokens: its memory.
        step_ms: what a full engine's steps cost beside the work itself, for each token written; with it ``cost_ms`` is
            what its steps take for this mix. A test compares the two.
    """

    profile: str = "a100-8b"
    kv_tokens: int = 60_000
    step_ms: float = 0.18

    def cost_ms(self, prompt_tokens: int, output_tokens: int) -> float:
        """Engine time of a request in milliseconds; a second holds 1000."""
        least_s = profile_named(self.profile).least_s(prompt_tokens, output_tokens)
        return 1000 * least_s + self.step_ms * output_tokens


ENGINE = Engine()
"""The one that is run for real too."""

ENGINES = (
    ENGINE,
    Engine(kv_tokens=120_000, step_ms=0.08),
    Engine("h100-8b", step_ms=0.105),
    Engine("h100-8b", kv_tokens=120_000, step_ms=0.08),
)
STARTS = (0, 400, 900, 1500, 2200)
"""Rows of the trace to begin with: five loads. In the last one long prompts come in a bunch."""


def requests(seconds: float, *, start: int = 0, engine: Engine = ENGINE) -> list[Request]:
    """Lay out ``seconds`` of load from row ``start`` of the trace; bands take turns by engine time had so far."""
    spent = [0.0] * len(LOAD)
    chosen: list[tuple[TraceRow, float, int, int]] = []
    for row, at in _rows(start):
        if sum(spent) >= sum(LOAD) * 1000 * seconds:
            break
        behind = sorted(range(len(LOAD)), key=lambda band: spent[band] / LOAD[band])
        band = next(band for band in behind if band or row.prompt_tokens <= P0_PROMPT)
        output = row.output_tokens if band else min(row.output_tokens, P0_OUTPUT)
        spent[band] += engine.cost_ms(row.prompt_tokens, output)
        chosen.append((row, at, band, output))
    first, last = chosen[0][1], chosen[-1][1]
    speed = (last - first) * (1 + 1 / len(chosen)) / seconds
    return [
        Request((at - first) / speed, band, f"t{band}", row.prompt_tokens, output) for row, at, band, output in chosen
    ]


def _rows(start: int) -> Iterator[tuple[TraceRow, float]]:
    """Rows and their times, from the beginning again after the last."""
    rows = [row for row in read_trace(TRACE) if row.prompt_tokens + row.output_tokens <= MOST]
    span = rows[-1].at * (1 + 1 / len(rows))
    for number in count(start):
        row = rows[number % len(rows)]
        yield row, row.at + number // len(rows) * span


def policy() -> Policy:
    """The policy as ``SETTINGS`` makes it."""
    tenants = "  - {name: t0, keys: ['sha256:" + "0" * 64 + "'], band: p0}"
    return parse_settings(SETTINGS.format(url="http://127.0.0.1:1", seats=SEATS, tenants=tenants)).core_policy()


class GatewayWorld(World):
    """A world in which requests are estimated, and estimates learned, as the gateway does it."""

    def __init__(self, gate: SchedulerLike | Policy, engine: EngineModel, load: list[Request], *, seed: int) -> None:
        self._predictor = LearnedPredictor()
        self._predicted: list[Quantiles] = []  # by number of the entry
        super().__init__(gate, {"b": EngineServer(engine)}, load, estimate=self._guess, scrape=Scrape(seed=seed))

    def finished(self, now: float, number: int) -> None:
        """See ``World``."""
        request = self._open[number].request
        used = {"input_tokens": request.prompt_tokens, "output_tokens": request.output_tokens}
        self._predictor.learn(self._predicted[number], **used)
        super().finished(now, number)

    def _guess(self, request: Request) -> WorkEstimate:
        raw = b" 123" * request.prompt_tokens
        self._predicted.append(
            self._predictor.predict(
                request.tenant,
                request.pool,
                request.band,
                route=Route.CHAT,
                raw=raw,
                body=ParsedBody(),
                limit=request.output_tokens,
            )
        )
        return self._predicted[-1].work


@dataclass(slots=True)
class Played:
    """One run in virtual time.

    Attributes:
        log: of all requests, each of which has ended.
        model: the engine at the end.
        tokens_per_s: prompt and answer tokens done for the first time, per second of load.
        preemptions: while the load lasted.
    """

    log: Log
    model: EngineModel
    tokens_per_s: float
    preemptions: int


def played(seconds: float, *, gated: bool, start: int = 0, seed: int = 1, engine: Engine = ENGINE) -> Played:
    """Play the load through the gateway's scheduler, or straight at the engine, and then until all is answered."""
    model = EngineModel(engine.profile, kv_tokens=engine.kv_tokens, max_sequences=MAX_SEQUENCES, noise=NOISE, seed=seed)
    gate: SchedulerLike | Policy = policy() if gated else Ungated("b")
    world = GatewayWorld(gate, model, requests(seconds, start=start, engine=engine), seed=seed)
    world.run(until=seconds)
    done, preemptions = model.counters.prompt + model.counters.generated, model.counters.preemptions
    log = world.run()
    return Played(log, model, done / seconds, preemptions)


def completed(log: Log, band: int) -> int:
    """Answers of a band that came whole."""
    return sum(entry.outcome is Outcome.COMPLETED for entry in log.of_band(band))


def run(*seconds: float) -> list[tuple[str, str, str]]:
    """Play all loads on all engines, for two minutes and for ten unless told otherwise; a row for each engine."""
    return [row for length in seconds or (120.0, 600.0) for row in _rows_of(length)]


def _rows_of(seconds: float) -> list[tuple[str, str, str]]:
    """Sums over the loads of each engine, and the mean of their parts."""
    rows, parts = [], []
    for engine in ENGINES:
        tokens, preemptions, p0 = [0.0, 0.0], [0, 0], [0, 0]
        for start in STARTS:
            for gated in (False, True):
                each = played(seconds, gated=gated, start=start, engine=engine)
                tokens[gated] += each.tokens_per_s
                preemptions[gated] += each.preemptions
            p0[0] += len(each.log.of_band(0))
            p0[1] += completed(each.log, 0)
        parts.append(tokens[1] / tokens[0])
        figure = f"useful tokens {parts[-1]:.1%} of ungated, preemptions {preemptions[1]} of "
        figure += f"{preemptions[0]}, p0 answered {p0[1]} of {p0[0]}"
        name = f"kv-pressure in virtual time, {seconds:.0f} s, {engine.profile}, {engine.kv_tokens:,}"
        rows.append((name, figure, "≥ 100 %, ≤ 1 %, all"))
    rows.append(("  mean of these", f"useful tokens {sum(parts) / len(parts):.1%} of ungated", "≥ 100 %"))
    return rows
