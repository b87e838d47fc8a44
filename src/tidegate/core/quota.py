"""Quotas of an upstream: at most so much in any minute, and at most a sixth of that in any ten seconds (SPEC §5.3).

A charge stands in the slot of its second and is settled there when the real figure is known. A slot leaves a window a
whole window after its last charge, so that the sums hold for any 60 s and any 10 s, not only for those that begin with
a slot. The quota is open while less than its limit stands in both windows: it may be overdrawn by one request, so that
requests larger than a sixth pass too.
"""

from __future__ import annotations

from collections import deque
from typing import Final

LONG_S: Final = 60.0
SHORT_S: Final = 10.0


class Slot:
    """What was charged in one second. ``age``: 2 within both windows, 1 within the minute only, 0 past."""

    __slots__ = ("age", "amount", "last", "second")

    def __init__(self, now: float) -> None:
        self.second = int(now)
        self.last = now
        self.amount = 0
        self.age = 2


class Quota:
    """One quota of one backend.

    Args:
        limit: amount per minute.
    """

    __slots__ = ("_foreign", "_foreign_until", "_late", "_recent", "limit", "recent", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0  # in the last minute
        self.recent = 0  # in the last ten seconds
        self._recent: deque[Slot] = deque()
        self._late: deque[Slot] = deque()  # between ten seconds and a minute old
        self._foreign = 0
        self._foreign_until = 0.0

    def open(self, now: float) -> bool:
        """Say whether one more request may pass."""
        self._move(now)
        return self.used + self._foreign < self.limit and 6 * self.recent < self.limit

    def charge(self, now: float, amount: int) -> Slot:
        """Count ``amount`` at ``now``; return the slot to settle it in."""
        self._move(now)
        recent = self._recent
        slot = recent[-1] if recent else None
        if slot is None or slot.second != int(now):
            slot = Slot(now)
            recent.append(slot)
        slot.last = now
        slot.amount += amount
        self.used += amount
        self.recent += amount
        return slot

    def settle(self, slot: Slot, amount: int) -> None:
        """Correct what was charged in ``slot`` by ``amount`` (negative gives back); what is past stays past."""
        slot.amount += amount
        if slot.age:
            self.used += amount
            if slot.age > 1:
                self.recent += amount

    def correct(self, now: float, remaining: int, reset_s: float) -> None:
        """Believe an upstream that says how much is left: what it counts beyond ours is used by others.

        It never loosens the quota, because what it says is older than our last charges.
        """
        self._move(now)
        self._foreign = max(0, self.limit - max(0, remaining) - self.used)
        self._foreign_until = now + min(max(reset_s, 0.0), LONG_S)

    def level(self, now: float) -> float:
        """Return the part of the minute that is left, 0 to 1."""
        self._move(now)
        return max(0.0, 1.0 - (self.used + self._foreign) / self.limit)

    def open_at(self, now: float) -> float:
        """Return when the quota is open again if nothing is settled until then; ``now`` when it is open."""
        if self.open(now):
            return now
        at, left = now, self.recent
        for slot in self._recent:
            if 6 * left < self.limit:
                break
            left -= slot.amount
            at = slot.last + SHORT_S
        left = self.used + self._foreign
        if left >= self.limit and self._foreign:
            left -= self._foreign
            at = max(at, self._foreign_until)
        for slot in (*self._late, *self._recent):
            if left < self.limit:
                break
            left -= slot.amount
            at = max(at, slot.last + LONG_S)
        return at

    def _move(self, now: float) -> None:
        recent, late = self._recent, self._late
        while recent and recent[0].last + SHORT_S <= now:
            slot = recent.popleft()
            slot.age = 1
            self.recent -= slot.amount
            late.append(slot)
        while late and late[0].last + LONG_S <= now:
            slot = late.popleft()
            slot.age = 0
            self.used -= slot.amount
        if self._foreign and now >= self._foreign_until:
            self._foreign = 0
