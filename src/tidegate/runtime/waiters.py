"""Who is told what became of a ticket."""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable

from tidegate.core import Evict, Lease, Reject

Refusal = Reject | Evict


class TicketWaiter(Protocol):
    """Told once how the wait of its ticket ended, on the event-loop thread.

    Exactly one of the two methods is called, once for a ``submit`` or ``requeue``; none is called after
    ``Driver.cancel``. Both MUST return at once and MAY call the driver. They SHOULD not raise: if ``dispatched`` does,
    its lease is released as failed.
    """

    def dispatched(self, lease: Lease) -> None:
        """The ticket holds a seat. From now on somebody MUST release ``lease``."""
        ...

    def refused(self, action: Refusal) -> None:
        """The ticket gets no seat."""
        ...


@runtime_checkable
class StoppableWaiter(TicketWaiter, Protocol):
    """A waiter whose tickets may be ``stoppable``."""

    def preempt(self, lease: Lease) -> bool:
        """Stop working on a ticket, then give it back (``Driver.requeue``) once its seat is really free.

        MUST return at once; false: it cannot be stopped and goes on. A lease that has ended is never asked.
        """
        ...


class FutureWaiter:
    """A waiter that one task awaits. For code that is not on the byte path: it costs a future and a wake-up.

    ``ended`` is what was heard, also when the task was cancelled (and the future with it) a moment before.
    """

    __slots__ = ("ended", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Lease | Refusal] = loop.create_future()
        self.ended: Lease | Refusal | None = None

    def dispatched(self, lease: Lease) -> None:
        self._end(lease)

    def refused(self, action: Refusal) -> None:
        self._end(action)

    def _end(self, answer: Lease | Refusal) -> None:
        self.ended = answer
        if not self.future.done():
            self.future.set_result(answer)
