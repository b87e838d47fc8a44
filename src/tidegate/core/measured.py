"""What the automatic reserve measures: arrivals over three windows, their dispersion, and the memory of minutes.

A count n in a window of w seconds says that a rate lies within (n ± z·√n) / w. Everything here is told the values of
growing counters, and keeps as many of them as a minute has looks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from math import sqrt

SHORT_S, MIDDLE_S, LONG_S = 1.0, 10.0, 60.0
Z_LOW, Z_HIGH = 1.6, 2.6  # unequal: too much is better than too little
_Z_BURST = 3.5  # plain chance shows such a burst less than once in hours
_MEMORY_S = 600.0  # older arrivals and seat times fade
_Z_FULL = 1.8  # standard deviations added once that memory is full
_STEADY = 300  # seconds that the dispersion remembers
_SURE = 6.0  # its standard deviation is √2 of one over the root of what it has seen: four of them


class Windows:
    """Counts of one growing counter over the last 1, 10 and 60 s, and the largest burst among them.

    ``low`` is the largest rate that some window of the last minute proves, ``high`` the largest that the whole minute
    allows. Samples are kept every ``EVERY_S``; those older than a minute are dropped.
    """

    __slots__ = ("_bursts", "_samples", "high", "low")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._bursts: deque[tuple[float, float]] = deque()  # (when, rate), rates falling: the first is the largest
        self.low = self.high = 0.0

    def note(self, now: float, count: int) -> None:
        """Take in the counter's value at ``now``."""
        samples = self._samples
        samples.append((now, count))
        while len(samples) > 1 and samples[1][0] <= now - LONG_S:
            samples.popleft()
        since, base = samples[0]
        span = max(now - since, SHORT_S)
        seen = count - base
        proved = max(self._proved(now, count, SHORT_S), self._proved(now, count, MIDDLE_S))
        self._remember(now, proved)
        noise = sqrt(seen)
        self.low = max(self._bursts[0][1], (seen - Z_LOW * noise) / span)
        self.high = max(self.low, (seen + Z_HIGH * noise) / span)

    def _proved(self, now: float, count: int, window_s: float) -> float:
        """Return the rate that the last ``window_s`` prove; a window that is not full yet proves nothing more."""
        samples = self._samples
        index = bisect_left(samples, (now - window_s, -1), 0, len(samples) - 1)  # the latest one at the most
        seen = count - samples[index][1]
        return (seen - _Z_BURST * sqrt(seen)) / window_s

    def _remember(self, now: float, rate: float) -> None:
        bursts = self._bursts
        while bursts and bursts[-1][1] <= rate:
            bursts.pop()
        bursts.append((now, rate))
        while bursts[0][0] <= now - LONG_S:
            bursts.popleft()


class Dispersion:
    """How much the counts of whole seconds vary: their variance over their mean, 1 for Poisson arrivals."""

    __slots__ = ("_base", "_mean", "_second", "_seen", "_variance")

    def __init__(self) -> None:
        self._second = -1.0
        self._base = 0
        self._seen = 0
        self._mean = self._variance = 0.0

    def note(self, now: float, count: int) -> None:
        """Take in the counter's value at ``now``; several seconds at once count as equal ones."""
        if self._second < 0.0:
            self._second, self._base = now, count
        seconds = int(now - self._second)
        for _ in range(min(seconds, _STEADY)):
            self._seen += 1
            part = max(1.0 / self._seen, 1.0 / _STEADY)
            off = (count - self._base) / seconds - self._mean
            self._mean += part * off
            self._variance = (1.0 - part) * (self._variance + part * off * off)
        if seconds:
            self._second += seconds
            self._base = count

    @property
    def peak(self) -> float:
        """Variance of the seats in use over that with Poisson arrivals, 1 until more is sure.

        For seat times that spread like their mean it is half of 1 + the dispersion (Eckberg 1983).
        """
        seen = min(self._seen, 2 * _STEADY)  # fading weights are as good as equal ones of twice the time
        chance = 1.0 + _SURE / sqrt(max(1, seen))
        if self._variance <= chance * self._mean:
            return 1.0
        return (1.0 + self._variance / self._mean) / 2.0


class Memory:
    """Arrivals and seat times of the last ten minutes or so; the older they are, the less they count."""

    __slots__ = ("_at", "_before", "arrivals", "held_s", "released", "span_s")

    def __init__(self) -> None:
        self._at = -1.0
        self._before = (0, 0, 0.0)
        self.arrivals = self.released = self.held_s = self.span_s = 0.0

    def note(self, now: float, arrivals: int, released: int, held_s: float) -> None:
        """Take in the values of the counters at ``now``."""
        if self._at >= 0.0:
            since_s = now - self._at
            kept = max(0.0, 1.0 - since_s / _MEMORY_S)
            self.span_s = kept * self.span_s + since_s
            self.arrivals = kept * self.arrivals + arrivals - self._before[0]
            self.released = kept * self.released + released - self._before[1]
            self.held_s = kept * self.held_s + held_s - self._before[2]
        self._at, self._before = now, (arrivals, released, held_s)

    @property
    def deviations(self) -> float:
        """Standard deviations by which to go beyond the mean."""
        return _Z_FULL * min(1.0, self.span_s / _MEMORY_S)

    @property
    def rate(self) -> float:
        """Arrivals per second, a quantile."""
        return (self.arrivals + self.deviations * sqrt(self.arrivals)) / max(self.span_s, SHORT_S)

    def hold_s(self, otherwise_s: float) -> float:
        """Seconds that a seat is held, a quantile; ``otherwise_s`` while none was given back."""
        if self.released < 1.0:
            return otherwise_s
        return self.held_s / self.released * (1.0 + self.deviations / sqrt(self.released))
