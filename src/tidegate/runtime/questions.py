"""What a driver can be asked; asking changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate.core import Lease, Scheduler, Snapshot, Status, Ticket, Why
from tidegate.runtime.clock import Clock
from tidegate.runtime.protocol import SchedulerLike
from tidegate.runtime.waiters import TicketWaiter

MOST_LOOKED_AT: Final = 5000
"""Most waiting tickets that one listing looks at (about 1 ms)."""
FAULT: Final = "the scheduler stopped after an internal fault; see the log of this gateway"


class Questions:
    """The half of ``Driver`` that only tells."""

    def __init__(self, scheduler: SchedulerLike, clock: Clock, loop: asyncio.AbstractEventLoop | None) -> None:
        self._scheduler = scheduler
        self._core = scheduler if isinstance(scheduler, Scheduler) else None  # asked by far the most
        self._clock = clock
        self._now: Callable[[], float] = clock.now
        self._waiters: dict[str, tuple[Ticket, TicketWaiter]] = {}
        self._leases: dict[int, Lease] = {}
        self._fault: BaseException | None = None
        self._drained: asyncio.Event | None = None
        self._given_loop = loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it runs on. Asking for the running one is a system call in CPython 3.11."""
        if self._given_loop is None:
            self._given_loop = asyncio.get_running_loop()
        return self._given_loop

    def not_ready(self, snapshot: Snapshot | None = None) -> str | None:
        """Say why newcomers have no chance, ``None`` when they have one; ``snapshot``: as it stands there."""
        if self._fault is not None:
            return FAULT
        if self._drained is not None:
            return "draining"
        if not any(backend.up for backend in (snapshot or self.snapshot()).backends):
            return "no backend is up"
        return None

    @property
    def faulty(self) -> bool:
        """Whether the scheduler failed; its snapshot means nothing then."""
        return self._fault is not None

    @property
    def ready(self) -> bool:
        """Whether newcomers have a chance: not draining, no fault of the scheduler, a backend up."""
        return self.not_ready() is None

    @property
    def running(self) -> int:
        """How many leases are out."""
        return len(self._leases)

    @property
    def waiting(self) -> int:
        """How many waiters have not heard yet."""
        return len(self._waiters)

    def now(self) -> float:
        """The driver's time, seconds."""
        return self._now()

    def snapshot(self) -> Snapshot:
        """What the scheduler says of itself now."""
        return self._scheduler.snapshot(self._now())

    def status(self, name: str) -> Status:
        """How far the request of a full name (``tenant/name``) is."""
        return self._scheduler.status(self._now(), name)

    def why(self, ticket_id: str) -> Why:
        """Why a ticket waits."""
        return self._scheduler.why(self._now(), ticket_id)

    def waiting_tickets(self, band: int | None, limit: int) -> tuple[list[Ticket], bool]:
        """Return at most ``limit`` of those that wait, longest waiting first, and whether these are all.

        Looks at ``MOST_LOOKED_AT`` at most, so that an operator's question never stalls the loop; with ``band`` only
        at that band's.
        """
        found: list[Ticket] = []
        for looked, (ticket, _) in enumerate(self._waiters.values()):
            if looked == MOST_LOOKED_AT or len(found) == limit:
                return found, False
            if band is None or ticket.band == band:
                found.append(ticket)
        return found, True
