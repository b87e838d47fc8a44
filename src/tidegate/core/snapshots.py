"""Read the scheduler without touching it: the numbers of the dashboard, and why a ticket waits (SPEC §9, §15.13).

Nothing here walks tickets.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from tidegate.core.forecast import INFINITE, expected_wait
from tidegate.core.gates import MODE, NO_ROOM, Gate, GateKind, hold, look
from tidegate.core.ordering import RUNNING, Entry
from tidegate.core.pools import Pool
from tidegate.core.room import lacks, open_but_for_room
from tidegate.core.routing import Backend
from tidegate.core.state import State

_BY_SEATS = (GateKind.NO_SEAT, GateKind.RESERVE, GateKind.CEILING)


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
        reserve: free seats of the pool that lower bands leave to this one now.
        reserve_short: the automatic reserve would need more than a quarter of the seats.
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
    reserve: int = 0
    reserve_short: bool = False


@dataclass(slots=True, frozen=True)
class BackendSnapshot:
    """One backend.

    Attributes:
        pool, name: which.
        seats: how many it has now; those of ``auto`` move.
        running: how many are taken.
        up: whether it takes work at all.
        kv_free: free part of its KV cache as the watermarks see it: less what was dispatched since the last reading and
            what is expected to grow; below 0 when more is promised than fits; ``None`` when unknown.
        stale: its readings are too old, or do not move, and are not used.
        budget_level: part of its quotas that is left, the least of them; ``None`` without any.
        paused_until: it takes nothing before; ``None`` without a pause.
        engine_running: requests in its batch by its last reading; ``None``: it has shown none.
        engine_waiting: requests in its own queue, likewise.
    """

    pool: str
    name: str
    seats: int
    running: int
    up: bool
    kv_free: float | None = None
    stale: bool = False
    budget_level: float | None = None
    paused_until: float | None = None
    engine_running: int | None = None
    engine_waiting: int | None = None


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
    storm: bool = False
    would: tuple[tuple[str, int], ...] = ()


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
        lends: the band that it lends to what it waits for, for ``kind`` ``dependency``.
        ahead: how many others wait in its band and above, in its pool; at most so many and some overtakes go first.
            ``None`` for what does not wait in a band.
        expected_wait_s: how long a newcomer to its flow would wait now, seconds; it waits no longer. ``None`` when
            nobody can say: before the pool has completed anything, while work of higher bands comes faster than the
            pool drains, and while something other than seats stops it.
        expires_in_s: when it ends if it still waits then, seconds from now.
    """

    kind: WhyKind
    detail: str
    gate: Gate | None = None
    waited_s: float = 0.0
    lends: int | None = None
    ahead: int | None = None
    expected_wait_s: float | None = None
    expires_in_s: float | None = None


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
        backends=tuple(_backend(pool.name, backend, now) for pool in pools for backend in pool.seating.backends),
        storm=state.storm.rages(now, state.leases),
        would=tuple(sorted(sum((pool.would for pool in pools), Counter()).items())),
    )


def _backend(pool: str, backend: Backend, now: float) -> BackendSnapshot:
    quotas = [quota for quota in (backend.tokens, backend.requests) if quota is not None]
    reading = backend.sensor.reading
    return BackendSnapshot(
        pool,
        backend.name,
        backend.seats,
        backend.running,
        backend.up,
        kv_free=backend.sensor.free(now, backend.outstanding),
        stale=backend.sensor.stale(now),
        budget_level=min((quota.level(now) for quota in quotas), default=None),
        paused_until=backend.paused_until if backend.paused_until > now else None,
        engine_running=None if reading is None else reading.running,
        engine_waiting=None if reading is None else reading.waiting,
    )


def _bands(pool: Pool, now: float) -> list[BandSnapshot]:
    look(pool.seating, now)
    rows = []
    for queue in pool.queues:
        head, gate = queue.head(), _gate(pool, queue.band)
        if open_but_for_room(pool.seating, gate) and pool.room.stops(pool.seating, queue, now):
            gate = NO_ROOM
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
                gate=gate,
                reserve=pool.seating.reserves[queue.band],
                reserve_short=queue.band in pool.guards and pool.guards[queue.band].short,
            )
        )
    return rows


def _gate(pool: Pool, band: int) -> Gate | None:
    """Return what stops work of a band that has not begun."""
    return MODE if pool.seating.shuts(band) else hold(pool.seating, band)


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
    wait = state.names.parked.get(entry)
    if wait is not None:
        names = ", ".join(work.name for work in islice(wait.works, 3))
        detail = f"it waits for {names}"
        return Why(WhyKind.DEPENDENCY, detail, waited_s=waited_s, lends=wait.band, expires_in_s=_left(entry, now))
    pool, band = state.pools[entry.queue.pool], entry.queue.band
    look(pool.seating, now)
    gate = hold(pool.seating, band) if entry.begun else _gate(pool, band)
    if open_but_for_room(pool.seating, gate) and lacks(pool.seating, band, entry.cost, now):
        gate = NO_ROOM
    if entry.flow.tenant.parked:
        limit = entry.tenant.spec.max_running
        kind, detail, gate = WhyKind.TENANT_RUNNING, f"tenant {entry.tenant.name!r} runs {limit} already", None
    elif gate is not None:
        kind, detail = WhyKind.GATE, gate.detail
    else:
        kind, detail = WhyKind.BEHIND, "others are due first"
    by_seats = kind is WhyKind.BEHIND or (gate is not None and gate.kind in _BY_SEATS)
    wait_s = expected_wait(pool, state.policy, band, backlog=entry.flow.count - 1, now=now) if by_seats else None
    return Why(
        kind,
        detail,
        gate,
        waited_s,
        ahead=sum(queue.count for queue in pool.queues[: band + 1]) - 1,
        expected_wait_s=None if wait_s == INFINITE else wait_s,
        expires_in_s=_left(entry, now),
    )


def _left(entry: Entry, now: float) -> float | None:
    return None if entry.expires == INFINITE else entry.expires - now
