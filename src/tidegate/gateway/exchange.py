"""One request's hold on the scheduler: it waits, or it has a lease, or neither. The seat goes back exactly once.

    idle ──seat()──▶ waiting ──dispatched──▶ running ──finish()──▶ idle
                        │ refused ─▶ idle        │ requeue() ─▶ waiting
                        │                        │ preempt() ─▶ the engine lets go ─▶ waiting
                        │                        │ client left, task ended ─▶ finish(cancelled or failed)
                        │ client left, task ended ─▶ driver.cancel

Used as a context manager around everything that a request does; whatever way the block is left, nothing stays behind.
A client that leaves is acted on at once, inside the loop's callback: the queue is left or the upstream connection
closed, the seat returned. Then the request's task is cancelled, so that it ends in whatever ``await`` it stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from tidegate.backends import Response
from tidegate.core import Lease, Outcome, Reason, Release, Requeue, Ticket
from tidegate.gateway.eager import EagerTask
from tidegate.gateway.link import ClientLink
from tidegate.gateway.watch import NOTHING, Used
from tidegate.runtime import Driver, Refusal
from tidegate.telemetry.traces import Trace

CANCELLED: Final = Release(Outcome.CANCELLED)
FAILED: Final = Release(Outcome.FAILED)
_current_task: Final = asyncio.current_task


def outcome_for(reason: Reason | None) -> Outcome:
    """How a request ends that had a seat and gets no answer: who was stopped by hand is cancelled, not failed."""
    return Outcome.CANCELLED if reason is Reason.CANCELLED else Outcome.FAILED


class Exchange:
    """See the module docstring. Belongs to the task that makes it, which can be told: to ask for it is slow.

    Attributes:
        lease: the seat held now.
        link: the client's connection; ``None`` where there is none, as behind a row of a batch job.
        refusal: why there is none, after ``seat`` returned ``None``.
        response: the open upstream answer, so that it can be aborted.
        gone: the client left.
        stopped: why the gateway ended the request itself (``stop``).
        trace: hears of waits, seats and calls of backends, where the request is traced.
        cut: the scheduler has had it stopped; what follows is ``regained``.
        lost: why the gateway gave up the backend (``lose``).
        used: says what the engine has told of the tokens of the answer so far; ``None``: it has not begun.
        may_stop: says whether it can be stopped just now; ``None``: it never can.
    """

    __slots__ = (
        "_driver",
        "_future",
        "_leaving",
        "_sent_at",
        "_task",
        "_unasked",
        "_waiting",
        "cut",
        "gone",
        "lease",
        "link",
        "lost",
        "may_stop",
        "refusal",
        "response",
        "stopped",
        "trace",
        "used",
    )

    def __init__(
        self,
        driver: Driver,
        link: ClientLink | None,
        trace: Trace | None = None,
        task: EagerTask | None = None,
    ) -> None:
        self._driver = driver
        self.link = link
        self._task: asyncio.Task[Any] | EagerTask | None = _current_task(driver.loop) if task is None else task
        self._future: asyncio.Future[None] | None = None
        self._sent_at = 0.0
        self._waiting = ""
        self.lease: Lease | None = None
        self.refusal: Refusal | None = None
        self.response: Response | None = None
        self.gone = link is not None and link.gone
        self.stopped: Reason | None = None
        self.trace = trace
        self.lost: Reason | None = None
        self.cut = self._leaving = self._unasked = False
        self.may_stop: Callable[[], bool] | None = None
        self.used: Callable[[], Used] | None = None

    def __enter__(self) -> Self:
        link = self.link
        if link is not None:
            link.on_gone = self._left
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        link = self.link
        if link is not None:
            link.on_gone = None
        self._task = None
        if self.lease is not None or self._waiting or self.response is not None:
            self._let_go(CANCELLED if self.gone else FAILED)

    def apply(self, ticket: Ticket) -> bool:
        """Ask for a seat; return whether it has to be waited for (``seated``). Without a wait, see ``lease``."""
        assert self.lease is None
        self.refusal = None
        self._waiting = ticket.id
        if self.trace is not None:
            self.trace.waits()
        self._driver.submit(ticket, self)
        return bool(self._waiting)

    async def seated(self) -> Lease | None:
        """Wait for what was applied for. ``None``: refused, see ``refusal``."""
        if self._waiting:
            self._future = self._driver.loop.create_future()
            await self._future
        return self.lease

    async def seat(self, ticket: Ticket) -> Lease | None:
        """Ask for a seat and wait."""
        self.apply(ticket)
        return await self.seated()

    async def requeue(self, requeue: Requeue) -> Lease | None:
        """Give the seat back and the ticket too, and wait again. ``None``: refused, see ``refusal``."""
        lease, self.lease = self.lease, None
        assert lease is not None
        self.response = self.refusal = None
        self._waiting = lease.ticket.id
        self._back()
        self._driver.requeue(lease, requeue, self)
        return await self.seated()

    async def regained(self) -> Lease | None:
        """After ``cut``: wait for the next seat, which is asked for once the engine has let go of this one.

        ``None``: refused, see ``refusal``.
        """
        if self._unasked:
            self._vacate()
        while self._leaving or self._waiting:
            self._future = self._driver.loop.create_future()
            await self._future
        self.cut = False
        return self.lease

    def give_back(self, requeue: Requeue) -> None:
        """Give the seat back and take the ticket out of the queue, as if it had never been dispatched."""
        lease, self.lease = self.lease, None
        assert lease is not None
        self.response = None
        self._waiting = lease.ticket.id
        self._driver.requeue(lease, requeue, self)
        self._let_go(CANCELLED)

    def replace(self, ticket: Ticket) -> None:
        """While a ticket waits, let it go and wait with another in its place."""
        assert self._waiting
        self._driver.cancel(self._waiting)
        self._waiting = ticket.id
        self._driver.submit(ticket, self)

    def asked(self) -> None:
        """Note that the backend is being asked now."""
        self._sent_at = self._driver.loop.time()
        if self.trace is not None:
            self.trace.asked()
        self.lost = None

    def sent(self, response: Response) -> None:
        """Keep the answer that is to come, so that it can be ended before its head."""
        self.response = response
        if self._unasked:
            self._unasked = False
            response.leave(self._vacate)

    @property
    def heard_at(self) -> float:
        """When the backend last gave a sign of life to this request: the event loop's time, seconds."""
        return self._sent_at if self.response is None else self.response.last_byte_at

    @property
    def ticket_id(self) -> str:
        """Id of its ticket while that waits or runs, else empty."""
        return self._waiting if self.lease is None else self.lease.ticket.id

    def finish(self, release: Release, *, reason: Reason | None = None) -> None:
        """Return the seat with its outcome. Without a seat nothing happens, so a second call is harmless."""
        lease, self.lease = self.lease, None
        if lease is not None:
            if self.trace is not None:
                self.trace.returned(release.outcome, reason)
            self._driver.release(lease, release, reason=reason)

    def end(self, release: Release, reason: Reason) -> None:
        """End the request wherever it stands: with a seat, or after ``cut`` already waiting for the next one."""
        waiting, self._waiting = self._waiting, ""
        if waiting:
            self._driver.cancel(waiting)
        self.finish(release, reason=reason)

    def stop(self, reason: Reason) -> None:
        """End the request from our side: its task goes on with a broken response or a cancellation."""
        if self.stopped is not None:
            return
        self.stopped = reason
        if self.response is not None and not self._leaving:
            self.response.abort()
        elif self._task is not None:
            self._task.cancel()

    def lose(self, reason: Reason) -> None:
        """Give up the backend: the answer goes on elsewhere where it can, else it fails for this reason."""
        if self.response is not None and not self._leaving:
            self.lost = reason
            self.response.abort()

    # StoppableWaiter

    def preempt(self, lease: Lease) -> bool:
        response = self.response
        if lease is not self.lease or self.cut or self.stopped is not None:
            return False
        if response is not None and response.over:  # about to end
            return False
        if self.may_stop is None or not self.may_stop():
            return False
        self.cut = self._leaving = True
        if response is None:  # its task has yet to ask the engine, or notices before it does
            self._unasked = True
        else:
            response.leave(self._vacate)
        return True

    def _vacate(self) -> None:
        """The engine has let go: ask for another seat, unless the request has ended meanwhile."""
        self._leaving = self._unasked = False
        lease, self.lease = self.lease, None
        if lease is not None:
            self.response = self.refusal = None
            self._waiting = lease.ticket.id
            self._back()
            self._driver.requeue(lease, Requeue(), self)
        self._wake_up()

    def dispatched(self, lease: Lease) -> None:
        self.lease = lease
        self._waiting = ""
        if self.trace is not None:
            self.trace.dispatched(lease)
        if self._future is not None:
            self._wake_up()

    def refused(self, action: Refusal) -> None:
        self.refusal = action
        self._waiting = ""
        self._wake_up()

    def _wake_up(self) -> None:
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)

    def _back(self) -> None:
        """Tell the trace that the seat goes back and the ticket waits again."""
        if self.trace is not None:
            self.trace.returned(None, None)
            self.trace.waits()

    def _left(self) -> None:
        self.gone = True
        used = NOTHING if self.used is None else self.used()
        self._let_go(Release(Outcome.CANCELLED, used.input_tokens, used.output_tokens))
        if self._task is not None:
            self._task.cancel()

    def _let_go(self, release: Release) -> None:
        """Give back whatever is held. Idempotent."""
        waiting, self._waiting = self._waiting, ""
        if waiting:
            self._driver.cancel(waiting)
        response, self.response = self.response, None
        if response is not None:
            response.abort()
        self.finish(release)
