"""What is compared with the scheduler: no gateway at all, and a gateway that knows nothing but the order of arrival."""

from __future__ import annotations

from collections import deque

from tidegate.core import Action, Dispatch, Lease, Release, Signal, Ticket, Turn


class FifoGate:
    """At most ``seats`` requests at ``backend``, in order of arrival; it refuses nothing and looks at nothing."""

    def __init__(self, backend: str, seats: float) -> None:
        self._backend, self._seats = backend, seats
        self._waiting: deque[tuple[Ticket, float]] = deque()
        self._running: set[int] = set()
        self._leases = 0

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        """See ``Scheduler``."""
        self._waiting.append((ticket, now))
        return self._deal(now)

    def release(self, now: float, lease_id: int, release: Release) -> list[Action]:  # noqa: ARG002 - learns nothing
        """See ``Scheduler``."""
        self._running.discard(lease_id)
        return self._deal(now)

    def cancel(self, now: float, ticket_id: str) -> list[Action]:  # noqa: ARG002
        """See ``Scheduler``."""
        self._waiting = deque(each for each in self._waiting if each[0].id != ticket_id)
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

    def _deal(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._waiting and len(self._running) < self._seats:
            ticket, since = self._waiting.popleft()
            self._leases += 1
            self._running.add(self._leases)
            lease = Lease(self._leases, ticket, self._backend, Turn.TURN, ticket.band, now - since, now)
            actions.append(Dispatch(ticket, lease))
        return actions


class Ungated(FifoGate):
    """No gateway: everything goes to ``backend`` as it comes."""

    def __init__(self, backend: str) -> None:
        super().__init__(backend, float("inf"))
