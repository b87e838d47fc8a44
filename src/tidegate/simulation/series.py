"""Figures over time, folded from records on a grid of equal cells.

What waits at the grid's points is kept as differences, and the oldest of them as the earliest arrival for each pair of
first and last point: memory depends on the number of cells, never on that of requests.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from dataclasses import dataclass

from tidegate.simulation.records import Record

CELLS = 160
"""Cells of the scenario's duration; what comes after it adds more."""

_NEVER = 1 << 60


@dataclass(slots=True, frozen=True)
class Series:
    """Lists over the cells; per band where nothing else is said.

    Attributes:
        cell_s: length of a cell.
        sent, dispatched: requests in the cell.
        tokens: of prompt and answer, dispatched in the cell.
        good_tokens: of answers that met their targets, by the cell of their end.
        depth: requests that wait at the end of the cell.
        oldest_s: age of the oldest of them.
        refused: by reason, all bands.
    """

    cell_s: float
    sent: list[list[int]]
    dispatched: list[list[int]]
    tokens: list[list[int]]
    good_tokens: list[list[int]]
    depth: list[list[int]]
    oldest_s: list[list[float]]
    refused: dict[str, list[int]]

    @property
    def cells(self) -> int:
        """How many there are."""
        return len(self.sent[0])


class SeriesFold:
    """Collects what ``Series`` shows."""

    def __init__(self, bands: int, duration_s: float) -> None:
        self.cell_s = duration_s / CELLS
        self._bands = range(bands)
        self._counts: dict[str, list[Counter[int]]] = {
            name: [Counter() for _ in self._bands] for name in ("sent", "dispatched", "tokens", "good", "depth")
        }
        self._earliest: list[dict[tuple[int, int], float]] = [{} for _ in self._bands]
        self._refused: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def add(self, record: Record, *, good: bool) -> None:
        """Take a record; ``good``: it met its targets."""
        width, band, counts = self.cell_s, record.band, self._counts
        counts["sent"][band][int(record.arrival_s / width)] += 1
        left = record.dispatched_s
        if left is not None:
            cell = int(left / width)
            counts["dispatched"][band][cell] += 1
            counts["tokens"][band][cell] += record.prompt_tokens + record.output_tokens
        elif record.finished_s is not None:
            left = record.finished_s
        if record.finished_s is not None and record.reason is not None:
            self._refused[str(record.reason)][int(record.finished_s / width)] += 1
        if good and record.finished_s is not None:
            counts["good"][band][int(record.finished_s / width)] += record.prompt_tokens + record.output_tokens
        self._wait(band, record.arrival_s, math.inf if left is None else left)

    def _wait(self, band: int, since: float, left: float) -> None:
        first = math.ceil(since / self.cell_s)
        last = math.ceil(left / self.cell_s) if left < math.inf else _NEVER
        if first >= last:
            return
        depth, earliest = self._counts["depth"][band], self._earliest[band]
        depth[first] += 1
        depth[last] -= 1
        if since < earliest.get((first, last), math.inf):
            earliest[first, last] = since

    def close(self, end: float) -> Series:
        """Return the lists of a run that ended at ``end``."""
        cells = max(1, math.ceil(end / self.cell_s - 1e-9))
        lists = {
            name: [_listed(counter, cells) for counter in counters]
            for name, counters in self._counts.items()
            if name != "depth"
        }
        return Series(
            self.cell_s,
            lists["sent"],
            lists["dispatched"],
            lists["tokens"],
            lists["good"],
            [_summed(self._counts["depth"][band], cells) for band in self._bands],
            [_oldest(self._earliest[band], cells, self.cell_s) for band in self._bands],
            {reason: _listed(counts, cells) for reason, counts in sorted(self._refused.items())},
        )


def _listed(counts: Counter[int], cells: int) -> list[int]:
    """What happened in each cell; at the very end of the run counts in the last one."""
    listed = [0] * cells
    for cell, count in counts.items():
        listed[min(cell, cells - 1)] += count
    return listed


def _summed(steps: Counter[int], cells: int) -> list[int]:
    """Running sums of the differences at the points 1 to ``cells``, the ends of the cells."""
    level, levels = steps[0], []
    for point in range(1, cells + 1):
        level += steps[point]
        levels.append(level)
    return levels


def _oldest(earliest: dict[tuple[int, int], float], cells: int, width: float) -> list[float]:
    """Age of the oldest at the ends of the cells: a sweep over the pairs by their first point."""
    coming = sorted((first, since, last) for (first, last), since in earliest.items())
    ages: list[float] = []
    heap: list[tuple[float, int]] = []
    index = 0
    for point in range(1, cells + 1):
        while index < len(coming) and coming[index][0] <= point:
            heapq.heappush(heap, (coming[index][1], coming[index][2]))
            index += 1
        while heap and heap[0][1] <= point:
            heapq.heappop(heap)
        ages.append(point * width - heap[0][0] if heap else 0.0)
    return ages
