"""Everything that waits, over all pools: counts, bytes, who entered first, who expires next (SPEC §4.4, §6).

Each band's waiting tickets stand in one linked list in order of entry, so that the first, the last and any removal
cost O(1) without dead entries. A band's TTL is one number, so the list is in order of expiry too; the tickets whose
clients asked for less stand in a heap besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from tidegate.core.model import Ticket
from tidegate.core.ordering import WAITING, Entry
from tidegate.core.policy import Policy
from tidegate.core.tenants import Tenants

NEVER: Final = float("inf")
_SLACK: Final = 64


def _no_ticket() -> Entry:
    return Entry(Ticket("", "", 0, ""), Tenants(()).crowd, 0, 0.0, 0.0, NEVER)


class BandList:
    """The waiting tickets of one band (the ticket's own) over all pools, in order of entry."""

    __slots__ = ("bytes", "count", "ends", "latest")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.ends = _no_ticket()  # of the entries' own type: attributes of one type are found faster
        self.ends.before = self.ends.after = self.ends
        self.latest = 0.0  # latest expiry of those in order

    def oldest(self) -> Entry | None:
        """Return the ticket that entered first."""
        first = self.ends.after
        return None if first is self.ends else first

    def entries(self) -> Iterator[Entry]:
        """Yield the tickets that entered first to last."""
        entry = self.ends.after
        while entry is not self.ends:
            yield entry
            entry = entry.after

    def newest(self) -> Entry | None:
        """Return the ticket that entered last."""
        last = self.ends.before
        return None if last is self.ends else last


class Waiting:
    """All waiting tickets. ``wake`` is never later than the next expiry and ``alarm``, when a gate may open."""

    __slots__ = (
        "_capacity",
        "_early",
        "_early_dead",
        "_most_bytes",
        "_over",
        "alarm",
        "bands",
        "bytes",
        "total",
        "wake",
    )

    def __init__(self, policy: Policy) -> None:
        self.bands = [BandList() for _ in policy.bands]
        self.total = 0
        self.bytes = 0
        self.wake = self.alarm = NEVER
        self._early: list[tuple[float, int, Entry]] = []
        self._early_dead = 0
        self.obey(policy)

    def obey(self, policy: Policy) -> None:
        """Take new bounds; what waits stays."""
        self._capacity, self._most_bytes = policy.queue_capacity, policy.queue_bytes
        self._over = self.bytes > self._most_bytes

    def is_crowded(self) -> bool:
        """Say whether the whole queue is over its length or its bytes."""
        return self._over or self.total > self._capacity

    def enter(self, entry: Entry, index: int) -> bool:
        """Count a ticket in; return whether the queue is crowded now."""
        band = entry.line = self.bands[index]
        self.total = total = self.total + 1
        band.count += 1
        size = entry.ticket.size_bytes
        if size:
            self.bytes += size
            band.bytes += size
            self._over = self.bytes > self._most_bytes
        ends = band.ends
        last = ends.before
        entry.before, entry.after = last, ends
        last.after = ends.before = entry
        expires = entry.expires
        if expires >= band.latest:
            band.latest = expires
        else:
            entry.early = True
            heappush(self._early, (expires, entry.seq, entry))
        if expires < self.wake:
            self.wake = expires
        if self._over:
            return True
        return total > self._capacity

    def enter_aside(self, entry: Entry, index: int) -> None:
        """Count a ticket in that stands in no list: a parked one, or one in a band lent to it."""
        band = entry.line = self.bands[index]
        self.total += 1
        band.count += 1
        self.bytes += entry.ticket.size_bytes
        band.bytes += entry.ticket.size_bytes
        self._over = self.bytes > self._most_bytes
        entry.before = entry.after = NOBODY
        entry.early = True
        self._early_dead -= 1  # no earlier item of it is there to die
        self.set_expiry(entry, entry.expires)

    def set_expiry(self, entry: Entry, expires: float) -> None:
        """Change when a ticket that stands aside expires; its earlier item dies."""
        entry.expires = expires
        self._early_dead += 1
        heappush(self._early, (expires, entry.seq, entry))
        self.wake = min(self.wake, expires)

    def leave(self, entry: Entry) -> None:
        """Count a ticket out."""
        band = entry.line
        self.total -= 1
        band.count -= 1
        size = entry.ticket.size_bytes
        if size:
            self.bytes -= size
            band.bytes -= size
            self._over = self.bytes > self._most_bytes
        before, after = entry.before, entry.after
        before.after, after.before = after, before
        entry.before = entry.after = NOBODY
        if entry.early:
            self._drop_early(entry)

    def due(self, now: float) -> Entry | None:
        """Return the ticket that expired first, ``None`` when none has."""
        first = self._first()
        if first is None or first.expires > now:
            self.wake = self.alarm if first is None else min(first.expires, self.alarm)
            return None
        return first

    def any(self) -> Entry | None:
        """Return a ticket that waits, the last bands' first, those aside at the end; ``None`` when none waits."""
        lists = (band.oldest() for band in reversed(self.bands))  # batch work has most time to come again
        return next((entry for entry in lists if entry is not None), None) or self._first()

    def next_wake(self) -> float:
        """Return when the next ticket expires or a gate may open, infinity for never."""
        first = self._first()
        self.wake = self.alarm if first is None else min(first.expires, self.alarm)
        return self.wake

    def set_alarm(self, at: float) -> None:
        """Change when a gate may open by time alone."""
        self.alarm = at
        self.wake = min(self.wake, at)

    def aside(self) -> list[Entry]:
        """Return the tickets that stand in no list; walks them all."""
        return [item[2] for item in self._early if _is_live(item) and item[2].after is NOBODY]

    def _first(self) -> Entry | None:
        early = self._early
        while early and not _is_live(early[0]):
            heappop(early)
            self._early_dead -= 1
        first = early[0][2] if early else None
        for band in self.bands:
            entry = band.oldest()
            if entry is not None and (first is None or (entry.expires, entry.seq) < (first.expires, first.seq)):
                first = entry
        return first

    def _drop_early(self, entry: Entry) -> None:
        early = self._early
        if early and early[0][2] is entry:
            heappop(early)
            return
        self._early_dead += 1
        if self._early_dead > len(early) // 2 + _SLACK:
            self._early = [item for item in early if _is_live(item)]
            heapify(self._early)
            self._early_dead = 0


def _is_live(item: tuple[float, int, Entry]) -> bool:
    """Say whether an item of the heap still speaks for its ticket."""
    entry = item[2]
    return entry.state == WAITING and entry.early and entry.expires == item[0]


NOBODY: Final = _no_ticket()
NOBODY.before = NOBODY.after = NOBODY
