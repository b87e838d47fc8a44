"""Who uses most: the heaviest tenants of the last minute in bounded memory, however many there are.

The sketch of Misra and Gries (1982) in its batched form (Anderson et al., "A high-performance algorithm for
identifying frequent items in data streams", IMC 2017): a table of at most twice ``limit`` names; when it is full, the
``limit``-th largest amount is taken off all, and whoever has nothing left is forgotten. An amount that is read is too
small by at most what was taken off (``missed``), and exact as long as fewer names than the table holds came in.
"""

from __future__ import annotations

from collections import deque
from heapq import nlargest

LIMIT = 512
SLOT_S = 5.0
SLOTS = 13


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
        self._sum: dict[str, int] = {}
        self._sum_of: tuple[int, ...] = ()
        self._missed_before = 0
        self.missed = 0

    def add(self, now: float, name: str, amount: int) -> None:
        """Count ``amount`` for ``name``."""
        if now >= self._ends:
            self._roll(int(now / SLOT_S))
        running = self._now[1]
        amounts = running.amounts
        if name in amounts:
            amounts[name] += amount
        else:
            running.add(name, amount)

    def top(self, now: float, count: int) -> list[tuple[str, int]]:
        """Return the ``count`` largest, largest first, names in order where equal.

        Looks at three times the limit of names at most: closed slots are summed once, and the largest of them kept.
        """
        slot = int(now / SLOT_S)
        if slot != self._now[0]:
            self._roll(slot)
        closed = [(number, heavy) for number, heavy in self._closed if number > slot - SLOTS]
        numbers = tuple(number for number, _ in closed)
        if numbers != self._sum_of:
            self._sum_of = numbers
            self._add_up([heavy for _, heavy in closed])
        running = self._now[1]
        self.missed = running.missed + self._missed_before
        amounts = self._sum.copy()
        for name, amount in running.amounts.items():
            amounts[name] = amounts.get(name, 0) + amount
        best = nlargest(count, ((amount, name) for name, amount in amounts.items() if amount))
        return [(name, amount) for amount, name in sorted(best, key=lambda row: (-row[0], row[1]))]

    def _add_up(self, closed: list[Heavy]) -> None:
        amounts: dict[str, int] = {}
        for heavy in closed:
            for name, amount in heavy.amounts.items():
                amounts[name] = amounts.get(name, 0) + amount
        self._missed_before = sum(heavy.missed for heavy in closed)
        if len(amounts) > 2 * self._limit:
            best = nlargest(self._limit, ((amount, name) for name, amount in amounts.items()))
            self._missed_before += best[-1][0]
            amounts = {name: amount for amount, name in best}
        self._sum = amounts

    def _roll(self, slot: int) -> None:
        if self._now[1].amounts:
            self._closed.append(self._now)
        self._now = (slot, Heavy(self._limit))
        self._ends = (slot + 1) * SLOT_S
