"""Quotas per minute: a sliding window of sixty one-second slots (SPEC §5.3).

A charge stands in the slot of its second and is settled there when the real figure is known. The budget is open
while less than its limit stands in the window; so it may be overdrawn by one request, and large requests pass.
"""

from __future__ import annotations

from math import floor

SLOTS = 60


class Budget:
    """One quota: at most ``limit`` per minute. Charges from before ``started`` are not known here."""

    __slots__ = ("_latest", "_slots", "limit", "started", "used")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.started = now
        self.used = 0
        self._slots = [0] * SLOTS
        self._latest = floor(now)

    def open(self, now: float) -> bool:
        """Say whether one more request may pass."""
        self._move(floor(now))
        return self.used < self.limit

    def charge(self, now: float, amount: int) -> None:
        """Count ``amount`` in the slot of ``now``."""
        self._move(floor(now))
        self._slots[self._latest % SLOTS] += amount
        self.used += amount

    def settle(self, charged_at: float, amount: int) -> None:
        """Correct what was charged at ``charged_at`` by ``amount`` (negative gives back); too old is forgotten."""
        slot = floor(charged_at)
        if charged_at >= self.started and slot > self._latest - SLOTS:
            self._slots[slot % SLOTS] += amount
            self.used += amount

    def open_in_s(self, now: float) -> float:
        """Return seconds until the budget is open again, 0 when it is, at most a minute."""
        if self.open(now):
            return 0.0
        left, slot = self.used, self._latest - SLOTS
        while left >= self.limit and slot < self._latest:
            slot += 1
            left -= self._slots[slot % SLOTS]
        return slot + SLOTS - now

    def _move(self, second: int) -> None:
        for slot in range(max(self._latest + 1, second - SLOTS + 1), second + 1):
            self.used -= self._slots[slot % SLOTS]
            self._slots[slot % SLOTS] = 0
        self._latest = max(self._latest, second)
