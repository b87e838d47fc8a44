"""Who uses most: the heaviest tenants of the last minute in bounded memory, however many there are.

The sketch of Misra and Gries (1982) in its batched form (Anderson et al., "A high-performance algorithm for
identifying frequent items in data streams", IMC 2017): a table of at most twice ``limit`` names; when it is full, the
``limit``-th largest amount is taken off all, and whoever has nothing left is forgotten. An amount that is read is too
small by at most what was taken off (``missed``), and exact as long as fewer names than the table holds came in. Tables
are added up in the same way (Agarwal et al., "Mergeable summaries", PODS 2012): the bound holds for the sum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import nlargest
from typing import Final

LIMIT: Final = 512
SLOT_S: Final = 5.0
SLOTS: Final = 13


class Heavy:
    """Amounts by name."""

    __slots__ = ("_limit", "amounts", "missed")

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self.amounts: dict[str, int] = {}
        self.missed = 0

    def add(self, name: str, amount: int) -> None:
        """Count ``amount`` for ``name``: O(1) amortised."""
        amounts = self.amounts
        if name in amounts:
            amounts[name] += amount
            return
        amounts[name] = amount
        if len(amounts) > 2 * self._limit:
            self._shrink()

    def merge(self, other: Heavy) -> None:
        """Count what another one of the same limit has counted: some 0.3 ms where both are full."""
        amounts = self.amounts
        for name, amount in other.amounts.items():
            amounts[name] = amounts.get(name, 0) + amount
        self.missed += other.missed
        if len(amounts) > 2 * self._limit:
            self._shrink()

    def _shrink(self) -> None:
        cut = nlargest(self._limit, self.amounts.values())[-1]
        self.missed += cut
        self.amounts = {name: amount - cut for name, amount in self.amounts.items() if amount > cut}


class RecentHeavy:
    """Amounts by name in the last ``SLOTS`` slots of ``SLOT_S`` seconds with the running one: at least a minute."""

    __slots__ = ("_closed", "_ends", "_limit", "_missed_before", "_now", "_sum", "_sum_of", "missed")

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._now: tuple[int, Heavy] = (0, Heavy(limit))
        self._ends = SLOT_S
        self._closed: deque[tuple[int, Heavy]] = deque(maxlen=SLOTS - 1)
        self._sum = Heavy(limit)
        self._sum_of: tuple[int, ...] = ()
        self.missed = 0

    def add(self, now: float, name: str, amount: int) -> None:
        """Count ``amount`` for ``name``."""
        if now >= self._ends:
            self._roll(int(now / SLOT_S))
        running = self._now[1]
        amounts = running.amounts
        known = amounts.get(name)
        if known is None:
            running.add(name, amount)
        else:
            amounts[name] = known + amount

    def add_up(self, now: float) -> Iterator[None]:
        """Prepare what ``top`` needs, one slot at each step; then it has little left to do.

        A sum lasts until the next slot begins.
        """
        while tuple(closed := self._last(now)) != self._sum_of:
            whole = Heavy(self._limit)
            for heavy in closed.values():
                whole.merge(heavy)
                yield
            self._sum, self._sum_of = whole, tuple(closed)

    def top(self, now: float, count: int) -> list[tuple[str, int]]:
        """Return the ``count`` largest, largest first, names in order where equal.

        Looks at four times the limit of names at most, where ``add_up`` has been gone through.
        """
        for _ in self.add_up(now):
            pass
        running = self._now[1]
        self.missed = running.missed + self._sum.missed
        amounts = self._sum.amounts.copy()
        for name, amount in running.amounts.items():
            amounts[name] = amounts.get(name, 0) + amount
        best = nlargest(count, ((amount, name) for name, amount in amounts.items() if amount))
        return [(name, amount) for amount, name in sorted(best, key=lambda row: (-row[0], row[1]))]

    def _last(self, now: float) -> dict[int, Heavy]:
        """Return the closed slots of the last minute by their numbers."""
        slot = int(now / SLOT_S)
        if slot > self._now[0]:
            self._roll(slot)
        return {number: heavy for number, heavy in self._closed if number > self._now[0] - SLOTS}

    def _roll(self, slot: int) -> None:
        if self._now[1].amounts:
            self._closed.append(self._now)
        self._now = (slot, Heavy(self._limit))
        self._ends = (slot + 1) * SLOT_S
