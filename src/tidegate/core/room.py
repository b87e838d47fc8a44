"""The size rule: a ticket of a band with a watermark waits until the cache has room for it, but not for ever.

A watermark alone says nothing of size: one long prompt may be a third of a cache, and wait in the engine for room that
is then kept from the highest band too. While the ticket whose turn it is has no room, another tenant's that has goes
before it. It is let in all the same when it has held its turn for ``PATIENCE_S``. One whose TTL ends before is refused
then, and told why: to let it in sooner, at half of its TTL, made the highest band wait several times as long at p99,
in the simulated engine with little memory. The same rule decides what a scheduler starts by itself, what it bids for
where it shares its seats, and what it starts on a grant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.gates import NEVER, NO_SEAT, crowds

if TYPE_CHECKING:
    from tidegate.core.gates import Gate
    from tidegate.core.ordering import Entry
    from tidegate.core.queues import BandQueue
    from tidegate.core.routing import Backend, Seating

PATIENCE_S = 30.0
"""How long a ticket that is too large for the room there is waits for more, at most."""
_OTHERS = 8  # tenants looked at for one that fits instead


class Room:
    """Of the bands of one pool, since when the ticket whose turn it is waits for room."""

    __slots__ = ("_since",)

    def __init__(self, bands: int) -> None:
        self._since = [NEVER] * bands

    def judge(self, seating: Seating, queue: BandQueue, now: float) -> tuple[bool, Entry | None]:
        """Say whether a band is to wait, and which ticket runs in place of the one whose turn it is.

        So does the one whose turn it is where the oldest has no room. The queue must have one that may run.
        """
        band, up = queue.band, queue.next_up(now)
        if not crowds(seating, band, up.cost, now):
            self._since[band] = NEVER
            oldest = queue.head()
            if oldest is not None and oldest is not up and crowds(seating, band, oldest.cost, now):
                return False, up
            return False, None
        self._since[band] = max(min(self._since[band], now), queue.busy_since)
        until = self._since[band] + PATIENCE_S
        if now >= until:
            return False, None
        seating.wake = min(seating.wake, until)
        other = _other(seating, queue, now)
        return other is None, other

    def waits(self, band: int) -> bool:
        """Whether the ticket whose turn it was had no room when it was last asked for."""
        return self._since[band] < NEVER

    def stops(self, seating: Seating, queue: BandQueue, now: float) -> bool:
        """Say the same to somebody who looks: nothing is noted."""
        if queue.head() is None:
            return False
        up = queue.next_up(now)
        if not lacks(seating, queue.band, up.cost, now) or now >= self._since[queue.band] + PATIENCE_S:
            return False
        return _other(seating, queue, now) is None

    def served(self, band: int) -> None:
        """The ticket whose turn it was runs: the next one has a patience of its own."""
        self._since[band] = NEVER


def has_room(seating: Seating, band: int, tokens: int, backend: Backend, now: float) -> bool:
    """Say whether a backend has room for so many tokens of a band, or whether the band need not wait for it."""
    if seating.observing or not seating.bands[band].kv_watermark:
        return True
    return backend.sensor.fits(now, backend.outstanding, tokens)


def lacks(seating: Seating, band: int, tokens: int, now: float) -> bool:
    """Say whether backends would take work of a band, but none so much."""
    may = any(seating.can_take(backend, band) for backend in seating.backends)
    return may and crowds(seating, band, tokens, now)


def open_but_for_room(seating: Seating, gate: Gate | None) -> bool:
    """Say whether nothing but want of room may stop a band. Who is granted each seat has none at hand."""
    return seating.gating and (gate is None or (gate is NO_SEAT and seating.lent is not None))


def _other(seating: Seating, queue: BandQueue, now: float) -> Entry | None:
    """Return the first ticket of another flow that has room."""
    for other in queue.next_up_of_others(now, _OTHERS):
        if not crowds(seating, queue.band, other.cost, now):
            return other
    return None
