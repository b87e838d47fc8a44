"""A small virtual-time stage for the oracles: Poisson or given arrivals, seats, and the real ``Scheduler``."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from tidegate.core import (
    Action,
    BackendSpec,
    Band,
    Discipline,
    Dispatch,
    Evict,
    Lease,
    Policy,
    PoolSpec,
    Reject,
    Release,
    Scheduler,
    Ticket,
    Turn,
    WorkEstimate,
)

POOL = "m"


class Scheduling(Protocol):
    """What the stage needs of a scheduler, so that a do-nothing one can stand in."""

    def submit(self, now: float, ticket: Ticket) -> list[Action]: ...

    def release(self, now: float, lease_id: int, outcome: Release) -> list[Action]: ...

    def tick(self, now: float) -> list[Action]: ...

    def next_wakeup(self) -> float | None: ...


@dataclass(slots=True)
class Arrival:
    """One request: when, which band and tenant, how many tokens, how long it holds a seat (seconds)."""

    at: float
    band: int
    service_s: float
    tenant: str = "t"
    tokens: int = 1


@dataclass(slots=True)
class Row:
    """What happened to one request; ``started`` is None when it was refused."""

    arrival: Arrival
    started: float | None = None
    finished: float | None = None
    kind: Turn | None = None
    lost: str = ""

    @property
    def wait_s(self) -> float:
        """Seconds from arrival to dispatch."""
        assert self.started is not None
        return self.started - self.arrival.at


@dataclass(slots=True)
class Log:
    """All rows in arrival order and the served ones in dispatch order."""

    rows: list[Row] = field(default_factory=list)
    served: list[Row] = field(default_factory=list)

    def mean_wait(self, band: int, *, warm: float = 0.1) -> float:
        """Return the mean wait of a band without the first ``warm`` part of the run."""
        rows = [
            row.wait_s
            for row in self.rows[int(warm * len(self.rows)) :]
            if row.arrival.band == band and row.started is not None
        ]
        return sum(rows) / len(rows)


def policy(bands: Sequence[Band], seats: int, **settings: object) -> Policy:
    """Return a policy with one pool of one backend; unlike the defaults, nothing is floored or capped unless said."""
    settings.setdefault("overtake_cap", Fraction(1))
    settings.setdefault("queue_capacity", 10**9)
    pools = (PoolSpec(POOL, (BackendSpec("b", seats),)),)
    return Policy(bands=tuple(bands), pools=pools, **settings)  # type: ignore[arg-type]


def band(name: str, **settings: object) -> Band:
    """Return a band that never refuses: endless patience and room."""
    values: dict[str, object] = {"weight": 0, "aging_per_ms": 0, "ttl_s": 1e12, "capacity": 10**9, **settings}
    return Band(name, **values)  # type: ignore[arg-type]


def strict(count: int, seats: int, **settings: object) -> Policy:
    """Return plain strict priority over ``count`` bands."""
    return policy([band(f"p{i}") for i in range(count)], seats, discipline=Discipline.STRICT, **settings)


def poisson(rng: random.Random, rates: Sequence[float], service_s: float, count: int) -> Iterator[Arrival]:
    """Yield ``count`` arrivals of independent Poisson streams (one per band) with exponential service."""
    total, now = sum(rates), 0.0
    bands = range(len(rates))
    for _ in range(count):
        now += rng.expovariate(total)
        yield Arrival(now, rng.choices(bands, rates)[0], rng.expovariate(1 / service_s))


def play(
    scheduler: Policy | Scheduling, arrivals: Iterator[Arrival] | Sequence[Arrival], *, until: float = float("inf")
) -> Log:
    """Run the arrivals through the scheduler and return what happened."""
    core: Scheduling = Scheduler(scheduler) if isinstance(scheduler, Policy) else scheduler
    log = Log()
    ends: list[tuple[float, int, Lease]] = []
    byid: dict[str, Row] = {}
    count = itertools.count()
    source = iter(arrivals)
    pending = next(source, None)

    def apply(now: float, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                row = byid[action.ticket.id]
                row.started, row.kind = now, action.lease.kind
                log.served.append(row)
                row.finished = now + row.arrival.service_s
                heapq.heappush(ends, (row.finished, next(count), action.lease))
            elif isinstance(action, Reject | Evict):
                byid[action.ticket.id].lost = action.reason

    while pending is not None or ends:
        end_at = ends[0][0] if ends else float("inf")
        start_at = pending.at if pending is not None else float("inf")
        wake = core.next_wakeup()
        now = min(end_at, start_at, float("inf") if wake is None else wake)
        if now > until:
            break
        if wake is not None and wake <= now and now < min(end_at, start_at):
            apply(now, core.tick(now))
        elif end_at <= start_at:
            _, _, lease = heapq.heappop(ends)
            apply(now, core.release(now, lease.id, Release()))
        else:
            assert pending is not None
            ticket = Ticket(str(len(log.rows)), POOL, pending.band, pending.tenant, WorkEstimate(0, pending.tokens))
            log.rows.append(Row(pending))
            byid[ticket.id] = log.rows[-1]
            apply(now, core.submit(now, ticket))
            pending = next(source, None)
    return log


Sampler = Callable[[random.Random], float]
