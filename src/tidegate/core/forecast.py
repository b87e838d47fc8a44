"""How fast a pool drains, and how long new work would wait (SPEC §6 ``Retry-After``).

The drain rate is seats over the mean time that a seat is held. It equals the rate of completions while every seat
is busy, follows a change of seats at once, and is not fooled by idle time as a count of completions would be.
"""

from __future__ import annotations

_MEMORY = 64  # completions that the mean remembers


class Drain:
    """Mean seat time of one pool over its recent completions, seconds."""

    __slots__ = ("_count", "mean_s")

    def __init__(self) -> None:
        self._count = 0
        self.mean_s = 0.0

    def note(self, held_s: float) -> None:
        """Take in the seat time of one released lease."""
        if self._count < _MEMORY:
            self._count += 1
        self.mean_s += (held_s - self.mean_s) / self._count

    def rate(self, seats: int) -> float | None:
        """Return dispatches per second when ``seats`` are busy; ``None`` before the first completion."""
        if not self._count or seats <= 0:
            return None
        return seats / max(self.mean_s, 1e-3)
