"""Folds records into the figures of one group of requests (a band, a source, or all).

A request that is still open when the run is cut counts in the waits with its age so far, as a lower bound: leaving it
out would flatter whoever has the longest queue. A percentile that falls on one is marked so. Refused requests are in
no wait, and are misses of their targets.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass

from tidegate.core import Outcome, Turn
from tidegate.simulation.records import Record
from tidegate.simulation.scenario import Slo

POINTS = 200
"""Points of a distribution that a report keeps for drawing."""


@dataclass(slots=True, frozen=True)
class Quantile:
    """A figure in seconds; ``at_least`` when it is only a lower bound."""

    seconds: float
    at_least: bool = False


class Spread:
    """Times of many requests, those that are not over yet kept apart. Costs 8 bytes each."""

    __slots__ = ("_known", "_so_far", "_sorted")

    def __init__(self) -> None:
        self._known, self._so_far = array("d"), array("d")
        self._sorted: list[tuple[float, bool]] | None = None

    def __len__(self) -> int:
        return len(self._known) + len(self._so_far)

    def add(self, seconds: float) -> None:
        """Take a time."""
        self._known.append(seconds)
        self._sorted = None

    def add_so_far(self, seconds: float) -> None:
        """Take the age of what is not over."""
        self._so_far.append(seconds)
        self._sorted = None

    def mean(self) -> float | None:
        """Mean of what is over; ``None`` without any."""
        return math.fsum(self._known) / len(self._known) if self._known else None

    def quantile(self, part: float) -> Quantile | None:
        """The least value that at least ``part`` of all do not exceed; ``None`` without any."""
        rows = self._rows()
        return Quantile(*rows[max(0, math.ceil(part * len(rows)) - 1)]) if rows else None

    def points(self) -> list[tuple[float, float]]:
        """The distribution in at most ``POINTS`` steps: seconds, and the part that took no longer. Known ones only."""
        rows = self._rows()
        count = len(rows)
        picked = sorted(
            {min(count - 1, round(step * (count - 1) / (POINTS - 1))) for step in range(POINTS)} if rows else ()
        )
        return [(rows[index][0], (index + 1) / count) for index in picked if not rows[index][1]]

    def _rows(self) -> list[tuple[float, bool]]:
        if self._sorted is None:
            rows = [(seconds, False) for seconds in self._known]
            rows += [(seconds, True) for seconds in self._so_far]
            self._sorted = sorted(rows)
        return self._sorted


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
