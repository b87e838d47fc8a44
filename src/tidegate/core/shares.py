"""Weighted turns between bands: deficit round robin in its smooth form (SPEC §4.1 ``weighted``).

Classic deficit round robin (Shreedhar, Varghese 1995) gives a band its whole quantum at once: 8:2:1 serves eight of
p0 in a row. Here a band's deficit is written as the virtual time at which its next dispatch is due: serving work of
cost ``c`` moves it by ``c / share``, and the band with the earliest time is wanted; ties go to the higher band. The
shares over any busy period are the same, and turns are spread evenly: with 8:2:1 and requests as the unit, at most
ten other dispatches stand between two of p2. A band that had nothing to run comes back at the present virtual time,
so idle or held bands bank nothing. Times are integers (cost times the least common multiple of the shares over the
share), so that no rounding ever tips a tie.

The present is the time of the band that is wanted, whoever is served: the earliest due. A floor or an overtake out of
turn may not carry it along, else the others would catch up first and keep a band that comes back waiting for as long.
Nor does such a dispatch put its own band further off than one dispatch from the present: what was not the band's own
turn is paid back once, not piled up. So no band that may take a turn is due later than one dispatch after the present
(``bounds`` rests on this).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm


class Shares:
    """The shares account of one pool; bands are indexes, 0 is the highest."""

    __slots__ = ("_due", "_out", "_present", "shares", "step")

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = tuple(shares)
        common = lcm(*shares)
        self.step = [common // share for share in shares]
        self._due = [0] * len(shares)
        self._out = [True] * len(shares)  # could not run at the last decision
        self._present = 0

    def wanted(self, claim: Sequence[float | None], held: Sequence[str | None]) -> int | None:
        """Return the band whose share is due among those that may take a turn, ``None`` without one."""
        due, best = self._due, None
        for band, score in enumerate(claim):
            if score is None or held[band]:
                self._out[band] = True
                continue
            if self._out[band]:
                self._out[band] = False
                due[band] = max(due[band], self._present)
            if best is None or due[band] < due[best]:
                best = band
        if best is not None and due[best] > self._present:
            self._present = due[best]
        return best

    def give_back(self, band: int, cost: int) -> None:
        """Forget a dispatch that came to nothing."""
        self._due[band] = max(self._present, self._due[band] - cost * self.step[band])

    def charge(self, band: int, cost: int) -> None:
        """Count a dispatch of any kind against the band's share."""
        self._due[band] = max(self._due[band], self._present + cost * self.step[band])
