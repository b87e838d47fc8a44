"""The most value that any schedule could get: the fluid optimum of a clairvoyant who knows every arrival and length.

The relaxation: request ``i`` is divisible, needs ``work_s`` seconds of one engine, may be worked on at any rate between
its arrival and its deadline, and pays ``value`` times the part of its work that is done. The engines together are one
machine of rate ``engines``. With the least engine time of a request as its work (``Profile.least_s``) no schedule of
real batches, causal or not, gets more: it does at least that much work for each request that it completes in time.

The linear program ``max sum(density_i w_i)``, ``0 <= w_i <= work_i``, over all ``w`` that fit the windows, is solved
exactly without a solver, in O(n log^2 n):

1. **Greedy is optimal.** The vectors ``w`` that fit are the flows from requests into time, where each request reaches
   the moments of its window: a polymatroid (``w(S)`` is at most the capacity of the union of the windows of ``S``, a
   submodular function), and so is its part inside the box. There the greedy rule by falling density is optimal
   (Edmonds 1970): what a set of densest requests gets together is the most that this set alone could get, ``F``.
2. **One pass gives F.** Always working on the earliest deadline does the most work for one set (Glover 1967, for convex
   bipartite graphs). Its minimum cut is a set of times ``U``: the windows of all that lost work and, again and again,
   of all that was worked on inside. Then all requests whose window leaves ``U`` are done in full, outside of ``U``,
   and those inside share ``U``, which is never idle: ``F = engines |U| + sum(work of the others)``.
3. **So the problem splits.** Halve the requests at the median density and cut for the denser half. Inside ``U`` only
   denser ones matter: whatever is less dense gets nothing there. Outside, the denser ones are done in full, whatever
   joins them later (in a polymatroid a greedy amount is never taken back): a problem of the other half beside this firm
   work on the time that is left, in which ``U`` is cut out. Each request goes to one side, so that all passes of one
   depth cost as much as the first; where all fits, or all are equally dense, one pass answers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

_ROUNDING_S = 1e-9  # work that is taken for done
_WORK, _DENSITY = 2, 3


@dataclass(slots=True, frozen=True)
class Offer:
    """One request as the clairvoyant sees it.

    Attributes:
        arrived: when work may begin, seconds.
        due: when its answer has to be complete, seconds.
        work_s: seconds of one engine that it needs at least.
        value: what it pays when it is complete by then.
    """

    arrived: float
    due: float
    work_s: float
    value: float


_Job = tuple[float, float, float, float]  # arrived, due, work, density
_Part = tuple[list[_Job], list[_Job]]  # firm, which is done in full, and open


def most_value(offers: Iterable[Offer], *, engines: float = 1.0) -> float:
    """Return the fluid optimum.

    Args:
        offers: in any order; those that pay nothing or have no time are left out.
        engines: rate of the machine, in seconds of work per second.

    Raises:
        ValueError: an offer needs no work, so that its density has no limit, or there is no engine.
    """
    if not engines > 0:
        raise ValueError(f"engines: expected more than 0, got {engines}")
    jobs: list[_Job] = []
    for offer in offers:
        if not offer.work_s > 0:
            raise ValueError(f"work_s: expected more than 0, got {offer.work_s}")
        if offer.value > 0 and offer.due > offer.arrived:
            jobs.append((offer.arrived, offer.due, offer.work_s / engines, offer.value / offer.work_s))
    jobs.sort()
    return _solve(jobs) * engines


def _solve(jobs: list[_Job]) -> float:
    """Add up the parts that the problem splits into."""
    total = 0.0
    parts: list[_Part] = [([], jobs)]
    while parts:
        firm, waiting = parts.pop()
        densities = sorted({job[_DENSITY] for job in waiting})
        lost_s = _Run(sorted(firm + waiting)).lost_s if waiting else 0.0
        if lost_s and len(densities) > 1:
            parts.extend(_split(firm, waiting, densities[len(densities) // 2]))
        else:
            total += sum(job[_WORK] * job[_DENSITY] for job in firm + waiting)
            total -= lost_s * densities[0] if lost_s else 0.0
    return total


def _split(firm: list[_Job], waiting: list[_Job], middle: float) -> tuple[_Part, _Part]:
    """Cut for the firm and the denser half; return what is inside the cut and what is outside."""
    dense = [job for job in waiting if job[_DENSITY] >= middle]
    cut = _Cut(_Run(sorted(firm + dense)).saturated())
    inside = [job for job in firm if cut.holds(job)], [job for job in dense if cut.holds(job)]
    rest = [job for job in waiting if job[_DENSITY] < middle]
    return inside, (cut.left_of(firm + dense), cut.left_of(rest))


class _Run:
    """Earliest deadline first at rate 1: who worked when, and what was lost. Jobs are in order of arrival."""

    def __init__(self, jobs: list[_Job]) -> None:
        self.jobs = jobs
        self.lost_s = 0.0
        self._losers: list[int] = []
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._whose: list[int] = []
        self._heap: list[tuple[float, int]] = []
        self._left = [job[_WORK] for job in jobs]
        now = float("-inf")
        for index, (arrived, due, _, _) in enumerate(jobs):
            if self._heap and now < arrived:
                self._work(now, arrived)
            now = arrived
            heappush(self._heap, (due, index))
        self._work(now, float("inf"))

    def _work(self, now: float, until: float) -> None:
        heap, left = self._heap, self._left
        while heap and now < until:
            due, index = heap[0]
            stop = min(due, until, now + left[index])
            if stop > now:
                self._note(now, stop, index)
                left[index] -= stop - now
                now = stop
            if left[index] <= _ROUNDING_S:
                heappop(heap)
            elif due <= now:
                heappop(heap)
                self.lost_s += left[index]
                self._losers.append(index)

    def _note(self, start: float, stop: float, index: int) -> None:
        if self._whose and self._whose[-1] == index and self._ends[-1] == start:
            self._ends[-1] = stop
        else:
            self._starts.append(start)
            self._ends.append(stop)
            self._whose.append(index)

    def saturated(self) -> list[tuple[float, float]]:
        """Return the windows whose union is the minimum cut."""
        starts, ends, whose = self._starts, self._ends, self._whose
        following = list(range(len(starts) + 1))  # the first segment from here that is not covered yet
        seen = set(self._losers)
        reached = list(self._losers)
        windows = []
        while reached:
            arrived, due, _, _ = self.jobs[reached.pop()]
            windows.append((arrived, due))
            at = _find(following, bisect_right(ends, arrived))
            while at < len(starts) and starts[at] < due:
                following[at] = at + 1
                if whose[at] not in seen:
                    seen.add(whose[at])
                    reached.append(whose[at])
                at = _find(following, at)
        return windows


def _find(following: list[int], at: int) -> int:
    """Follow the pointers to their end, and halve the way for the next one."""
    while following[at] != at:
        following[at] = following[following[at]]
        at = following[at]
    return at


class _Cut:
    """A union of windows, and the time that is left when it is cut out."""

    def __init__(self, windows: list[tuple[float, float]]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for start, end in sorted(windows):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
        self._before = [0.0]  # time cut out before each span
        for start, end in zip(self._starts, self._ends, strict=True):
            self._before.append(self._before[-1] + end - start)

    def holds(self, job: _Job) -> bool:
        """Say whether the whole window is cut out."""
        span = bisect_right(self._starts, job[0]) - 1
        return span >= 0 and job[1] <= self._ends[span]

    def left_of(self, jobs: list[_Job]) -> list[_Job]:
        """Return the others with the time that is left to them."""
        return [
            (self._moved(arrived), self._moved(due), work, density)
            for arrived, due, work, density in (job for job in jobs if not self.holds(job))
        ]

    def _moved(self, at: float) -> float:
        span = bisect_right(self._starts, at) - 1
        if span < 0:
            return at
        inside = min(at, self._ends[span]) - self._starts[span]
        return at - self._before[span] - inside
