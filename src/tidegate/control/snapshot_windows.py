"""What the recorder counted of late: percentiles and refusals of the last minute, rates of the last ten seconds.

``mark`` is called once a second and copies the counters of each band (about 200 numbers for each of two histograms);
everything else is the difference to one of these copies. Nothing here knows of tickets.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tidegate.core import Reason
from tidegate.splice import Waste
from tidegate.telemetry.accounts import BandAccount
from tidegate.telemetry.percentiles import SlidingCounts, part_within, quantile

WINDOW_S = 60.0
RATE_S = 10.0
MARK_S = 1.0


@dataclass(slots=True, frozen=True)
class Counts:
    """The counters of one band at one time."""

    at: float
    dispatched: int
    work: int
    read: int
    written: int
    refusals: dict[Reason, int]

    @property
    def refused(self) -> int:
        """Refusals for any reason."""
        return sum(self.refusals.values())


@dataclass(slots=True, frozen=True)
class Recent:
    """One band of late. Seconds, per second, or counts of the last minute; ``None``: nothing to tell it from.

    Attributes:
        wait_p50_s, wait_p99_s: wait for a seat of what got one.
        ttft_p50_s, ttft_p99_s: arrival to first byte of the answer.
        within_slo: part of first bytes that came within the target.
        dispatched, work: dispatches, and their estimated tokens.
        dispatched_per_s, refused_per_s: over ten seconds, as what follows.
        read_per_s, written_per_s: tokens of prompts and answers that ended.
        refusals: by reason.
        over_s: length of the minute so far.
    """

    wait_p50_s: float | None
    wait_p99_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    within_slo: float | None
    dispatched: int
    work: int
    dispatched_per_s: float
    refused_per_s: float
    read_per_s: float
    written_per_s: float
    refusals: dict[Reason, int]
    over_s: float


class BandWindow:
    """The last minute of one band."""

    def __init__(self, account: BandAccount, now: float) -> None:
        self._account = account
        self._waits = SlidingCounts(account.queue_wait, now, span_s=WINDOW_S)
        self._firsts = SlidingCounts(account.ttft, now, span_s=WINDOW_S)
        self._marks: deque[Counts] = deque([self.counts(now)])

    def counts(self, now: float) -> Counts:
        """Return the counters as they are."""
        account = self._account
        return Counts(
            now,
            account.dispatched,
            account.dispatched_tokens,
            account.input_tokens,
            account.output_tokens,
            dict(account.refusals),
        )

    def mark(self, now: float) -> None:
        """Remember the counters."""
        self._waits.mark(now)
        self._firsts.mark(now)
        self._marks.append(self.counts(now))
        while len(self._marks) > 1 and self._marks[1].at <= now - WINDOW_S:
            self._marks.popleft()

    def read(self, now: float, ttft_slo_s: float | None) -> Recent:
        """Return what happened of late."""
        counts = self.counts(now)
        minute = self._marks[0]
        since = next((mark for mark in reversed(self._marks) if mark.at <= now - RATE_S), minute)
        span_s = max(now - since.at, MARK_S)
        waits, firsts = self._waits.recent(), self._firsts.recent()
        wait_bounds, first_bounds = self._account.queue_wait.bounds, self._account.ttft.bounds
        return Recent(
            wait_p50_s=quantile(wait_bounds, waits, 0.5),
            wait_p99_s=quantile(wait_bounds, waits, 0.99),
            ttft_p50_s=quantile(first_bounds, firsts, 0.5),
            ttft_p99_s=quantile(first_bounds, firsts, 0.99),
            within_slo=None if ttft_slo_s is None else part_within(first_bounds, firsts, ttft_slo_s),
            dispatched=counts.dispatched - minute.dispatched,
            work=counts.work - minute.work,
            dispatched_per_s=(counts.dispatched - since.dispatched) / span_s,
            refused_per_s=(counts.refused - since.refused) / span_s,
            read_per_s=(counts.read - since.read) / span_s,
            written_per_s=(counts.written - since.written) / span_s,
            refusals=_less(counts.refusals, minute.refusals),
            over_s=now - minute.at,
        )


class WasteWindow:
    """What was computed for nothing in the last minute."""

    def __init__(self, waste: Waste, now: float) -> None:
        self._waste = waste
        self._marks = deque([(now, waste.computed, dict(waste.by_cause))])

    def mark(self, now: float) -> None:
        """Remember the counters."""
        marks = self._marks
        marks.append((now, self._waste.computed, dict(self._waste.by_cause)))
        while len(marks) > 1 and marks[1][0] <= now - WINDOW_S:
            marks.popleft()

    def read(self) -> Waste:
        """Return what was computed and wasted since then."""
        _, computed, causes = self._marks[0]
        late = Waste()
        late.computed = self._waste.computed - computed
        for cause, tokens in self._waste.by_cause.items():
            if tokens > causes.get(cause, 0):
                late.by_cause[cause] = tokens - causes.get(cause, 0)
        return late


def _less(now: dict[Reason, int], then: dict[Reason, int]) -> dict[Reason, int]:
    found = {reason: count - then.get(reason, 0) for reason, count in now.items()}
    return {reason: count for reason, count in sorted(found.items()) if count}
