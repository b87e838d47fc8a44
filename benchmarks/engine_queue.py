"""The engine's own queue in virtual time: ``seats: auto`` against the best fixed number, and a burst between two looks.

Seats: the controller alone in front of the engine model, with always more work. Measured from 400 s on: starting from
1,000 seats leaves the engine a queue that takes minutes to work off. Small caches are measured for longer: what runs
there is few, and of very different sizes. Burst: the whole scheduler, 200 requests in 0.4 s
when the metrics page has just been read, on an engine with room for about 66 of them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.kv_plan import TRACE
from tidegate.core import BackendSpec, Band, Lease, Policy, PoolSpec, Release, Ticket, Turn
from tidegate.core.adaptive import SeatController
from tidegate.core.policy import P0
from tidegate.core.signals import Reading
from tidegate.simulation import (
    EngineModel,
    EngineSequence,
    EngineServer,
    Scrape,
    World,
    fixed,
    merged,
    read_trace,
    requests,
)
from tidegate.simulation.servers import Progress

Row = tuple[str, str, str]
Lengths = Callable[[random.Random], tuple[int, int]]


def lognormal(prompt: float, output: float) -> Lengths:
    """Lengths around e^prompt and e^output tokens."""
    return lambda draw: (int(draw.lognormvariate(prompt, 0.6)) + 1, int(draw.lognormvariate(output, 0.6)) + 1)


def reasoning(draw: random.Random) -> tuple[int, int]:
    """Lengths of a reasoning model's service, without those that alone would fill a seventh of the small cache."""
    row = draw.choice(_REASONING)
    return row.prompt_tokens, row.output_tokens


_REASONING = [row for row in read_trace(TRACE) if row.output_tokens and row.prompt_tokens + row.output_tokens <= 8000]


@dataclass(slots=True, frozen=True)
class Mix:
    """What is asked of which engine.

    Attributes:
        lengths: of prompts and answers.
        settings: the best fixed numbers of seats to beat, found by trying all from 8 to 300 in steps of 8 or 16 (above
            the knee the throughput is flat).
        kv_tokens: size of the engine's cache; ``None``: that of its profile.
        span_s: how long it is run.
    """

    lengths: Lengths
    settings: tuple[int, ...]
    kv_tokens: int | None = None
    span_s: float = 700.0


# Bound by the most sequences, by KV memory, by the compute of prompts, and twice by KV memory that is small.
MIXES = {
    "chat": Mix(lognormal(6.0, 5.3), (256, 300)),
    "long answers": Mix(lognormal(7.0, 7.3), (128, 144, 160, 192)),
    "long prompts": Mix(lognormal(9.0, 4.0), (32, 64)),
    "small cache": Mix(lognormal(6.0, 6.0), (64, 72, 80, 96), kv_tokens=60_000, span_s=1600.0),
    "reasoning, small cache": Mix(reasoning, (64, 80), kv_tokens=60_000, span_s=1600.0),
}


@dataclass(slots=True)
class Seen:
    """Tokens per second and the engine's mean queue after the warm-up, and all numbers of seats."""

    tokens_per_s: float
    waiting: float
    seats: list[int]


def endless(
    mix: Mix,
    control: SeatController | None,
    *,
    seats: int = 0,
    band: Band = P0,
    warm_s: float = 400.0,
) -> Seen:
    """Run an engine whose seats are always all taken; look at it once a second."""
    model, draw, span_s = EngineModel(kv_tokens=mix.kv_tokens), random.Random(1), mix.span_s
    coming: deque[tuple[float, EngineSequence]] = deque()
    started: dict[str, Lease] = {}
    first: dict[str, float] = {}
    now, look, number = 0.0, 1.0, 0
    queues: list[int] = []
    numbers: list[int] = []
    before = (0.0, 0)
    while now < span_s:
        seats = control.seats if control else seats
        while len(started) < seats:
            number += 1
            prompt, output = mix.lengths(draw)
            started[str(number)] = Lease(number, Ticket(str(number), "m", 0, "t"), "b", Turn.TURN, 0, 0.0, now)
            coming.append((now + 0.005, EngineSequence(str(number), prompt, output)))
        while coming and coming[0][0] <= now:
            model.add(coming.popleft()[1], now)
        if model.idle:
            now = coming[0][0]
            continue
        step = model.step()
        while look <= now + step.duration_s:
            signals = model.signals()
            if look >= warm_s:
                queues.append(signals.waiting)
            if control:
                page = Reading("b", look, 1 - signals.kv_use, signals.running, signals.waiting, signals.preemptions)
                control.step(look, page, taken=len(started), limiting=True)
            numbers.append(seats)
            look += 1.0
        now += step.duration_s
        first.update((each.id, now) for each in step.prefilled if each.id not in first)
        for each in step.finished:
            lease, token_at = started.pop(each.id), first.pop(each.id)
            if control:
                tpot_s = (now - token_at) / max(1, each.output_tokens - 1)
                used = Release(
                    input_tokens=each.prompt_tokens,
                    output_tokens=each.output_tokens,
                    ttft_s=token_at - lease.started,
                    tpot_s=tpot_s,
                )
                control.answered(used, lease, band)
        done = model.counters.generated + model.counters.prompt
        if now < warm_s:
            before = (now, done)
    return Seen((done - before[1]) / (now - before[0]), sum(queues) / len(queues), numbers)


def best_fixed(mix: Mix) -> float:
    """Tokens per second of the best fixed setting of a mix."""
    return max(endless(mix, None, seats=seats).tokens_per_s for seats in mix.settings)


class Blocked(EngineServer):
    """Notes how many wait after each step for want of memory, and not for their turn in the compute of the next.

    Attributes:
        most: the largest number of those.
    """

    def __init__(self, model: EngineModel) -> None:
        super().__init__(model)
        self.most = 0

    def advance(self, now: float, progress: Progress) -> None:
        """See ``Server``."""
        before = self._step
        super().advance(now, progress)
        step = self._step
        if step is not None and step is not before and step.tokens < self.model.token_budget:
            self.most = max(self.most, self.model.waiting)


def burst(output_tokens: int, *, scraped: bool) -> Blocked:
    """Let 200 requests come right after a look at the page; without looks the gateway knows nothing of the memory."""
    p1 = replace(Policy().bands[1], ttl_s=86_400.0, shed_hopeless=False)
    bands = (P0, p1, Policy().bands[2])
    policy = Policy(bands=bands, pools=(PoolSpec("m", (BackendSpec("b", 250),)),))
    few, many = fixed(2.0), fixed(500.0, start=4.06)
    load = merged(
        *(
            requests(times, band=1, count=count, lengths=lambda: (400, output_tokens))
            for times, count in ((few, 8), (many, 200))
        )
    )
    engine = Blocked(EngineModel(kv_tokens=40_000))
    scrape = Scrape(every_s=1.0, spread=0.0) if scraped else None
    log = World(policy, {"b": engine}, load, scrape=scrape).run()
    assert all(entry.finished is not None and entry.reason is None for entry in log.entries)
    return engine


def run() -> list[Row]:
    """Give a row for each mix and start, and one for the bursts."""
    rows = []
    for name, mix in MIXES.items():
        best = best_fixed(mix)
        for start in (1, 1000):
            seen = endless(mix, SeatController(start))
            figure = f"{seen.tokens_per_s:,.0f} tokens/s, {seen.tokens_per_s / best:.1%} of the best fixed"
            queue = f"engine waiting {seen.waiting:.2f}, {seen.seats[-1]} seats at the end"
            rows.append((f"seats: auto, {name}, from {start}", f"{figure}; {queue}", "≥ 97 %, waiting ≤ 2"))
    for output in (200, 600):
        gated, bare = burst(output, scraped=True), burst(output, scraped=False)
        figure = f"{gated.most} wait for memory, {bare.most} without watermark"
        rows.append((f"200 arrivals between two looks, {output} tokens each", figure, "≤ 4"))
    return rows
