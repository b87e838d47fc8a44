"""``reserve: auto``: how many seats lower bands must leave free so that a higher one seldom finds them all taken.

The chain (SPEC §5.5): when lower work is endless it fills every seat but R, so the seats in use walk over c-R .. c.
Up with the arrivals of the guarded band (rate), down with n times the rate at which one seat comes free (leave); above
c guarded work waits, and the walk is geometric. R is the least number with P(all c taken at an arrival) <= 0.25 %, at
most a quarter of the seats, and 0 in pools of fewer than eight.

The rate is measured over 1, 10 and 60 s. A count n in a window of w seconds says that the rate lies within
(n ± z·√n) / w; the estimate moves only as far as the windows contradict it, so that the noise of plain Poisson arrivals
does not move it while a burst does at once, and is remembered for a minute. The seat time is held in the same way.
Arrivals that keep coming in bunches make the seats in use vary more than the chain allows for; how much is measured
over minutes, and more is reserved.
"""

from __future__ import annotations

from collections import deque
from math import ceil, sqrt

BUSY = 0.0025
LEAST_SEATS = 8
INFINITE = float("inf")
EVERY_S = 0.1  # between two looks at the counters
_SHORT_S, _MIDDLE_S, _LONG_S = 1.0, 10.0, 60.0
_Z_BURST = 3.5  # plain chance shows such a burst less than once in hours
_Z_LOW, _Z_HIGH = 1.6, 2.6  # unequal, so that the estimate lies above the mean
_Z_HELD = 1.0
_STEADY = 300  # seconds that the dispersion remembers
_SURE = 5.0  # standard deviations beyond which it is believed
_UNKNOWN_S = 1.0  # seat time before the first completion


def busy_chance(seats: int, reserve: int, rate: float, leave: float) -> float:
    """Return P(all seats taken at a guarded arrival) when endless lower work fills all but ``reserve`` of them.

    Args:
        seats: seats of the pool.
        reserve: seats that lower work leaves free.
        rate: guarded arrivals per second.
        leave: releases per second of one seat.
    """
    load = rate / (seats * leave)
    if load >= 1.0:
        return 1.0
    tail = 1.0 / (1.0 - load)
    weight, below = 1.0, 0.0
    for taken in range(seats, seats - reserve, -1):  # from the top down, the weight of the full state is one
        weight *= taken / (seats * load)
        below += weight
    return tail / (tail + below)


def guard_seats(seats: int, rate: float, leave: float, *, peak: float = 1.0) -> tuple[int, bool]:
    """Return the reserve, and whether a quarter of the seats is not enough for it.

    Args:
        seats: seats of the pool.
        rate: guarded arrivals per second.
        leave: releases per second of one seat.
        peak: how much more the seats in use vary than with Poisson arrivals; ``peak`` times a system of that part of
            the seats and of the rate (Hayward's approximation; Fredericks 1980).
    """
    if seats < LEAST_SEATS or rate <= 0.0:
        return 0, False
    most, load = seats // 4, rate / (seats * leave)
    if load >= 1.0:
        return most, True
    units = seats / peak
    tail = 1.0 / (1.0 - load)
    wanted = tail * (1.0 - BUSY) / BUSY  # of the weights below the full state
    weight, below, reserve = 1.0, 0.0, 0
    while reserve * peak < most:
        if below >= wanted:
            return ceil(reserve * peak), False
        weight *= (units - reserve) / (units * load)
        below += weight
        reserve += 1
    return most, below < wanted


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
        while len(samples) > 1 and samples[1][0] <= now - _LONG_S:
            samples.popleft()
        since, base = samples[0]
        span = max(now - since, _SHORT_S)
        seen = count - base
        proved = max(self._proved(now, count, _SHORT_S), self._proved(now, count, _MIDDLE_S))
        self._remember(now, proved)
        noise = sqrt(seen)
        self.low = max(self._bursts[0][1], (seen - _Z_LOW * noise) / span)
        self.high = max(self.low, (seen + _Z_HIGH * noise) / span)

    def _proved(self, now: float, count: int, window_s: float) -> float:
        """Return the rate that the last ``window_s`` prove; a window that is not full yet proves nothing more."""
        start = now - window_s
        index = len(self._samples) - 1
        while index and self._samples[index - 1][0] >= start:  # at most window / EVERY_S steps
            index -= 1
        seen = count - self._samples[index][1]
        return (seen - _Z_BURST * sqrt(seen)) / window_s

    def _remember(self, now: float, rate: float) -> None:
        bursts = self._bursts
        while bursts and bursts[-1][1] <= rate:
            bursts.pop()
        bursts.append((now, rate))
        while bursts[0][0] <= now - _LONG_S:
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
        chance = 1.0 + _SURE / sqrt(max(1, min(self._seen, _STEADY)))
        if self._variance <= chance * self._mean:
            return 1.0
        return (1.0 + self._variance / self._mean) / 2.0


class Guard:
    """The automatic reserve of one band in one pool.

    Attributes:
        reserve: seats that lower bands leave free now.
        short: a quarter of the seats does not give the guarded band its 0.25 %.
        rate: guarded arrivals per second that it is made for.
        hold_s: seat time that it is made for, seconds.
    """

    __slots__ = ("_dispersion", "_held", "_windows", "hold_s", "rate", "reserve", "short")

    def __init__(self) -> None:
        self._windows = Windows()
        self._dispersion = Dispersion()
        self._held: deque[tuple[float, float, int]] = deque()
        self.rate = 0.0
        self.hold_s = INFINITE  # the first measurement brings it down to the longest it allows
        self.reserve = 0
        self.short = False

    def note(self, now: float, *, seats: int, arrivals: int, released: int, held_s: float) -> int:
        """Look at the counters of the pool and return the reserve; call it at most every ``EVERY_S``.

        Args:
            now: seconds.
            seats: seats of the pool.
            arrivals: guarded arrivals since the start, lent and promoted work not among them.
            released: leases of the pool given back since the start.
            held_s: seat time of all those, seconds.
        """
        windows = self._windows
        windows.note(now, arrivals)
        self._dispersion.note(now, arrivals)
        self.rate = min(max(self.rate, windows.low), windows.high)
        self._note_held(now, released, held_s)
        hold_s = self.hold_s if self.hold_s < INFINITE else _UNKNOWN_S
        self.reserve, self.short = guard_seats(seats, self.rate, 1.0 / hold_s, peak=self._dispersion.peak)
        return self.reserve

    def _note_held(self, now: float, released: int, held_s: float) -> None:
        held = self._held
        if not held or now - held[-1][0] >= _SHORT_S:
            held.append((now, held_s, released))
        while len(held) > 1 and held[1][0] <= now - _LONG_S:
            held.popleft()
        _, before_s, before = held[0]
        count = released - before
        if count:
            mean_s = max((held_s - before_s) / count, 1e-3)
            play = min(0.9, _Z_HELD / sqrt(count))  # seat times spread at most about as much as their mean
            self.hold_s = min(max(self.hold_s, mean_s * (1.0 - play)), mean_s * (1.0 + play))
