"""How fast a pool drains, and how long new work would wait (SPEC §6 ``Retry-After``).

The drain rate is seats over the mean time that a seat is held. It equals the rate of completions while every seat
is busy, follows a change of seats at once, and is not fooled by idle time as a count of completions would be.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

from tidegate.core.policy import Discipline, Policy

if TYPE_CHECKING:
    from tidegate.core.pools import Pool

INFINITE: Final = float("inf")
_NINE_IN_TEN: Final = 1.2816  # the normal deviate that nine in ten lie below
_MEMORY: Final = 64  # completions that the mean remembers
_SPAN_S: Final = 5.0  # shortest time over which arrivals are counted


class Drain:
    """Seat time for each completion of one pool, the mean of recent ones; ``count`` and ``total_s`` are over all."""

    __slots__ = ("_stopped_s", "count", "mean_s", "total_s")

    def __init__(self) -> None:
        self.count, self.total_s = 0, 0.0
        self.mean_s = 0.0
        self._stopped_s = 0.0

    def note(self, held_s: float) -> None:
        """Take in the seat time of one released lease."""
        self.count = count = self.count + 1
        self.total_s += held_s
        if self._stopped_s:
            held_s += self._stopped_s
            self._stopped_s = 0.0
        self.mean_s += (held_s - self.mean_s) / (count if count < _MEMORY else _MEMORY)

    def stopped(self, held_s: float) -> None:
        """Take in the seat time of work that was stopped: a seat was held, and none came free by itself."""
        self.total_s += held_s
        self._stopped_s += held_s

    def rate(self, seats: int) -> float | None:
        """Return dispatches per second when ``seats`` are busy; ``None`` before the first completion."""
        if not self.count or seats <= 0:
            return None
        return seats / max(self.mean_s, 1e-3)


def sure_s(place: int, rate: float) -> float:
    """Return the seconds within which nine times in ten ``place`` seats come free by themselves.

    They do so independently, ``rate`` a second, so the time is Erlang distributed: its ninth decile by Wilson and
    Hilferty (1931), off by less than 1 %.
    """
    spread = 1.0 / (9.0 * place)
    return float(place * (1.0 - spread + _NINE_IN_TEN * sqrt(spread)) ** 3 / rate)


class Arrivals:
    """Arrivals per second of one band in one pool, over the last five to ten seconds, read without a timer."""

    __slots__ = ("_before", "_count", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._count = 0  # value of the counter at _since
        self._before = 0.0

    def rate(self, now: float, count: int) -> float:
        """Return the rate, given the running count of arrivals."""
        span = now - self._since
        if span < _SPAN_S:
            return max(self._before, (count - self._count) / _SPAN_S)
        self._before = (count - self._count) / span
        self._since, self._count = now, count
        return self._before


def guaranteed_part(pool: Pool, policy: Policy, band: int) -> float:
    """Return the least part of the pool's dispatches that a waiting band gets, whatever waits elsewhere.

    ``weighted``: its share among the bands that wait. Otherwise the highest waiting band gets all that the cap does
    not let others pass with; a lower one its floor, and an equal part of what ageing may spend.
    """
    waiting = [each for each, queue in enumerate(pool.queues) if queue.count or each == band]
    bands = policy.bands
    if policy.discipline is Discipline.WEIGHTED:
        return bands[band].share / sum(bands[each].share for each in waiting)
    lower = waiting[1:]
    if band == waiting[0]:
        return 1.0 - float(policy.overtake_cap) if lower else 1.0
    part = float(bands[band].floor)
    if policy.discipline is Discipline.AGING:
        part += float(policy.overtake_cap - sum(each.floor for each in bands)) / len(lower)
    return part


def expected_wait(pool: Pool, policy: Policy, band: int, *, backlog: int | None, now: float) -> float | None:
    """Return the seconds a newcomer of ``band`` would wait; ``None`` when the drain rate is not known yet.

    The lesser of two estimates: the band drains at the part it is guaranteed, or everything that waits in it and
    above drains at the whole rate while more of the higher bands keeps coming. Fair queuing shortens both for a
    tenant with little waiting: ``backlog`` tickets of its own flow mean at most so many rounds over the flows.
    """
    rate = pool.drain.rate(pool.seating.counted)
    if rate is None:
        return None
    queue = pool.queues[band]
    rounds = ((backlog or 0) + 1) * (len(queue.flows) + (backlog is None))
    own = min(queue.count + 1, rounds)
    part = guaranteed_part(pool, policy, band)
    slow = own / (rate * part) if part else INFINITE
    above = pool.queues[:band]
    left = rate - sum(each.arrivals.rate(now, each.entered) for each in above)
    quick = (own + sum(each.count for each in above)) / left if left > 0 else INFINITE
    return min(slow, quick)
