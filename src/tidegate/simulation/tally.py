"""Folds records into the figures of one group of requests (a band, a source, or all).

A request that is still open when the run is cut counts in the waits with its age so far, as a lower bound: leaving it
out would flatter whoever has the longest queue. A percentile that falls on one is marked so. Refused requests are in
no wait, and are misses of their targets.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from tidegate.core import Outcome, Turn
from tidegate.simulation.records import Record
from tidegate.simulation.scenario import Slo

POINTS = 200
"""Points of a distribution that a report keeps for drawing."""

EXACT = 50_000
"""Times of one kind that are kept as they are."""

_PER_E = 1000  # buckets per factor of e
_LEAST_S = 1e-6
_NONE = -(10**9)


@dataclass(slots=True, frozen=True)
class Quantile:
    """A figure in seconds; ``at_least`` when it is only a lower bound."""

    seconds: float
    at_least: bool = False


class Spread:
    """Times of many requests, those that are not over yet kept apart.

    The first ``EXACT`` of each kind are kept as they are, 8 bytes each. From then on they are counted in buckets of a
    thousandth of their size, so that memory stays; a quantile is then the greatest time of its bucket, never too small.
    """

    __slots__ = ("_known", "_rows", "_so_far", "_sum")

    def __init__(self) -> None:
        self._known, self._so_far = _Times(), _Times()
        self._sum = 0.0
        self._rows: list[tuple[float, bool, int]] | None = None

    def __len__(self) -> int:
        return self._known.count + self._so_far.count

    def add(self, seconds: float) -> None:
        """Take a time."""
        self._known.add(seconds)
        self._sum += seconds
        self._rows = None

    def add_so_far(self, seconds: float) -> None:
        """Take the age of what is not over."""
        self._so_far.add(seconds)
        self._rows = None

    def mean(self) -> float | None:
        """Mean of what is over; ``None`` without any."""
        return self._sum / self._known.count if self._known.count else None

    def quantile(self, part: float) -> Quantile | None:
        """The least value that at least ``part`` of all do not exceed; ``None`` without any."""
        return Quantile(*self._at(max(1, math.ceil(part * len(self))))) if len(self) else None

    def points(self) -> list[tuple[float, float]]:
        """The distribution in at most ``POINTS`` steps: seconds, and the part that took no longer. Known ones only."""
        count = len(self)
        picked = sorted(
            {min(count, 1 + round(step * (count - 1) / (POINTS - 1))) for step in range(POINTS)} if count else ()
        )
        rows = [(*self._at(rank), rank) for rank in picked]
        return [(seconds, rank / count) for seconds, so_far, rank in rows if not so_far]

    def _at(self, rank: int) -> tuple[float, bool]:
        """Return the time of that rank, from 1, and whether it is only an age."""
        if self._rows is None:
            both = [(seconds, False, count) for seconds, count in self._known.rows()]
            both += [(seconds, True, count) for seconds, count in self._so_far.rows()]
            both.sort()
            sums = itertools.accumulate(count for _, _, count in both)
            self._rows = [(seconds, so_far, up_to) for (seconds, so_far, _), up_to in zip(both, sums, strict=True)]
        rows = self._rows
        seconds, so_far, _ = rows[bisect_left(rows, rank, key=lambda row: row[2])]
        return seconds, so_far


class _Times:
    """Times as they are, or, when there are many, counts of buckets."""

    __slots__ = ("_buckets", "_exact", "count")

    def __init__(self) -> None:
        self.count = 0
        self._exact = array("d")
        self._buckets: dict[int, list[float]] = {}  # greatest time and count

    def add(self, seconds: float) -> None:
        self.count += 1
        if self._buckets:
            self._put(seconds)
            return
        self._exact.append(seconds)
        if self.count > EXACT:
            for each in self._exact:
                self._put(each)
            self._exact = array("d")

    def rows(self) -> list[tuple[float, int]]:
        """Times with how many there are of each."""
        if self._buckets:
            return [(most, int(count)) for most, count in self._buckets.values()]
        return [(seconds, 1) for seconds in self._exact]

    def _put(self, seconds: float) -> None:
        key = math.floor(math.log(seconds) * _PER_E) if seconds > _LEAST_S else _NONE
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = [seconds, 1]
        else:
            bucket[0] = max(bucket[0], seconds)
            bucket[1] += 1


class Tally:
    """The figures of one group, folded record by record; see ``GroupReport`` for what they mean."""

    def __init__(self, slos: tuple[Slo, ...]) -> None:
        self._slos = slos
        self.sent = self.answered = self.open = 0
        self.refused: Counter[str] = Counter()
        self.kinds: Counter[Turn] = Counter()
        self.waits, self.ttfts, self.tpots, self.totals = Spread(), Spread(), Spread(), Spread()
        self.in_slo = self.undecided = 0
        self.good_tokens = self.answer_tokens = self.done_tokens = 0
        self.value = 0.0
        self.dispatches = self.dispatched_tokens = 0
        self.prompt_tokens = self.cached_tokens = self.computed_tokens = self.wasted_tokens = self.preemptions = 0
        self.last_end = 0.0

    def add(self, record: Record, end: float) -> bool:
        """Take a record of a run that was cut at ``end``; return whether it met its targets."""
        self.sent += 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        self.computed_tokens += record.computed_tokens
        self.wasted_tokens += record.wasted_tokens
        self.preemptions += record.preempted
        if record.dispatched_s is not None:
            self.dispatches += 1
            self.dispatched_tokens += record.prompt_tokens + record.output_tokens
            self.waits.add(record.dispatched_s - record.arrival_s)
            if record.kind is not None:
                self.kinds[record.kind] += 1
        if record.first_token_s is not None:
            self.ttfts.add(record.first_token_s - record.arrival_s)
        if record.outcome is None:
            return self._add_open(record, end)
        assert record.finished_s is not None
        self.last_end = max(self.last_end, record.finished_s)
        if record.outcome is not Outcome.COMPLETED:
            self.refused[str(record.reason or record.outcome)] += 1
            return False
        return self._add_answer(record)

    def _add_open(self, record: Record, end: float) -> bool:
        self.open += 1
        age = max(0.0, end - record.arrival_s)
        if record.dispatched_s is None:
            self.waits.add_so_far(age)
        if record.first_token_s is None:
            self.ttfts.add_so_far(age)
        self.totals.add_so_far(age)
        if not _too_late(record, self._slos[record.band], age):
            self.undecided += 1
        return False

    def _add_answer(self, record: Record) -> bool:
        self.answered += 1
        assert record.finished_s is not None
        self.totals.add(record.finished_s - record.arrival_s)
        tokens = record.prompt_tokens + record.output_tokens
        self.done_tokens += tokens
        self.answer_tokens += record.output_tokens
        tpot = record.tpot_s
        if tpot is not None:
            self.tpots.add(tpot)
        slo = self._slos[record.band]
        if not meets(record, slo):
            return False
        self.in_slo += 1
        self.good_tokens += tokens
        self.value += worth(record, slo)
        return True


def meets(record: Record, slo: Slo) -> bool:
    """Whether a record is of a complete answer that met every target."""
    if record.outcome is not Outcome.COMPLETED or record.finished_s is None:
        return False
    total = record.finished_s - record.arrival_s
    ttft, tpot = record.ttft_s, record.tpot_s
    if slo.ttft_s is not None and (ttft is None or ttft > slo.ttft_s):
        return False
    if slo.tpot_s is not None and tpot is not None and tpot > slo.tpot_s:
        return False
    return slo.end_s is None or total <= slo.end_s + slo.per_token_s * record.output_tokens


def worth(record: Record, slo: Slo) -> float:
    """What its answer is worth: ``value * (prompt + 2 * output)``."""
    return slo.value * (record.prompt_tokens + 2 * record.output_tokens)


def _too_late(record: Record, slo: Slo, age: float) -> bool:
    """Whether an open request has missed its targets already."""
    ttft = age if record.first_token_s is None else record.first_token_s - record.arrival_s
    if slo.ttft_s is not None and ttft > slo.ttft_s:
        return True
    return slo.end_s is not None and age > slo.end_s + slo.per_token_s * record.output_tokens
