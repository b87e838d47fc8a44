"""Open-loop arrivals: when requests come, and of which band, tenant and size. Seeded, endless unless cut.

Open loop means that nothing waits for an answer: the world keeps the times, however slow the answers get.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidegate.simulation.kv import BLOCK
from tidegate.simulation.traces import PREFIX_UNIT, TraceRow


@dataclass(slots=True, frozen=True)
class Request:
    """One request that is offered to the scheduler.

    Attributes:
        at: arrival, seconds.
        band: index of the band.
        tenant: who pays.
        prompt_tokens: true length of the prompt.
        output_tokens: true length of the answer, which the scheduler does not know.
        pool: name of the pool.
        chain: keys of the prompt's prefix-cache units.
        unit_tokens: tokens per key.
        patience_s: the client leaves when it has no whole answer by then; seconds after it is offered.
        source: which part of a scenario it belongs to.
        affinity: of its prompt's beginning, as in ``Ticket``; 0 for nothing shared.
        patient: work of a job, which waits where other work would be shed.
        max_tokens: longest answer that the client allows, ``None`` when it does not say.
    """

    at: float
    band: int
    tenant: str = "t"
    prompt_tokens: int = 100
    output_tokens: int = 100
    pool: str = "m"
    chain: Sequence[Hashable] = ()
    unit_tokens: int = BLOCK
    patience_s: float = float("inf")
    source: str = ""
    affinity: int = 0
    patient: bool = False
    max_tokens: int | None = None


Lengths = Callable[[], tuple[int, int]]
"""Draws prompt and output tokens of the next request."""


def stream_random(seed: int, name: str) -> random.Random:
    """The chance of one stream: adding another stream to a world changes none of this one's draws."""
    return random.Random(f"{seed}:{name}")


def fixed(rate: float, *, start: float = 0.0) -> Iterator[float]:
    """Arrival times at equal gaps of ``1 / rate`` seconds."""
    for number in itertools.count():
        yield start + number / rate


def poisson(rate: float, draw: random.Random, *, start: float = 0.0) -> Iterator[float]:
    """Arrival times of a Poisson process of ``rate`` per second."""
    now = start
    while True:
        now += draw.expovariate(rate)
        yield now


def gamma(rate: float, cv: float, draw: random.Random, *, start: float = 0.0) -> Iterator[float]:
    """Arrival times whose gaps are Gamma distributed with mean ``1 / rate`` and coefficient of variation ``cv``."""
    shape = 1 / cv**2
    now = start
    while True:
        now += draw.gammavariate(shape, 1 / (rate * shape))
        yield now


def requests(
    times: Iterable[float],
    *,
    band: int,
    tenant: str = "t",
    lengths: Lengths = lambda: (100, 100),
    until: float = float("inf"),
    count: int | None = None,
) -> Iterator[Request]:
    """One stream: a request of ``band`` at each time, cut after ``count`` or at ``until`` seconds."""
    for at in itertools.islice(times, count):
        if at >= until:
            return
        prompt, output = lengths()
        yield Request(at, band, tenant, prompt, output)


def replayed(
    rows: Iterable[TraceRow], *, band: int, speed: float = 1.0, start: float = 0.0, tenant: str = ""
) -> Iterator[Request]:
    """The rows of a trace as one stream of ``band``, ``speed`` times as fast; ``tenant`` overrides the rows'."""
    for row in rows:
        yield Request(
            start + row.at / speed,
            band,
            tenant or row.tenant or "t",
            row.prompt_tokens,
            row.output_tokens,
            chain=row.prefix,
            unit_tokens=PREFIX_UNIT if row.prefix else BLOCK,
        )


def merged(*streams: Iterable[Request]) -> Iterator[Request]:
    """Several streams in order of arrival; at the same time the earlier named stream comes first."""
    return heapq.merge(*streams, key=lambda request: request.at)
