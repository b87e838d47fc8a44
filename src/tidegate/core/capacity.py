"""What backends tell of themselves, turned into seats, gates and alarms (SPEC §5.1 to §5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.adaptive import EVERY_S, SeatController
from tidegate.core.model import Release
from tidegate.core.signals import Capacity, Counters, Health, Paused, RateLimit, Reading, Seats

if TYPE_CHECKING:
    from tidegate.core.ordering import Entry
    from tidegate.core.pools import Pool
    from tidegate.core.routing import Backend
    from tidegate.core.state import State

Fact = Health | Seats | Reading | RateLimit | Paused


def learn(state: State, fact: Fact) -> Pool | None:
    """Take in a fact about a backend; return its pool, ``None`` when the backend is unknown."""
    found = state.backends.get(fact.backend)
    if found is None:
        return None
    pool, backend = found
    now = state.now
    match fact:
        case Health():
            backend.up = fact.up
        case Seats():
            backend.seats = max(0, fact.seats)
            if backend.control is not None and pool.seating.lent is not None:  # found by another's controller
                backend.control.seats = backend.seats
        case Reading():
            backend.sensor.read(fact, backend.running, backend.outstanding)
            backend.others = max(0, (fact.running or 0) + (fact.waiting or 0) - backend.running)
            backend.sensor.gate(now, backend.outstanding)
            _step(pool, backend, now, fact)
        case RateLimit():
            _correct(backend, fact, now)
        case _:
            backend.paused_until = max(backend.paused_until, fact.until)
            if backend.control is not None:
                backend.control.refused()
            _step(pool, backend, now, None)
    pool.seating.recount()
    return pool


def lend(state: State, fact: Capacity) -> Pool | None:
    """Take in how many of a pool's seats are for this scheduler; return the pool, ``None`` when it is unknown."""
    pool = state.pools.get(fact.pool)
    if pool is None:
        return None
    seating = pool.seating
    seating.lent, seating.share, seating.wary = fact.seats, fact.share, fact.wary
    seating.recount()
    return pool


def count_elsewhere(state: State, fact: Counters) -> None:
    """Let flows that were served elsewhere wait as long here as their accounts there say."""
    pool = state.pools.get(fact.pool)
    if pool is not None:
        queue = pool.queues[fact.band]
        for key, lead in fact.leads:
            queue.lead(key, lead)


def answered(state: State, pool: Pool, entry: Entry, release: Release, control: SeatController) -> None:
    """Let the seat controller of the backend learn from a finished answer, while that still holds its seat."""
    backend = entry.backend
    control.answered(release, entry.lease, state.policy.bands[entry.ticket.band])
    reading = backend.sensor.reading
    blind = reading is None or backend.sensor.stale(state.now)
    if blind and state.now - control.stepped_at >= EVERY_S:
        _step(pool, backend, state.now, None)
        pool.seating.recount()


def arm(state: State, pool: Pool) -> None:
    """Set the alarm for when a gate of the pool may open by time alone, if anything waits there."""
    wake = pool.seating.wake
    if wake < state.waiting.alarm and (pool.retries or any(queue.count for queue in pool.queues)):
        state.waiting.set_alarm(wake)


def _step(pool: Pool, backend: Backend, now: float, reading: Reading | None) -> None:
    """Let the seat controller take a step; the seats are the limit when all are taken and work waits."""
    control = backend.control
    if control is not None:
        taken = backend.running if pool.seating.lent is None else backend.running + backend.others
        limiting = taken >= backend.seats and any(queue.head() is not None for queue in pool.queues)
        backend.seats = control.step(now, reading, taken=taken, limiting=limiting)


def _correct(backend: Backend, fact: RateLimit, now: float) -> None:
    """Believe what an upstream says is left; without a quota of ours, nothing left means a pause."""
    for quota, remaining in (
        (backend.tokens, fact.remaining_tokens),
        (backend.requests, fact.remaining_requests),
    ):
        if remaining is None:
            continue
        if quota is not None:
            quota.correct(now, remaining, fact.reset_s)
            backend.reopen()
        elif remaining <= 0:
            backend.paused_until = max(backend.paused_until, now + fact.reset_s)
