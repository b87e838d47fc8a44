"""Choose the band of the next dispatch: floors, turns and overtakes (SPEC §4.1).

One ``Between`` per pool. It takes and keeps plain numbers, so that the same rule can run inside a shared store.
Invariants: a floored band with work that may run gets at least one of every ``period`` dispatches; overtakes are at
most the cap's part of contended dispatches, plus one; where a ticket may use a seat, some band is chosen.

The part that a contended dispatch earns counts for that very dispatch: a cap of 1 means plain ageing (else every
second overtake would be refused), and a cap of c allows one overtake in 1/c contended dispatches, not in 1/c + 1.

``Between`` is the rule as it reads; ``QuickBetween`` decides the same in a third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from tidegate.core.model import Turn

FLOOR: Final = Turn.FLOOR
OVERTAKE: Final = Turn.OVERTAKE
TURN: Final = Turn.TURN
NEVER: Final = float("inf")

Claims = Sequence[float | None]
Held = Sequence[str | None]
Choice = tuple[int, Turn]


class Between:
    """The accounts of one pool. Bands are indexes, 0 is the highest.

    Args:
        floors: guaranteed part of the dispatches per band, 0 for none.
        cap: most part of contended dispatches that may be overtakes, floors included.
    """

    __slots__ = ("cap", "credit", "earn", "floors", "gap", "join", "period", "unit")

    def __init__(self, floors: Sequence[Fraction], cap: Fraction) -> None:
        self.floors, self.cap = tuple(floors), cap
        count = sum(floor > 0 for floor in floors)
        self.period = [int(1 / floor) if floor else 0 for floor in floors]
        # A band that comes back from a gate may be this close to its floor, no closer: nothing is hoarded.
        self.join = [max(0, period - 1 - count) for period in self.period]
        self.gap = [0] * len(floors)  # dispatches since the band's last one, while it could run
        extra = Fraction(cap) - sum(floors)  # what ageing may spend beyond the floors
        self.unit, self.earn = extra.denominator, extra.numerator
        self.credit = [0] * len(floors)  # per overtaken band

    def choose(self, claim: Claims, gated: Sequence[bool], held: Held, wanted: int | None = None) -> Choice | None:
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


class QuickBetween:
    """The same rule in one pass without lists, for the hot path; a test holds the two together.

    Instead of counting every band's gap up at each dispatch it counts dispatches once (``clock``), and keeps for each
    band the count from which its floor may be due. A floored band without work has no such count until it comes back.

    Attributes:
        bits: of each floored band its bit in a set of bands, 0 for the others.
        credit, earn, unit: as in ``Between``.
    """

    __slots__ = (
        "_before", "_clock", "_floored", "_from", "_join", "_late", "_out", "_period", "_soon", "bits", "cap", "credit",
        "earn", "floors", "others", "unit",
    )  # fmt: skip

    def __init__(self, floors: Sequence[Fraction], cap: Fraction) -> None:
        plain = Between(floors, cap)
        self.floors, self.cap = plain.floors, plain.cap
        self.unit, self.earn, self.credit = plain.unit, plain.earn, plain.credit
        self._period, self._join = plain.period, plain.join
        self._floored = [band for band, period in enumerate(plain.period) if period]
        self.bits = [1 << band if period else 0 for band, period in enumerate(plain.period)]
        self.others = [sum(self.bits) - bit for bit in self.bits]  # of each band, all floored ones but itself
        # With as much slack as there are floors, no floor can be due: below these gaps there is nothing to check.
        self._late = [period - len(self._floored) if period else 0 for period in plain.period]
        self._clock = 0
        self._from = [late if period else NEVER for late, period in zip(self._late, plain.period, strict=True)]
        self._before = list(self._from)  # what it was at each band's last dispatch
        self._soon = min(self._from)  # count from which some floor may be due
        self._out = 0  # floored bands that had no work at the last dispatch

    @property
    def gap(self) -> list[int]:
        """Dispatches since each floored band's last one while it could run; 0 for the others."""
        return [self._gap(band) if self._from[band] < NEVER else 0 for band in range(len(self._period))]

    def adopt(self, gap: Sequence[int]) -> None:
        """Take over the gaps of an earlier rule, no closer to a floor than a band that comes back from a gate."""
        for band in self._floored:
            self._set_gap(band, min(gap[band], self._join[band]))

    def undo(self, band: int) -> None:
        """Forget the latest dispatch of a band: it came to nothing, so its floor stands as if it had not been."""
        if self._period[band] and self._before[band] < NEVER:
            self._from[band] = self._before[band] + 1  # the dispatch itself is none that the band waited through
            self._before[band] = NEVER
            self._out &= ~self.bits[band]
            self._soon = min(self._from)

    def decide(self, claim: Claims, held: Held, wanted: int | None = None, gated: Sequence[int] = ()) -> Choice | None:
        """Choose and commit in one step.

        Args:
            claim: as in ``Between.choose``, but ``None`` for gated bands too.
            held: as in ``Between.choose``.
            wanted: as in ``Between.choose``.
            gated: the bands whose claim is ``None`` only because of a gate.
        """
        bits, top, best, out, contended, score = self.bits, -1, -1, 0, False, 0.0
        for band, bid in enumerate(claim):
            if bid is None:
                out |= bits[band]
            elif top < 0:
                if not held[band]:
                    top, best, score = band, band, bid
            else:
                contended = True
                if bid > score and held[band] != "ceiling":
                    best, score = band, bid
        return self.settle(top, best if contended else -1, out, wanted, gated)

    def settle(
        self, top: int, best: int, out: int, wanted: int | None = None, gated: Sequence[int] = ()
    ) -> Choice | None:
        """Choose and commit, given what one look at the claims has shown.

        Args:
            top: the highest band that may take a turn, -1 without one.
            best: the band with the best claim that may overtake; -1 when no band below ``top`` may run.
            out: the floored bands that may not run, as a set of ``bits``.
            wanted: as in ``decide``.
            gated: as in ``decide``.
        """
        if gated:
            for band in gated:
                out &= ~self.bits[band]
        if self._out & ~out:
            self._come_back(out)
        clock = self._clock
        close = self._close(out, gated) if clock >= self._soon else None
        if close and _is_due(close):
            chosen, kind = min(close)[1], FLOOR
        elif top < 0:
            return None
        else:
            chosen, kind = (top if wanted is None else wanted), TURN
        if best >= 0:
            credit = self.credit[top] + self.earn
            if credit >= self.unit:
                credit = self.unit
                if best != top and kind is TURN:
                    chosen, kind, credit = best, OVERTAKE, 0
            self.credit[top] = credit
        self._clock = clock = clock + 1
        if self._period[chosen]:
            self._before[chosen] = self._from[chosen]
            self._from[chosen] = clock + self._late[chosen]
            self._soon = min(self._from)
        if out != self._out:
            self._stand_out(out)
        if gated:
            self._hold_back(gated)
        return chosen, kind

    def alone(self, band: int) -> Turn:
        """Choose and commit where nothing of any other band may run, and ``band`` may take a turn."""
        clock, out = self._clock, self.others[band]
        if clock >= self._soon or out != self._out:
            choice = self.settle(band, -1, out)
            assert choice is not None
            return choice[1]
        self._clock = clock = clock + 1  # what is left of ``settle`` then
        if self._period[band]:
            due_from = self._from
            self._before[band] = due_from[band]
            due_from[band] = self._soon = clock + self._late[band]  # the others have no such count
        return TURN

    def _close(self, out: int, gated: Sequence[int]) -> list[tuple[int, int]]:
        """Return slack and band of those that can run and have less slack than there are floors."""
        return [
            (self._period[band] - 1 - self._gap(band), band)
            for band in self._floored
            if not out & self.bits[band] and band not in gated and self._clock >= self._from[band]
        ]

    def _gap(self, band: int) -> int:
        return self._clock - int(self._from[band]) + self._late[band]

    def _set_gap(self, band: int, gap: int) -> None:
        self._from[band] = self._clock + self._late[band] - gap
        self._soon = min(self._from)

    def _come_back(self, out: int) -> None:
        """Count from now on for the bands that have work again."""
        back, due_from = self._out & ~out, self._from
        for band in self._floored:
            if back & self.bits[band]:
                due_from[band] = self._clock + self._late[band]
        self._out &= out
        self._soon = min(due_from)

    def _stand_out(self, out: int) -> None:
        """Forget the gaps of floored bands that have no work any more."""
        for band in self._floored:
            if out & self.bits[band]:
                self._from[band] = NEVER
        self._out = out
        self._soon = min(self._from)

    def _hold_back(self, gated: Sequence[int]) -> None:
        """Hold back the gaps of floored bands that a gate stopped: nothing is hoarded."""
        for band in gated:
            if self._period[band]:  # the dispatch just counted was not missed
                self._set_gap(band, min(self._gap(band) - 1, self._join[band]))


def _is_due(close: list[tuple[int, int]]) -> bool:
    """Say whether some floor would be late; ``close`` are the bands with less slack than there are floors."""
    if len(close) == 1:
        return close[0][0] <= 0
    return any(slack <= place for place, (slack, _) in enumerate(sorted(close)))
