"""How fast rows of a batch end, and when it will be done. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

SLOT_S: Final = 1.0
SLOTS: Final = 60


class Rate:
    """Counts ends of rows over the last minute. Times are ``now`` values in seconds."""

    __slots__ = ("_began", "_slots")

    def __init__(self, now: float) -> None:
        self._began = now
        self._slots: deque[tuple[int, int]] = deque(maxlen=SLOTS + 1)

    def ended(self, now: float) -> None:
        """Count one."""
        slot = int(now / SLOT_S)
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1] = (slot, self._slots[-1][1] + 1)
        else:
            self._slots.append((slot, 1))

    def per_second(self, now: float) -> float:
        """Rows a second over the last minute, or since the beginning."""
        first = int(now / SLOT_S) - SLOTS
        count = sum(number for slot, number in self._slots if slot > first)
        return count / max(SLOT_S, min(now - self._began, SLOTS * SLOT_S))

    def left_s(self, rows: int, now: float) -> float | None:
        """Seconds until ``rows`` more have ended at this rate; ``None``: nothing ends."""
        rate = self.per_second(now)
        return rows / rate if rate > 0 else None
