"""Read the scheduler without touching it: the numbers of the dashboard, and why a ticket waits (SPEC §9, §15.13).

Nothing here walks tickets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from tidegate.core.gates import Gate, hold
from tidegate.core.ordering import RUNNING
from tidegate.core.pools import Pool
from tidegate.core.state import State


@dataclass(slots=True, frozen=True)
class BandSnapshot:
    """One band of one pool. The last four are counts since the start.

    Attributes:
        pool, band, name: which.
        depth: tickets that wait.
        running: leases held by work dispatched from this band.
        oldest_wait_s: wait of the oldest ticket that may run, 0 without one (the band's starvation now).
        dispatches, overtakes, floors: dispatches in all, and those by overtake and by floor.
        promotions: tickets that began to claim by age.
        gate: what stops the band now, if anything.
    """

    pool: str
    band: int
    name: str
    depth: int
    running: int
    oldest_wait_s: float
    dispatches: int
    overtakes: int
    floors: int
    promotions: int
    gate: Gate | None


@dataclass(slots=True, frozen=True)
class BackendSnapshot:
    """One backend: its seats, how many are taken, whether it is up."""

    pool: str
    name: str
    seats: int
    running: int
    up: bool


@dataclass(slots=True, frozen=True)
class Snapshot:
    """The scheduler at ``now``: totals, then a row per pool and band, and one per backend.

    ``queued`` counts all that waits, the ``parked`` (those with unmet dependencies, in no band's depth) included.
    """

    now: float
    queued: int
    queued_bytes: int
    parked: int
    running: int
    draining: bool
    bands: tuple[BandSnapshot, ...]
    backends: tuple[BackendSnapshot, ...]


class WhyKind(StrEnum):
    """Why a ticket is not running."""

    UNKNOWN = "unknown"  # neither waits nor runs here
    RUNNING = "running"
    DRAINING = "draining"
    TENANT_RUNNING = "tenant_running"  # its tenant is at max_running
    DEPENDENCY = "dependency"  # it waits for other requests
    GATE = "gate"  # see gate
    BEHIND = "behind"  # others are due first


@dataclass(slots=True, frozen=True)
class Why:
    """Why one ticket waits.

    Attributes:
        kind: the reason in one word.
        detail: one sentence for people.
        gate: what stops its band, for ``kind`` ``gate``.
        waited_s: its wait so far.
    """

    kind: WhyKind
    detail: str
    gate: Gate | None = None
    waited_s: float = 0.0


def take_snapshot(state: State, now: float) -> Snapshot:
    """Return the numbers of ``Snapshot``."""
    pools = list(state.pools.values())
    return Snapshot(
        now=now,
        queued=state.waiting.total,
        queued_bytes=state.waiting.bytes,
        parked=len(state.names.parked),
        running=len(state.running),
        draining=state.draining,
        bands=tuple(row for pool in pools for row in _bands(pool, now)),
        backends=tuple(
            BackendSnapshot(pool.name, backend.name, backend.seats, backend.running, backend.up)
            for pool in pools
            for backend in pool.seating.backends
        ),
    )


def _bands(pool: Pool, now: float) -> list[BandSnapshot]:
    rows = []
    for queue in pool.queues:
        head = queue.head()
        rows.append(
            BandSnapshot(
                pool.name,
                queue.band,
                queue.spec.name,
                depth=queue.count,
                running=queue.running,
                oldest_wait_s=now - head.arrived if head else 0.0,
                dispatches=queue.dispatches,
                overtakes=queue.overtakes,
                floors=queue.floors,
                promotions=queue.promotions,
                gate=hold(pool.seating, queue.band),
            )
        )
    return rows


def explain(state: State, now: float, ticket_id: str) -> Why:
    """Say why a ticket waits."""
    entry = state.live.get(ticket_id)
    if entry is None:
        return Why(WhyKind.UNKNOWN, "no such ticket waits or runs here")
    if entry.state == RUNNING:
        return Why(WhyKind.RUNNING, "it has been dispatched", waited_s=entry.lease.waited_s)
    waited_s = now - entry.arrived
    if state.draining:
        return Why(WhyKind.DRAINING, "the gateway is shutting down", waited_s=waited_s)
    if entry in state.names.parked:
        names = ", ".join(work.name for work in islice(state.names.parked[entry].works, 3))
        return Why(WhyKind.DEPENDENCY, f"it waits for {names}", waited_s=waited_s)
    if entry.flow.tenant.parked:
        limit = entry.tenant.spec.max_running
        return Why(WhyKind.TENANT_RUNNING, f"tenant {entry.tenant.name!r} runs {limit} already", waited_s=waited_s)
    gate = hold(state.pools[entry.queue.pool].seating, entry.queue.band)
    if gate is not None:
        return Why(WhyKind.GATE, gate.detail, gate, waited_s)
    return Why(WhyKind.BEHIND, "others are due first", waited_s=waited_s)
