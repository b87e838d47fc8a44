"""What is compared with the scheduler: no gateway at all, a gateway that knows nothing but the order of arrival, and
policies without what the scheduler adds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from tidegate.core import AUTO, Action, Discipline, Dispatch, Lease, Policy, Release, Requeue, Signal, Ticket, Turn

NEVER = float("inf")

PASSTHROUGH, FIFO, STRICT, BARE_AGING = "passthrough", "fifo", "strict", "bare_aging"

BASELINES = {
    PASSTHROUGH: "no gateway: every request goes to an engine as it comes",
    FIFO: "one queue in order of arrival, with the same seats",
    STRICT: "the same policy with strict priority: no floors, no promotion",
    BARE_AGING: "the same policy by the bare ageing formula: no overtake cap, no floors, no promotion, no reserve",
}
"""Baselines by name, with what they are."""


class FifoGate:
    """At most so many requests at each backend of a pool, in order of arrival; refuses nothing and looks at nothing.

    Among backends with a free seat it takes the one with the least part of its seats taken, or, where seats have no
    end, with the fewest requests.
    """

    def __init__(
        self, backend: str = "", seats: float = NEVER, *, pools: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        """Take one backend for all pools, or the seats of the backends of each pool."""
        self._pools = pools
        self._any = {backend: seats}
        self._waiting: dict[str, deque[tuple[Ticket, float]]] = {}
        self._running: dict[int, tuple[str, str]] = {}  # pool and backend by lease
        self._taken: dict[str, int] = {}
        self._leases = 0

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        """See ``Scheduler``."""
        self._waiting.setdefault(ticket.pool, deque()).append((ticket, now))
        return self._deal(now, ticket.pool)

    def release(self, now: float, lease_id: int, release: Release | Requeue) -> list[Action]:  # noqa: ARG002 - learns nothing
        """See ``Scheduler``."""
        pool, backend = self._running.pop(lease_id)
        self._taken[backend] -= 1
        return self._deal(now, pool)

    def cancel(self, now: float, ticket_id: str) -> list[Action]:  # noqa: ARG002
        """See ``Scheduler``."""
        for pool, queue in self._waiting.items():
            self._waiting[pool] = deque(each for each in queue if each[0].id != ticket_id)
        return []

    def observe(self, now: float, signal: Signal) -> list[Action]:  # noqa: ARG002
        """See ``Scheduler``."""
        return []

    def tick(self, now: float) -> list[Action]:  # noqa: ARG002
        """See ``Scheduler``."""
        return []

    def next_wakeup(self) -> float | None:
        """See ``Scheduler``."""
        return None

    def _deal(self, now: float, pool: str) -> list[Action]:
        actions: list[Action] = []
        queue = self._waiting.get(pool)
        while queue and (backend := self._free(pool)) is not None:
            ticket, since = queue.popleft()
            self._leases += 1
            self._running[self._leases] = (pool, backend)
            self._taken[backend] = self._taken.get(backend, 0) + 1
            lease = Lease(self._leases, ticket, backend, Turn.TURN, ticket.band, now - since, now)
            actions.append(Dispatch(ticket, lease))
        return actions

    def _free(self, pool: str) -> str | None:
        backends = self._any if self._pools is None else self._pools[pool]
        best, least = None, (1.0, 0)
        for name, seats in backends.items():
            taken = self._taken.get(name, 0)
            load = (taken / seats, taken)
            if taken < seats and (best is None or load < least):
                best, least = name, load
        return best


class Ungated(FifoGate):
    """No gateway: everything goes to a backend as it comes."""

    def __init__(self, backend: str = "", *, pools: Mapping[str, Mapping[str, float]] | None = None) -> None:
        super().__init__(backend, NEVER, pools=pools)


def fifo_like(policy: Policy, engine_seats: Mapping[str, int]) -> FifoGate:
    """The FIFO gate with the seats of a policy; ``auto`` gets all that the engine runs at a time."""
    return FifoGate(
        pools={
            pool.name: {
                spec.name: engine_seats[spec.name] if spec.seats == AUTO else spec.seats for spec in pool.backends
            }
            for pool in policy.pools
        }
    )


def ungated_like(policy: Policy) -> Ungated:
    """No gateway in front of the backends of a policy."""
    return Ungated(pools={pool.name: {spec.name: NEVER for spec in pool.backends} for pool in policy.pools})


def strict_like(policy: Policy) -> Policy:
    """The policy with strict priority."""
    bands = tuple(replace(band, floor=Fraction(0), promote_after_s=None) for band in policy.bands)
    return replace(policy, bands=bands, discipline=Discipline.STRICT)


def bare_aging_like(policy: Policy) -> Policy:
    """The policy by ``W + alpha * wait`` alone: the greatest claim goes first, whatever it passes."""
    bands = tuple(replace(band, floor=Fraction(0), promote_after_s=None, reserve=0) for band in policy.bands)
    return replace(policy, bands=bands, discipline=Discipline.AGING, overtake_cap=Fraction(1))
