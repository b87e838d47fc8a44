"""The load of ``kv_pressure`` and the same run in virtual time.

Three bands laid over lengths and arrivals of a reasoning model's service (``benchmarks/data``), 2.5 times what the
engine can do, before an engine whose KV pool is the limit: it holds some 60 of these requests at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tidegate.classify import ParsedBody, Route
from tidegate.classify.estimates import EstimateRequest, LearnedPredictor, Quantiles
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

TRACE = Path(__file__).parent / "data" / "servegen_deepseek_r1_3000.csv.gz"
PROFILE, KV_TOKENS, MAX_SEQUENCES, NOISE = "a100-8b", 60_000, 256, 0.08
SEATS = 256
LOAD = (0.3, 0.4, 1.8)
"""Engine time that each band asks for, as a multiple of what there is; together 2.5."""

STEP_MS = 0.18
"""What a full engine's steps cost beside the work itself, for each token written, in milliseconds: with it
``engine_ms`` is what its steps take for this mix. A test compares the two."""

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


def requests(seconds: float, *, start: int = 0) -> list[Request]:
    """Lay out ``seconds`` of load from row ``start`` of the trace; bands take turns by engine time had so far."""
    spent = [0.0] * len(LOAD)
    chosen: list[tuple[TraceRow, float, int, int]] = []
    for row, at in _rows(start):
        if sum(spent) >= sum(LOAD) * 1000 * seconds:
            break
        behind = sorted(range(len(LOAD)), key=lambda band: spent[band] / LOAD[band])
        band = next(band for band in behind if band or row.prompt_tokens <= P0_PROMPT)
        output = row.output_tokens if band else min(row.output_tokens, P0_OUTPUT)
        spent[band] += engine_ms(row.prompt_tokens, output)
        chosen.append((row, at, band, output))
    first, last = chosen[0][1], chosen[-1][1]
    speed = (last - first) * (1 + 1 / len(chosen)) / seconds
    return [
        Request((at - first) / speed, band, f"t{band}", row.prompt_tokens, output) for row, at, band, output in chosen
    ]


def engine_ms(prompt_tokens: int, output_tokens: int) -> float:
    """Engine time of a request in milliseconds; a second holds 1000."""
    return 1000 * profile_named(PROFILE).least_s(prompt_tokens, output_tokens) + STEP_MS * output_tokens


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
        request = self.log.entries[number].request
        used = {"input_tokens": request.prompt_tokens, "output_tokens": request.output_tokens}
        self._predictor.learn(self._predicted[number], **used)
        super().finished(now, number)

    def _guess(self, request: Request) -> WorkEstimate:
        raw = b" 123" * request.prompt_tokens
        asked = EstimateRequest(
            request.tenant, request.pool, request.band, Route.CHAT, raw, ParsedBody(), request.output_tokens
        )
        self._predicted.append(self._predictor.predict(asked))
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


def played(seconds: float, *, gated: bool, start: int = 0, seed: int = 1) -> Played:
    """Play the load through the gateway's scheduler, or straight at the engine, and then until all is answered."""
    model = EngineModel(PROFILE, kv_tokens=KV_TOKENS, max_sequences=MAX_SEQUENCES, noise=NOISE, seed=seed)
    gate: SchedulerLike | Policy = policy() if gated else Ungated("b")
    world = GatewayWorld(gate, model, requests(seconds, start=start), seed=seed)
    world.run(until=seconds)
    done, preemptions = model.counters.prompt + model.counters.generated, model.counters.preemptions
    log = world.run()
    return Played(log, model, done / seconds, preemptions)


def completed(log: Log, band: int) -> int:
    """Answers of a band that came whole."""
    return sum(entry.outcome is Outcome.COMPLETED for entry in log.of_band(band))
