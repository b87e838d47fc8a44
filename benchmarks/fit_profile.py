"""Fit the simulated engine to a real one, and hold its predictions against a load that it was not fitted to.

Measured on vLLM with the slow model and six slots: the time per token of one, two, four and six streams with short and
long prompts, and the time to the first token of prompts of several lengths. The step time of ``simulation.profiles`` is
fitted to these by non-negative least squares on relative errors. What these do not show is how long a slot is empty
between two requests: the end must reach the gateway, the next request the engine, and an engine that schedules a step
ahead takes it one later. So equal requests pass through the gateway, as many at a time as there are slots, and the time
between dispatch and the engine's waiting list (``http_s``) is what makes the simulation take as long for them.

Then the gateway plays a mix of bands and lengths on the real engine, and ``simulation.World`` plays the same requests
under the same policy: mean waits and tokens per second beside each other. The engine is measured before and after that
mix, and all of it on the engine's own clock, which stands still while others have its core (``_engine_clock``):
arrivals too are put on it, for the simulation.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import numpy as np
from scipy.optimize import nnls

from benchmarks._engine_clock import EngineClock
from benchmarks.real_engines import ROOT, Record, target_of
from tidegate.cli.load import ask, chat_request
from tidegate.config import key_digest, parse_settings
from tidegate.simulation import EngineModel, EngineServer, Profile, Request, World
from tidegate.testing.gateway_process import gateway_process
from tidegate.testing.real_engines import MODEL, NotSetUpError, Size, vllm_server

Row = tuple[str, str, str]
Due = tuple[float, str, int, int]
"""Time, band, words of the prompt and tokens of the answer."""
SIZE = Size(6, 6 * 512)
STREAMS, STREAM_TOKENS = (1, 2, 4, 6), 32
PROMPTS = (8, 60, 120, 180)
"""Words of the prompts; the model cuts each into about two tokens."""

TURNS, TURN_WORDS, TURN_TOKENS = 20, 40, 16
"""Equal requests of which each slot serves ``TURNS`` one after the other."""
LONGEST_HTTP_S = 0.2
"""A longer gap is no way to the engine: it comes of a crowded machine, and would be added to each first token."""

GOAL = 0.15
KEY = "tg-fit-0123456789abcdef"
SETTINGS = """\
gateway: {{listen: "127.0.0.1:0", drain_timeout: 1s}}
control: {{listen: "127.0.0.1:0"}}
models:
  - name: {model}
    backends: [{{name: b, url: "{url}", engine: openai, seats: {seats}}}]
tenants:
  - {{name: t, keys: ["{digest}"], band: p2, max_band: p0}}
policy: {{preempt_rate: 0, bands: {{p0: {{ttl: 1h}}, p1: {{ttl: 1h, shed_hopeless: false}}}}}}
"""
"""The engine's own signals are not read (``openai``), nobody is stopped, shed or given up: what waits, waits."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time, and the work of the steps that it stands for, as ``Profile.step_s`` counts it."""

    tokens: float
    sequences: float
    kv_read: float
    pairs: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile, the seconds between dispatch and the engine's waiting list, and the steps' mean relative error."""

    profile: Profile
    http_s: float
    error: float


def prompt_of(words: int, number: int) -> str:
    """A prompt that shares its beginning with no other."""
    chance = random.Random(number)
    return f"{number} " + " ".join(
        f"{chance.choice(('tide', 'class', 'while'))}{chance.randrange(10)}" for _ in range(words)
    )


class Bench:
    """Asks a real engine. Numbers of prompts are never used twice, so that its prefix cache never helps."""

    def __init__(self, url: str, engine: str, clock: EngineClock) -> None:
        self._url, self._engine, self.clock = url, engine, clock
        self._number = int(time.time() * 1000) % 10**9 * 100

    def prompt(self, words: int) -> tuple[str, int]:
        """A new prompt and its length in tokens, as the engine counts it."""
        self._number += 1
        text = prompt_of(words, self._number)
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        asked = urllib.request.Request(
            self._engine + "/tokenize", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return text, int(json.load(answer)["count"])

    async def ask(self, prompt: str, tokens: int, *, band: str = "p2", due: float | None = None) -> Record:
        """One answer of exactly so many tokens; its seconds are the engine's."""
        record, due = Record(0), asyncio.get_running_loop().time() if due is None else due
        host = self._url.removeprefix("http://")
        raw = chat_request(
            host, prompt=prompt, output_tokens=tokens, key=KEY, model=MODEL, headers={"x-tidegate-band": band}
        )
        await ask(target_of(self._url), raw, record, due=due)
        if record.refused or record.done_s is None:
            raise RuntimeError(f"a request failed: {record.refused}")
        record.first_s = self.clock.between(due, due + (record.first_s or 0.0))
        record.done_s = self.clock.between(due, due + record.done_s)
        return record


async def measure(bench: Bench) -> list[Sample]:
    """Take all samples once."""
    found = []
    for words in PROMPTS:
        times = []
        for _ in range(5):
            prompt, length = bench.prompt(words)
            record = await bench.ask(prompt, 1)
            times.append((length, record.first_s or 0.0))
        length = times[-1][0]
        found.append(Sample(length, 1, 0.0, length * length / 2, median(taken for _, taken in times)))
    for streams in STREAMS:
        for words in (PROMPTS[0], PROMPTS[2]):
            prompts = [bench.prompt(words) for _ in range(streams)]
            records = await asyncio.gather(*(bench.ask(prompt, STREAM_TOKENS) for prompt, _ in prompts))
            began = max(record.first_s or 0.0 for record in records)
            ended = min(record.done_s or 0.0 for record in records)
            steps = STREAM_TOKENS - 1
            per_step = (ended - began) / steps
            read = sum(length + STREAM_TOKENS / 2 for _, length in prompts)
            found.append(Sample(streams, streams, read, 0.0, per_step))
    return found


def fit(samples: Sequence[Sample], name: str) -> Fit:
    """Fit the profile. Prefills (with pairs) also carry what a request costs beside the steps."""
    rows = [[1.0, each.tokens, each.sequences, each.kv_read, each.pairs, float(each.pairs > 0)] for each in samples]
    seconds = np.array([each.seconds for each in samples])
    matrix = np.array(rows) / seconds[:, None]
    scale = np.abs(matrix).max(axis=0)
    found, _ = nnls(matrix / scale, np.ones(len(samples)))
    found = found / scale
    constant, token, sequence, kv, pair, http = (float(1000 * value) for value in found)
    profile = Profile(
        name, 0.0, constant, token, 1.0, kv, pair, SIZE.kv_tokens, per_sequence=sequence, max_sequences=SIZE.slots
    )
    predicted = np.array(rows) @ found
    return Fit(profile, http / 1000, float(np.mean(np.abs(predicted / seconds - 1))))


def mix(seconds: float, fitted: Profile, seed: int = 3) -> list[Due]:
    """p0 and p1 as they come, and a flood of p2 of mixed lengths."""
    draw = random.Random(seed)
    found: list[Due] = []
    per_token = fitted.step_s(SIZE.slots, SIZE.slots * 150, 0.0, SIZE.slots) / SIZE.slots
    work = 0.0
    while work < 0.75 * seconds:
        tokens, words = draw.choice((8, 20, 50)), draw.choice((15, 40, 90, 150))
        work += tokens * per_token + fitted.step_s(2 * words, 0, 0.0)
        found.append((0.5, "p2", words, tokens))
    at = 1.0
    while at < 0.7 * seconds:
        at += draw.expovariate(0.25 / (14 * per_token + fitted.step_s(60, 0, 0.0)))
        found.append((at, draw.choice(("p0", "p1")), draw.choice((10, 50)), draw.choice((8, 20))))
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Mean time to the first token of each band, and answer tokens per second until the last answer was complete."""

    wait_s: dict[str, float]
    tokens_per_s: float


def outcome(rows: Sequence[tuple[float, str, int]], firsts: Sequence[float], ends: Sequence[float]) -> Outcome:
    """Sum up: due time, band and tokens; seconds from there to the first token; times of the ends."""
    waits = {
        band: mean(first for (_, each, _), first in zip(rows, firsts, strict=True) if each == band)
        for band in sorted({band for _, band, _ in rows})
    }
    return Outcome(waits, sum(tokens for _, _, tokens in rows) / (max(ends) - min(at for at, _, _ in rows)))


async def play(bench: Bench, load: list[Due]) -> tuple[list[Due], list[int], Outcome]:
    """Play the mix for real, in the engine's time; give it as it was sent, and the true lengths of the prompts."""
    loop = asyncio.get_running_loop()
    texts = [bench.prompt(words) for _, _, words, _ in load]
    start = loop.time()
    sent: list[Due] = []
    asked: list[asyncio.Task[Record]] = []
    async with asyncio.TaskGroup() as group:
        for (at, band, words, tokens), (text, _) in zip(load, texts, strict=True):
            while (left := at - bench.clock.between(start, loop.time())) > 0:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(left)
            now = loop.time()
            sent.append((bench.clock.between(start, now), band, words, tokens))
            asked.append(group.create_task(bench.ask(text, tokens, band=band, due=now)))
    records = [task.result() for task in asked]
    rows = [(at, band, tokens) for at, band, _, tokens in sent]
    firsts = [record.first_s or 0.0 for record in records]
    ends = [row[0] + (record.done_s or 0.0) for row, record in zip(sent, records, strict=True)]
    return sent, [length for _, length in texts], outcome(rows, firsts, ends)


@dataclass(frozen=True, slots=True)
class Turnover:
    """Equal requests as they were sent, true lengths of their prompts, and what came of them."""

    sent: Sequence[Due]
    lengths: Sequence[int]
    real: Outcome


async def turnover(bench: Bench) -> Turnover:
    """Play equal requests, all due at once: a slot is never empty for want of work."""
    return Turnover(*await play(bench, [(0.5, "p2", TURN_WORDS, TURN_TOKENS)] * (TURNS * SIZE.slots)))


def with_turnovers(fitted: Fit, found: Sequence[Turnover], settings: str) -> Fit:
    """Choose ``http_s`` so that the simulation has the rate of tokens that was measured for equal requests."""
    measured = mean(each.real.tokens_per_s for each in found)
    least, most = 0.0, LONGEST_HTTP_S
    for _ in range(20):
        tried = replace(fitted, http_s=(least + most) / 2)
        rate = mean(simulated(each.sent, each.lengths, tried, settings).tokens_per_s for each in found)
        least, most = (tried.http_s, most) if rate > measured else (least, tried.http_s)
    return replace(fitted, http_s=(least + most) / 2)


def simulated(load: Sequence[Due], lengths: Sequence[int], fitted: Fit, settings: str) -> Outcome:
    """Play the same requests in virtual time."""
    requests = [
        Request(at, int(band[1]), "t", prompt, output, MODEL)
        for (at, band, _, output), prompt in zip(load, lengths, strict=True)
    ]
    server = EngineServer(EngineModel(fitted.profile, noise=0.0), http_s=fitted.http_s)
    log = World(parse_settings(settings).core_policy(), {"b": server}, requests).run()
    rows = [(entry.request.at, f"p{entry.request.band}", entry.request.output_tokens) for entry in log.entries]
    firsts = [(entry.first_token or 0.0) - entry.request.at for entry in log.entries]
    return outcome(rows, firsts, [entry.finished or 0.0 for entry in log.entries])


def rows_of(fitted: Fit, real: Outcome, model: Outcome) -> list[Row]:
    """The comparison."""
    p = fitted.profile
    said = f"{p.weights:.2f} + {p.per_token:.3f} n + {p.per_sequence:.2f} s "
    said += f" + {p.per_kv_token:.5f} S + {p.per_pair:.6f} X ms"
    rows = [
        (
            "fitted step of vLLM on this CPU",
            f"{said}; {fitted.http_s * 1000:.0f} ms to the engine; mean error {fitted.error:.1%}",
            "",
        )
    ]
    pairs: list[tuple[str, float, float, Callable[[float], str]]] = [
        (f"  {band} mean time to first token", real.wait_s[band], model.wait_s[band], lambda value: f"{value:.2f} s")
        for band in real.wait_s
    ]
    pairs.append(("  answer tokens per second", real.tokens_per_s, model.tokens_per_s, lambda value: f"{value:.1f}"))
    for name, measured, told, form in pairs:
        rows.append(
            (name, f"measured {form(measured)}, simulated {form(told)}: {told / measured - 1:+.1%}", f"±{GOAL:.0%}")
        )
    return rows


def run(seconds: float = 90.0) -> list[Row]:
    """Fit, play and compare."""
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            vllm_server(ROOT, Path(folder, "log"), SIZE, nice=0) as engine,
            EngineClock(engine) as clock,
        ):
            bench = Bench(engine.url, engine.url, clock)
            asyncio.run(measure(bench))  # the first requests are slower than all later ones
            before = asyncio.run(measure(bench))
            load = mix(seconds, fit(before, "cpu").profile)
            settings = SETTINGS.format(url=engine.url, seats=SIZE.slots, model=MODEL, digest=key_digest(KEY))
            with gateway_process("--log-level", "warning", config=settings) as gateway:
                through = Bench(gateway.url, engine.url, clock)
                turns = [asyncio.run(turnover(through))]
                seen, lengths, real = asyncio.run(play(through, load))
                turns.append(asyncio.run(turnover(through)))
            after = asyncio.run(measure(bench))
            lost = clock.lost()
    except NotSetUpError as error:
        return [("fitted step of vLLM on this CPU", str(error), "")]
    fitted = with_turnovers(fit([*before, *after], "cpu"), turns, settings)
    drift = median(b.seconds / a.seconds for a, b in zip(before, after, strict=True))
    rows = rows_of(fitted, real, simulated(seen, lengths, fitted, settings))
    told = (
        f"step after the mix over before: {drift:.2f}; the engine waited {lost:.0%} of the time for a core, not counted"
    )
    return [*rows, ("  the machine", told, "")]


if __name__ == "__main__":
    for row in run(*map(float, sys.argv[1:])):
        print(*row, sep=" | ")
