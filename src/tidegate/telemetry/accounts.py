"""Plain accumulators that the recorder counts in: histogram, sliding maximum, one account per band.

One writer (the event-loop thread), so no locks. A counter or histogram child of prometheus-client costs 0.4 and
1.3 µs an update because of its lock and its checks, which for the eleven updates of a request is more than the
scheduler itself; a list item costs a tenth of that. The collector turns these into metric families at scrape time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Final

from tidegate.core import Outcome, Reason

_place: Final[Callable[[tuple[float, ...], float], int]] = bisect_left
_COMPLETED: Final = Outcome.COMPLETED
INFINITE: Final = float("inf")
WAIT_BOUNDS_S = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
    7200.0,
)
TTFT_BOUNDS_S = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0, 1800.0)
REQUEST_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
RATIO_BOUNDS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)


@cache
def _edges(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """Return the edges of all buckets: that of number ``n`` lies between those of ``n`` and ``n + 1``."""
    return (-INFINITE, *bounds, INFINITE)


class Histogram:
    """Counts per bucket and the sum. ``bounds`` are inclusive upper edges, ascending; above the last is +Inf.

    The bucket of the latest value is known with its edges: most values are much like the one before.
    """

    __slots__ = ("_above", "_bucket", "_edges", "_upto", "bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self._edges = _edges(bounds)
        self._bucket = 0
        self._above, self._upto = -INFINITE, bounds[0]

    def observe(self, value: float) -> None:
        self.total += value
        if self._above < value <= self._upto:
            bucket = self._bucket
        else:
            bucket = self._bucket = _place(self.bounds, value)
            edges = self._edges
            self._above = edges[bucket]
            self._upto = edges[bucket + 1]
        self.counts[bucket] = self.counts[bucket] + 1  # not +=, which compiled adds up as it would any objects

    def cumulative(self) -> tuple[tuple[float, ...], list[int]]:
        """The edges, and the buckets as Prometheus wants them: each counts everything up to its edge, the last all."""
        return self.bounds, list(accumulate(self.counts))


@cache
def fine_bounds(coarse: tuple[float, ...]) -> tuple[float, ...]:
    """Return ascending edges, seconds: those of ``coarse`` and a geometric row from 1 ms to two hours."""
    edges, edge = set(coarse), 0.001
    while edge < 7200.0:
        edges.add(edge)
        edge *= 1.1
    return tuple(sorted(edges))


class FineHistogram(Histogram):
    """A histogram fine enough for percentiles: its buckets are 10 % wide, ``coarse`` is what ``cumulative`` tells.

    The coarse edges are among the fine ones, so that coarse counts are sums; an update is still one bisection.
    """

    __slots__ = ("_places", "coarse")

    def __init__(self, coarse: tuple[float, ...]) -> None:
        super().__init__(fine_bounds(coarse))
        self.coarse = coarse
        self._places = [bisect_left(self.bounds, edge) for edge in coarse]

    def cumulative(self) -> tuple[tuple[float, ...], list[int]]:
        """The coarse edges and buckets, as of any histogram."""
        sums = list(accumulate(self.counts))
        return self.coarse, [*map(sums.__getitem__, self._places), sums[-1]]


class WindowMax:
    """The largest value noted in the last ``slots`` slots of ``slot_s`` seconds each."""

    __slots__ = ("_ends", "_largest", "_maxima", "_slot_s", "_slots")

    def __init__(self, *, slot_s: float, slots: int) -> None:
        self._slot_s = slot_s
        self._slots = slots
        self._ends = self._largest = 0.0  # end of the newest slot, and the largest in it
        self._maxima: deque[tuple[int, float]] = deque()  # (slot, largest in it), oldest slot first

    def note(self, now: float, value: float) -> None:
        if now < self._ends:
            if value > self._largest:
                self._largest = value
                self._maxima[-1] = (self._maxima[-1][0], value)
            return
        slot = int(now / self._slot_s)
        self._ends, self._largest = (slot + 1) * self._slot_s, value
        self._maxima.append((slot, value))
        self._forget(slot)

    def read(self, now: float) -> float:
        self._forget(int(now / self._slot_s))
        return max((value for _, value in self._maxima), default=0.0)

    def _forget(self, slot: int) -> None:
        while self._maxima and self._maxima[0][0] <= slot - self._slots:
            self._maxima.popleft()


class Count:
    """A number that a table holds: counted in place, without a look-up to store it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Ends:
    """How the requests for one model ended; nearly all in one way."""

    __slots__ = ("_others", "completed")

    def __init__(self) -> None:
        self.completed = 0
        self._others: dict[Outcome, int] = {}

    def add(self, outcome: Outcome) -> None:
        if outcome is _COMPLETED:
            self.completed += 1
        else:
            self._others[outcome] = self._others.get(outcome, 0) + 1

    def by_outcome(self) -> dict[Outcome, int]:
        """Those that there were."""
        return {_COMPLETED: self.completed, **self._others} if self.completed else self._others


class BandAccount:
    """Everything counted for one band."""

    __slots__ = (
        "clamped",
        "demoted",
        "depth",
        "depth_max",
        "dispatched",
        "dispatched_tokens",
        "ends",
        "input_ratio",
        "input_tokens",
        "name",
        "output_ratio",
        "output_tokens",
        "overtakes",
        "promotions",
        "queue_wait",
        "refusals",
        "request",
        "running",
        "ttft",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.depth = 0
        self.depth_max = WindowMax(slot_s=10.0, slots=6)
        self.dispatched = 0
        self.dispatched_tokens = 0  # estimated work of what was dispatched
        self.overtakes = 0
        self.promotions = 0
        self.clamped = 0
        self.demoted = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.ends: defaultdict[str, Ends] = defaultdict(Ends)  # by model
        self.running: defaultdict[str, Count] = defaultdict(Count)  # by backend
        self.refusals: defaultdict[Reason, int] = defaultdict(int)
        self.queue_wait = FineHistogram(WAIT_BOUNDS_S)
        self.ttft = FineHistogram(TTFT_BOUNDS_S)
        self.request = Histogram(REQUEST_BOUNDS_S)
        self.input_ratio = Histogram(RATIO_BOUNDS)
        self.output_ratio = Histogram(RATIO_BOUNDS)

    @property
    def requests(self) -> Counter[tuple[str, Outcome]]:
        """How many requests ended, by model and outcome."""
        return Counter(
            {(model, outcome): n for model, ends in self.ends.items() for outcome, n in ends.by_outcome().items()}
        )
