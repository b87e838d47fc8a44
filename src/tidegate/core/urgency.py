"""Who presses for a seat, and whose seat may be taken: the two sides of preemption (see ``preemption``)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from tidegate.core.ordering import WAITING, Entry

NEVER: Final = float("inf")


@dataclass(slots=True, eq=False)
class Victim:
    """A lease that might be stopped.

    Attributes:
        entry: its ticket.
        turn: dispatches of its band's queue, its own included.
        began: when its first token came, ``None`` before.
    """

    entry: Entry
    turn: int
    began: float | None = None


class Urgency:
    """Who presses in one band that may preempt. ``coming`` have not waited long enough yet, by time of submission."""

    __slots__ = ("band", "coming", "overdue", "target_s")

    def __init__(self, band: int) -> None:
        self.band = band
        self.target_s = 0.0
        self.coming: deque[Entry] = deque()
        self.overdue: dict[Entry, None] = {}

    def sort(self, now: float) -> float:
        """Let those press whose time has come; return when the next one does."""
        coming, half_s = self.coming, self.target_s / 2
        while coming:
            first = coming[0]
            if first.state == WAITING:
                if first.submitted + half_s > now:
                    return first.submitted + half_s
                self.overdue[first] = None
            coming.popleft()
        return NEVER

    def pressing(self, most: int) -> list[Entry]:
        """Return at most ``most`` of those that press and could use a seat, the longest pressing first."""
        found, gone = [], []
        for entry in self.overdue:
            if entry.state != WAITING:
                gone.append(entry)
            elif not entry.flow.tenant.parked:
                found.append(entry)
                if len(found) == most:
                    break
        for entry in gone:
            del self.overdue[entry]
        return found
