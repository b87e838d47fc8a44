"""Say no: the only place that does (SPEC §4.1 eligibility, §15.13).

A band is *gated* when nothing may pass (mode, pause, quota, KV memory, no backend, no seat), *held* by a reserve or a
ceiling, which some kinds of dispatch may pass. The dispatch loop, refusals, ``why`` and the dashboard all read
``hold``. What depends on time or on a backend is brought up to date by ``look``, which costs nothing in a pool where
no backend has a quota, a pause or a known cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidegate.core.routing import Backend, Seating

NEVER: Final = float("inf")


class GateKind(StrEnum):
    """What stops a band."""

    NO_BACKEND = "no_backend"
    PAUSED = "paused"
    BUDGET = "budget"
    NO_SEAT = "no_seat"
    KV = "kv"
    ROOM = "room"
    MODE = "mode"
    RESERVE = "reserve"
    CEILING = "ceiling"


@dataclass(slots=True, frozen=True)
class Gate:
    """Why a band may not start work now.

    Attributes:
        kind: what stops it.
        detail: one sentence for people.
        gated: nothing passes; otherwise the band is only held.
    """

    kind: GateKind
    detail: str
    gated: bool


NO_BACKEND: Final = Gate(GateKind.NO_BACKEND, "no backend of the model is up", gated=True)
PAUSED: Final = Gate(GateKind.PAUSED, "every backend of the model has asked for a pause", gated=True)
BUDGET: Final = Gate(GateKind.BUDGET, "the quota of every backend of the model is used up for now", gated=True)
NO_SEAT: Final = Gate(GateKind.NO_SEAT, "every seat is taken", gated=True)
KV: Final = Gate(GateKind.KV, "the engines have less free cache than the band's watermark", gated=True)
NO_ROOM: Final = Gate(GateKind.ROOM, "no engine has room in its cache for so long a request", gated=True)
MODE: Final = Gate(GateKind.MODE, "the mode admits no work of this band", gated=True)
_RESERVE: Final = Gate(GateKind.RESERVE, "the free seats are reserved for a higher band", gated=False)
_CEILING: Final = Gate(GateKind.CEILING, "more seats are taken than the band's ceiling allows", gated=False)

# How far a backend is from taking work; of several backends the one that is closest counts.
_STEPS: Final = (NO_BACKEND, PAUSED, BUDGET, NO_SEAT, None)
_DOWN, _PAUSED, _EMPTY, _FULL, _OPEN = range(5)


def look(pool: Seating, now: float) -> None:
    """Bring up to date, for a pool with ``gating``, what stops each band and which backends may take work.

    Sets ``stopped`` per band, ``usable`` seats, and ``wake``: when a gate may open by time alone. While only observing,
    ``stopped`` says what a cache would stop too, and ``pools`` lets that through; the mode is counted on arrival.
    """
    pool.usable = 0
    pool.wake = NEVER
    best = _DOWN
    closures = []
    for backend in pool.backends:
        step = _step(pool, backend, now)
        backend.usable = step == _OPEN
        backend.full = pool.wary and not pool.observing and backend.crowded(now)
        closed = _closed(pool, backend, now) if step == _OPEN else None
        if closed is not None:
            closures.append(closed)
        elif step > best:
            best = step
    if closures and best != _OPEN:
        stop = NO_SEAT if any(backend.full for backend in pool.backends) else KV
        pool.stopped = [stop if all(each) else None for each in zip(*closures, strict=True)]
    else:
        pool.stopped = [_STEPS[best]] * len(pool.bands)
    if pool.closing and not pool.observing:
        pool.stopped = [stop if pool.admits(band) else MODE for band, stop in enumerate(pool.stopped)]
    pool.usable = min(pool.usable, pool.free)  # of what is lent here; otherwise it is no more anyway


def _step(pool: Seating, backend: Backend, now: float) -> int:
    """Say how far a backend is from taking work, its cache aside."""
    if not backend.up:
        return _DOWN
    if backend.paused_until > now:
        pool.wake = min(pool.wake, backend.paused_until)
        return _PAUSED
    backend.paused_until = 0.0
    opens_at = backend.opens_at(now)
    if opens_at > now:
        pool.wake = min(pool.wake, opens_at)
        return _EMPTY
    free = backend.seats - backend.running
    if free <= 0:
        return _FULL
    pool.usable += free
    return _OPEN


def _closed(pool: Seating, backend: Backend, now: float) -> list[bool] | None:
    """Return the bands that a backend has no room for in its cache, or in its batch; ``None``: it has for all."""
    sensor = backend.sensor
    if not ((sensor.watches and sensor.gate(now, backend.outstanding)) or backend.full):
        return None
    pool.wake = min(pool.wake, sensor.changes_at(now))
    return [closed or (band > 0 and backend.full) for band, closed in enumerate(sensor.closed)]


def hold(pool: Seating, band: int) -> Gate | None:
    """Return what stops ``band`` from starting work in ``pool`` now, ``None`` when nothing does.

    A ceiling outranks a reserve: an overtake may pass a reserve, only a floor may pass a ceiling.
    """
    free = pool.free
    if pool.gating:
        stop = pool.stopped[band]
        if stop is not None:
            return stop
        free = pool.usable
    if free <= 0:
        return NO_SEAT if pool.up else NO_BACKEND
    if pool.taken > pool.most_taken[band]:
        return _CEILING
    if free <= pool.least_free[band]:
        return _RESERVE
    return None


def stops_for_want_of_seats(pool: Seating, band: int, now: float) -> Gate:
    """Return what stops ``band`` where every seat is taken: its ceiling, its watermark, or that alone."""
    if pool.taken > pool.most_taken[band]:
        return _CEILING
    up = [backend for backend in pool.backends if backend.up] if pool.gating else []
    if up and all(each.sensor.gate(now, each.outstanding) and each.sensor.closed[band] for each in up):
        return KV
    return NO_SEAT


def holds(pool: Seating) -> list[str | None]:
    """Return for every band what holds it where nothing gates it, as kinds of dispatch may pass.

    A reserve that is short has no seat to spare for age either: like a ceiling it lets only floors pass.
    """
    free = pool.usable if pool.gating else pool.free
    taken = pool.taken
    return [
        GateKind.CEILING if taken > most or free <= firm else GateKind.RESERVE if free <= least else None
        for most, least, firm in zip(pool.most_taken, pool.least_free, pool.firm, strict=True)
    ]


def crowds(pool: Seating, band: int, tokens: int, now: float) -> bool:
    """Say whether a ticket of a band with a watermark is too large for every backend that is open to its band."""
    if pool.observing or not pool.bands[band].kv_watermark:
        return False
    open_to = [backend for backend in pool.backends if pool.can_take(backend, band)]
    return not any(backend.sensor.fits(now, backend.outstanding, tokens) for backend in open_to)


def paused_until(pool: Seating, now: float) -> float | None:
    """Return when the first backend ends its pause, ``None`` when one that is up has none."""
    ends = [backend.paused_until for backend in pool.backends if backend.up]
    return min(ends) if ends and min(ends) > now else None
