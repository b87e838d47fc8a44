"""What one gateway and several can be measured by alike: the same arrivals, and seats that come back at the same times.

With times of service of their own two runs soon have nothing in common, and the difference of their waits is mostly
chance. Here each request of one run has its like in the other, and what differs is what coordination costs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.testing.replicas import LOAD, Pool, quantile


class Arrival(NamedTuple):
    """One request: when it comes, in seconds from the start, to which gateway, in which band, with which key."""

    at: float
    gateway: int
    band: int
    key: str = ""


class Stream(NamedTuple):
    """Requests of one kind, a part of the capacity, evenly at random."""

    gateway: int
    band: int
    part: float
    key: str = ""


def overload(gateways: int) -> list[Stream]:
    """2.5 times the load: all of p0 comes to the first gateway, all of p2 to the last, p1 to all of them."""
    part = LOAD[1] / gateways
    return [Stream(0, 0, LOAD[0]), Stream(gateways - 1, 2, LOAD[2]), *(Stream(at, 1, part) for at in range(gateways))]


@dataclass(slots=True, frozen=True)
class Course:
    """What is played.

    Attributes:
        seconds: how long.
        arrivals: in order.
        ends: when whatever runs longest ends.
    """

    seconds: float
    arrivals: tuple[Arrival, ...]
    ends: tuple[float, ...]


def course(streams: Sequence[Stream], *, seats: int, hold_s: float, seconds: float, seed: int = 1) -> Course:
    """Return a course for seats that are held for ``hold_s`` on average while all are used."""
    rate = seats / hold_s
    found: list[Arrival] = []
    for gateway, band, part, key in streams:
        rng = random.Random(f"{gateway} {band} {seed}")
        found += [Arrival(at, gateway, band, key) for at in _times(rng, part * rate, seconds)]
    rng = random.Random(f"ends {seed}")
    ends, at = [], 0.0
    while (at := at + rng.uniform(0.5, 1.5) / rate) < seconds:
        ends.append(at)
    return Course(seconds, tuple(sorted(found)), tuple(ends))


def _times(rng: random.Random, rate: float, until: float) -> Iterator[float]:
    at = 0.0
    while (at := at + rng.expovariate(rate)) < until:
        yield at


async def play(pool: Pool, plan: Course) -> float:
    """Send a course to a pool of any number of gateways; return when it began, by the monotonic clock."""
    began = time.monotonic() + 0.5
    await asyncio.to_thread(pool.engine.end_at, [began + at for at in plan.ends])
    for arrival in plan.arrivals:
        await asyncio.sleep(max(0.0, began + arrival.at - time.monotonic()))
        pool.start(arrival.gateway % len(pool.gateways), arrival.band, arrival.key)
    await asyncio.sleep(max(0.0, began + plan.seconds - time.monotonic()))
    return began


@dataclass(slots=True, frozen=True)
class Difference:
    """How much longer the requests of one run waited than their likes of another one, in seconds.

    Attributes:
        count: pairs.
        mean: of the differences.
        median: of the differences.
        by_quantile: p50, p90 and p99 of the waits of the one run less those of the other.
    """

    count: int
    mean: float
    median: float
    by_quantile: tuple[float, float, float]

    @property
    def most(self) -> float:
        """The largest of all that is told here."""
        return max(self.mean, self.median, *self.by_quantile)


def difference(longer: dict[int, float], shorter: dict[int, float]) -> Difference:
    """Compare waits by the numbers of the requests; those that only one run has are left out."""
    both = sorted(longer.keys() & shorter.keys())
    pairs = sorted(longer[each] - shorter[each] for each in both)
    one, other = (sorted(waits[each] for each in both) for waits in (longer, shorter))
    cuts = tuple(quantile(one, part) - quantile(other, part) for part in (0.5, 0.9, 0.99))
    return Difference(len(both), sum(pairs) / max(1, len(pairs)), quantile(pairs, 0.5), (cuts[0], cuts[1], cuts[2]))


def waits_s(pool: Pool, band: int, since: float, until: float, gateway: int | None = None) -> dict[int, float]:
    """Return, by the number of the request, the time from when it was sent until the engine was asked for it."""
    asked = {each.row: each.at for each in pool.engine.asked()}
    return {
        each.row: asked[each.row] - each.at
        for each in pool.told
        if each.band == band and since <= each.at < until and each.row in asked and gateway in (None, each.gateway)
    }


def idle_s(pool: Pool, since: float, until: float) -> float:
    """Return for how long a seat that came back was idle, in the mean, where work always waited meanwhile."""
    _, used = pool.running(since, until)
    return (1.0 - used) * pool.seats * (until - since) / max(1, len(pool.order(since, until)))
