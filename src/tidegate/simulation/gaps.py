"""How long a band with waiting work goes without a dispatch, counted dispatch by dispatch beside the scheduler.

A gap is the number of dispatches of the pool from the first at which the band waits up to its own next one, that one
included, while it waits and may run. Every dispatch counts as one, also of stopped work that goes on; one that was
stopped before its first token was none of its band's (SPEC §7). Where every waiting ticket of a band was kept out by a
gate (``Dispatch.barred``), nothing is promised: the gap stands still, and comes back from there no longer than the rule
allows it to (``Between.join``); a band without a floor begins anew.

This counts what was done, from outside: of the scheduler's own accounts it reads none but what was barred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.core import Discipline, Policy, Unit
from tidegate.core.between import Between
from tidegate.core.promises import nth_dispatch, period

WINDOW = 100
"""Dispatches among which a floored band is counted."""


@dataclass(slots=True, frozen=True)
class Starvation:
    """How long a band with waiting work went without a dispatch.

    Attributes:
        ratio: the largest of measured gap over bound, of all bands that have a bound; 0 when nothing ever waited.
        least: per band, its fewest dispatches among ``WINDOW`` in a row in which it waited and could run all the
            time; ``None`` when there was no such row.
    """

    ratio: float
    least: tuple[int | None, ...]


class Gaps:
    """The gaps of the bands of one pool.

    Args:
        policy: what the scheduler obeys.
        seats: of the pool.
    """

    def __init__(self, policy: Policy, *, seats: int) -> None:
        bands = policy.bands
        rule = Between([band.floor for band in bands], policy.overtake_cap)
        self._join = rule.join
        self._bounds = [_bound(policy, band, seats) for band in range(len(bands))]
        self._gap = [0] * len(bands)
        self._longest = [0] * len(bands)
        self._dispatches = [0] * len(bands)
        self._before = [0] * len(bands)  # the gap that the latest dispatch ended
        self._windows = [deque[bool](maxlen=WINDOW) for _ in bands]
        self._least: list[int | None] = [None] * len(bands)

    def dispatched(self, band: int, waiting: Sequence[int], barred: Sequence[int]) -> int:
        """Count a dispatch; return its place among those of its band.

        Args:
            band: for which it was made.
            waiting: per band, how many waited before it, the dispatched one included.
            barred: bands of which nothing that waited could run.
        """
        for each, gap in enumerate(self._gap):
            if each in barred:
                self._gap[each] = min(gap, self._join[each])
                self._windows[each].clear()
            elif not waiting[each]:
                self._gap[each] = 0
                self._windows[each].clear()
            else:
                self._gap[each] = gap + 1
                self._longest[each] = max(self._longest[each], gap + 1)
                self._look_back(each, mine=each == band)
        self._before[band], self._gap[band] = self._gap[band], 0
        self._dispatches[band] += 1
        return self._dispatches[band]

    def undone(self, band: int, place: int) -> None:
        """Take back a dispatch, by its place, that came to nothing: if it was the latest, the gap goes on."""
        if place == self._dispatches[band]:
            self._gap[band] += self._before[band] - 1  # the dispatch itself is none that the band waited through
            self._before[band] = 1

    def found(self) -> Starvation:
        """Return what was measured so far."""
        ratios = [gap / bound for gap, bound in zip(self._longest, self._bounds, strict=True) if bound is not None]
        return Starvation(max(ratios, default=0.0), tuple(self._least))

    def _look_back(self, band: int, *, mine: bool) -> None:
        window = self._windows[band]
        window.append(mine)
        if len(window) == WINDOW:
            count, least = sum(window), self._least[band]
            self._least[band] = count if least is None else min(count, least)


def _bound(policy: Policy, band: int, seats: int) -> int | None:
    """Return in how many dispatches a band gets one. A share of tokens bounds them only for requests alike."""
    if policy.discipline is Discipline.WEIGHTED and policy.unit is Unit.TOKENS:
        return period(policy.bands[band]) if policy.bands[band].floor else None
    return nth_dispatch(policy, band, 1, seats=seats).count
