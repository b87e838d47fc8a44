"""Whether it storms: in the last second more was refused than dispatched (SPEC §15.19)."""

from __future__ import annotations

SPAN_S = 1.0


class Storm:
    """Counts refusals and reads the running count of dispatches; both halves of the last second are kept."""

    __slots__ = ("_before", "_now", "refused")

    def __init__(self) -> None:
        self.refused = 0
        self._before = (0.0, 0, 0)  # time, refusals and dispatches at the start of the last half second but one
        self._now = (0.0, 0, 0)

    def note(self, now: float, refused: int, dispatched: int) -> None:
        """Count refusals; ``dispatched`` is the number of dispatches since the start."""
        self._move(now, dispatched)
        self.refused += refused

    def rages(self, now: float, dispatched: int) -> bool:
        """Say whether refusals of the last half to whole second exceed dispatches."""
        self._move(now, dispatched)
        _, refused, sent = self._before
        return self.refused - refused > dispatched - sent

    def _move(self, now: float, dispatched: int) -> None:
        since = now - self._now[0]
        if since >= SPAN_S:
            self._before = self._now = (now, self.refused, dispatched)
        elif since >= SPAN_S / 2:
            self._before, self._now = self._now, (now, self.refused, dispatched)
