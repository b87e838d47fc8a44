"""Choose the band of the next dispatch: floors, turns and overtakes (SPEC §4.1).

One ``Between`` per pool. It takes and keeps plain numbers, so that the same rule can run inside a shared store.
Invariants: a floored band with work that may run gets at least one of every ``period`` dispatches; overtakes are at
most the cap's part of contended dispatches, plus one; where a ticket may use a seat, some band is chosen.

The part that a contended dispatch earns counts for that very dispatch: a cap of 1 means plain ageing (else every
second overtake would be refused), and a cap of c allows one overtake in 1/c contended dispatches, not in 1/c + 1.

``choose`` and ``commit`` are the rule as it reads. ``decide`` is both in one pass without lists, for the hot path;
a test holds them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tidegate.core.model import Turn

FLOOR = Turn.FLOOR
OVERTAKE = Turn.OVERTAKE
TURN = Turn.TURN

Claims = Sequence[float | None]
Held = Sequence[str | None]


class Between:
    """The accounts of one pool. Bands are indexes, 0 is the highest.

    Args:
        floors: guaranteed part of the dispatches per band, 0 for none.
        cap: most part of contended dispatches that may be overtakes, floors included.
    """

    __slots__ = ("cap", "credit", "earn", "floored", "floors", "gap", "join", "period", "unit")

    def __init__(self, floors: Sequence[Fraction], cap: Fraction) -> None:
        self.floors, self.cap = tuple(floors), cap
        count = sum(floor > 0 for floor in floors)
        self.period = [int(1 / floor) if floor else 0 for floor in floors]
        self.floored = [band for band, period in enumerate(self.period) if period]
        # A band that comes back from a gate may be this close to its floor, no closer: nothing is hoarded.
        self.join = [max(0, period - 1 - count) for period in self.period]
        self.gap = [0] * len(floors)  # dispatches since the band's last one, while it could run
        extra = Fraction(cap) - sum(floors)  # what ageing may spend beyond the floors
        self.unit, self.earn = extra.denominator, extra.numerator
        self.credit = [0] * len(floors)  # per overtaken band

    def choose(
        self, claim: Claims, gated: Sequence[bool], held: Held, wanted: int | None = None
    ) -> tuple[int, Turn] | None:
        """Say who runs next and why; changes nothing.

        Args:
            claim: score of each band's oldest runnable ticket, ``None`` when nothing is runnable.
            gated: bands that nothing may pass into.
            held: ``"reserve"``, ``"ceiling"`` or ``None`` per band.
            wanted: the band whose share is due (weighted discipline); ``None``: the highest free band.
        """
        live = [band for band, score in enumerate(claim) if score is not None and not gated[band]]
        due = sorted((self.period[band] - 1 - self.gap[band], band) for band in live if self.period[band])
        if any(slack <= place for place, (slack, _) in enumerate(due)):
            return due[0][1], FLOOR  # else some floor would be late
        free = [band for band in live if not held[band]]
        if not free:
            return None
        top = free[0]
        may = [band for band in live if not held[band] or (held[band] == "reserve" and band > top)]
        best = max(may, key=lambda band: (claim[band], -band))
        if best != top and self.credit[top] + self.earn >= self.unit:
            return best, OVERTAKE
        return (top if wanted is None else wanted), TURN

    def commit(self, band: int, kind: Turn, claim: Claims, gated: Sequence[bool], held: Held) -> None:
        """Note that ``band`` was dispatched as ``kind``, with the same arguments that ``choose`` saw."""
        live = [each for each, score in enumerate(claim) if score is not None and not gated[each]]
        for each, score in enumerate(claim):
            if each == band or score is None:
                self.gap[each] = 0
            elif each in live:
                self.gap[each] += 1
            else:
                self.gap[each] = min(self.gap[each], self.join[each])
        top = next((each for each in live if not held[each]), None)
        if top is not None and any(each > top for each in live):
            self.credit[top] = min(self.unit, self.credit[top] + self.earn)
            if kind is OVERTAKE:
                self.credit[top] -= self.unit

    def decide(
        self, claim: Claims, gated: Sequence[bool], held: Held, wanted: int | None = None
    ) -> tuple[int, Turn] | None:
        """Choose and commit in one step."""
        gap, period, floored = self.gap, self.period, self.floored
        near = len(floored)  # with this much slack or more left to every floor, none can be due
        top = best = -1
        score = 0.0
        contended = False
        for band, bid in enumerate(claim):
            if bid is None or gated[band]:
                continue
            if period[band] and period[band] - 1 - gap[band] < near:
                return self._decide_slowly(claim, gated, held, wanted)
            if top >= 0:
                contended = True
                if bid > score and held[band] != "ceiling":
                    best, score = band, bid
            elif not held[band]:
                top, best, score = band, band, bid
        if top < 0:
            return None
        chosen, kind = (top if wanted is None else wanted), TURN
        if contended:
            credit = self.credit[top]
            if best != top and credit + self.earn >= self.unit:
                chosen, kind = best, OVERTAKE
                self.credit[top] = min(self.unit, credit + self.earn) - self.unit
            elif credit < self.unit:
                self.credit[top] = min(self.unit, credit + self.earn)
        for band in floored:
            if band == chosen or claim[band] is None:
                gap[band] = 0
            elif gated[band]:
                gap[band] = min(gap[band], self.join[band])
            else:
                gap[band] += 1
        return chosen, kind

    def _decide_slowly(
        self, claim: Claims, gated: Sequence[bool], held: Held, wanted: int | None
    ) -> tuple[int, Turn] | None:
        chosen = self.choose(claim, gated, held, wanted)
        if chosen is not None:
            self.commit(*chosen, claim, gated, held)
        return chosen
