"""``reserve: auto``: how many seats lower bands must leave free so that a higher one seldom finds them all taken.

The chain (SPEC §5.5): when lower work is endless it fills every seat but R, so the seats in use walk over c-R .. c.
Up with the arrivals of the guarded band (rate), down with n times the rate at which one seat comes free (leave); above
c guarded work waits, and the walk is geometric. R is the least number with P(all c taken at an arrival) <= 0.25 %, at
most a quarter of the seats, and 0 in pools of fewer than eight.

The rate is measured over 1, 10 and 60 s (``measured``). A burst counts at once and for a minute, and the rate of ten
minutes as far as the last one does not contradict it, so that the noise of plain Poisson arrivals hardly moves the
estimate. Of those ten minutes an upper quantile is taken, the mean while they have only begun, since a quantile of
little data is mostly noise. The seat time is measured in the same way. Arrivals that keep coming in bunches make the
seats in use vary more than the chain allows for; how much is measured over minutes, and more is reserved.
"""

from __future__ import annotations

from collections import deque
from math import ceil, sqrt

from tidegate.core.measured import LONG_S, SHORT_S, Z_HIGH, Z_LOW, Dispersion, Memory, Windows

BUSY = 0.0025
LEAST_SEATS = 8
INFINITE = float("inf")
EVERY_S = 0.1  # between two looks at the counters
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


class Guard:
    """The automatic reserve of one band in one pool.

    Attributes:
        reserve: seats that lower bands leave free now.
        short: a quarter of the seats does not give the guarded band its 0.25 %.
        rate: guarded arrivals per second that it is made for.
        hold_s: seat time that it is made for, seconds.
    """

    __slots__ = ("_dispersion", "_held", "_memory", "_windows", "hold_s", "rate", "reserve", "short")

    def __init__(self) -> None:
        self._memory = Memory()
        self._windows = Windows()
        self._dispersion = Dispersion()
        self._held: deque[tuple[float, float, int]] = deque()
        self.rate = 0.0
        self.hold_s = INFINITE  # not known
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
        self._memory.note(now, arrivals, released, held_s)
        self.rate = min(max(self._memory.rate, windows.low), windows.high)
        self._note_held(now, released, held_s)
        hold_s = self.hold_s if self.hold_s < INFINITE else _UNKNOWN_S
        self.reserve, self.short = guard_seats(seats, self.rate, 1.0 / hold_s, peak=self._dispersion.peak)
        return self.reserve

    def _note_held(self, now: float, released: int, held_s: float) -> None:
        held = self._held
        if not held or now - held[-1][0] >= SHORT_S:
            held.append((now, held_s, released))
        while len(held) > 1 and held[1][0] <= now - LONG_S:
            held.popleft()
        _, before_s, before = held[0]
        count = released - before
        if count:
            mean_s = max((held_s - before_s) / count, 1e-3)
            noise = 1.0 / sqrt(count)  # seat times spread at most about as much as their mean
            least_s, most_s = mean_s * (1.0 - min(0.9, Z_LOW * noise)), mean_s * (1.0 + Z_HIGH * noise)
            self.hold_s = min(max(self._memory.hold_s(mean_s), least_s), most_s)
