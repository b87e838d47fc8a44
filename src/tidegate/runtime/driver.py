"""The asyncio shell of the scheduler: reads the clock, asks the core, carries out its actions, arms one timer.

Invariants:

* The core is called from the event-loop thread only and never from inside itself. Actions are worked off in the
  order in which they were returned, also when a waiter calls the driver from its own callback: what such a call
  leads to is put at the end.
* A waiter hears of its ticket once, or never if it cancelled. A lease is released once: a second release changes
  nothing, and a seat that nobody can take any more (its waiter cancelled or failed) is given back here.
* After a fault of the core the scheduler may be half updated, so the driver stops: everybody who waits is
  refused, newcomers too, running work ends on its own, ``ready`` is false.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from tidegate.core import (
    Action,
    Declined,
    Dispatch,
    Drain,
    Evict,
    Lease,
    Outcome,
    Policy,
    PolicyError,
    Preempt,
    Reason,
    Reject,
    Release,
    Requeue,
    Signal,
    Ticket,
)
from tidegate.runtime.alarm import Alarm
from tidegate.runtime.clock import Clock
from tidegate.runtime.event_log import EventLog
from tidegate.runtime.protocol import SchedulerLike
from tidegate.runtime.questions import FAULT, Questions
from tidegate.runtime.waiters import FutureWaiter, Refusal, StoppableWaiter, TicketWaiter
from tidegate.telemetry import Recorder

BATCH = 64
"""Most actions carried out in one turn of the loop; the rest follow in the next. The requests that hear of them write
their answers in the same turn, some 30 µs each among warm caches: 2 ms."""
ENDINGS = (Reject, Evict)
ANSWERS = (Dispatch, *ENDINGS)
"""Actions that end a ticket's wait."""

log = structlog.get_logger("tidegate.runtime")


class Driver(Questions):
    """Runs one scheduler on one event loop.

    Args:
        scheduler: the core; nobody else may call it.
        clock: where ``now`` comes from.
        recorder: told of every action and of the end of every lease.
        loop: the loop to arm the timer on; the running one if absent.
        event_log: when given, every event is written to it, so that the run can be replayed.
    """

    def __init__(
        self,
        scheduler: SchedulerLike,
        clock: Clock,
        recorder: Recorder,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        event_log: EventLog | None = None,
    ) -> None:
        super().__init__(scheduler, clock, loop)
        self._recorder = recorder
        self._event_log = event_log
        self._holders: dict[int, StoppableWaiter] = {}  # of leases that may be stopped
        self._asked: dict[int, int] = {}  # leases asked to stop, and the band that it is for
        self._todo: deque[Action] = deque()
        self._working = False
        self._alarm = Alarm(clock, self._tick)
        recorder.source = self

    # Events.

    def submit(self, ticket: Ticket, waiter: TicketWaiter) -> None:
        """Hand a ticket to the scheduler; ``waiter`` hears the answer, perhaps before this returns.

        Raises:
            ValueError: a ticket of this id waits already.
        """
        waiters = self._waiters
        if ticket.id in waiters:
            raise ValueError(f"expected a new ticket id, got {ticket.id!r}, which waits already")
        now = self._now()
        if self._fault is not None:
            waiters[ticket.id] = (ticket, waiter)
            actions: list[Action] = [Reject(ticket, Reason.DRAINING, detail=FAULT)]
        else:
            if self._event_log is not None:
                self._event_log.append(now, "submit", (ticket,))
            core = self._core
            try:
                actions = self._scheduler.submit(now, ticket) if core is None else core.submit(now, ticket)
            except Exception as fault:  # noqa: BLE001 - as in _ask
                waiters[ticket.id] = (ticket, waiter)
                self._halt(now, fault)
                actions = []
        self._recorder.submitted(now, ticket, actions)
        if len(actions) == 1 and not (self._working or self._todo):  # the most common by far
            only = actions[0]
            if type(only) is Dispatch and only.ticket is ticket:
                lease = only.lease
                self._leases[lease.id] = lease
                self._working = True
                try:
                    self._tell(lease, waiter)
                finally:
                    self._working = False
                self._look_ahead()
                return
        waiters.setdefault(ticket.id, (ticket, waiter))
        self._carry_out(actions)

    async def acquire(self, ticket: Ticket) -> Lease | Refusal:
        """Submit a ticket and wait for its lease or its refusal.

        A task cancelled while it waits loses nothing: the ticket leaves the queue, or the lease that came at the
        same moment is given back.
        """
        waiter = FutureWaiter(self.loop)
        self.submit(ticket, waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if isinstance(waiter.ended, Lease):
                self.release(waiter.ended, Release(Outcome.CANCELLED))
            elif waiter.ended is None:
                self.cancel(ticket.id)
            raise

    def release(self, lease: Lease, release: Release, *, reason: Reason | None = None) -> None:
        """End a lease: its seat returns, its outcome is counted.

        Args:
            lease: what ``dispatched`` brought. Released before: nothing happens but a warning in the log.
            release: outcome and, where known, the tokens really used.
            reason: row of the refusal table when the request failed after its dispatch.
        """
        number = lease.id
        if number in self._leases:
            del self._leases[number]
        else:
            log.warning("lease.released_twice", lease=lease.id, request_id=lease.ticket.id)
            return
        if lease.ticket.stoppable:
            self._forget(lease)
        now = self._now()
        self._recorder.finished(now, lease, release, reason=reason)
        if self._fault is None:
            if self._event_log is not None:
                self._event_log.append(now, "release", (number, release))
            core = self._core
            try:
                actions = (
                    self._scheduler.release(now, number, release)
                    if core is None
                    else core.release(now, number, release)
                )
            except Exception as fault:  # noqa: BLE001 - as in _ask
                self._halt(now, fault)
                actions = []
            if actions:
                self._recorder.actions(now, actions)
                self._carry_out(actions)
                return
        if not self._working:
            self._look_ahead()

    def requeue(self, lease: Lease, requeue: Requeue, waiter: TicketWaiter) -> None:
        """Give a lease back that came to nothing; its ticket waits again, or ends.

        Args:
            lease: what ``dispatched`` brought, not released yet.
            requeue: why.
            waiter: hears the answer, perhaps before this returns.

        Raises:
            ValueError: the lease has been released before.
        """
        if self._leases.pop(lease.id, None) is None:
            raise ValueError(f"expected a lease that is held, got {lease.id}, which has been released")
        now, ticket = self._now(), lease.ticket
        self._waiters[ticket.id] = (ticket, waiter)
        by = self._forget(lease) if ticket.stoppable else None
        if by is not None and not requeue.avoid:
            self._recorder.preempted(lease, by)
        self._recorder.requeued(now, lease)
        if self._fault is None:
            actions = self._ask("requeue", now, self._scheduler.release, lease.id, requeue)
        else:
            actions = [Evict(ticket, Reason.DRAINING, detail=FAULT)]
        self._recorder.actions(now, actions)
        self._carry_out(actions)

    def cancel(self, ticket_id: str) -> bool:
        """Take a ticket out of the queue; its waiter will hear nothing. False when it does not wait (any more)."""
        entry = self._waiters.pop(ticket_id, None)
        if entry is None:
            return False
        if self._decided(ticket_id):  # its answer stands in _todo and will find no waiter
            return True
        ticket = entry[0]
        now = self._now()
        actions = [] if self._fault is not None else self._ask("cancel", now, self._scheduler.cancel, ticket_id)
        if not any(action.ticket is ticket for action in actions if isinstance(action, ANSWERS)):
            self._recorder.cancelled(now, ticket)
        self._recorder.actions(now, actions)
        self._carry_out(actions)
        return True

    def observe(self, signal: Signal) -> None:
        """Tell the scheduler a fact from outside."""
        self._event(f"observe.{type(signal).__name__}", self._now(), self._scheduler.observe, signal)

    def set_policy(self, policy: Policy) -> None:
        """Put a whole new policy in force; nothing that waits is lost.

        Raises:
            PolicyError: it cannot be put in force without a restart; the old one goes on.
        """
        self._event("set_policy", self._now(), self._scheduler.set_policy, policy)
        self._recorder.set_policy(policy)

    async def drain(self, timeout_s: float) -> int:
        """Refuse what waits and what comes, let running work finish for at most ``timeout_s`` seconds.

        Returns:
            How many leases still run; 0 when all ended in time.
        """
        drained = self._drained = self._drained or asyncio.Event()
        self.observe(Drain())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await drained.wait()
        return len(self._leases)

    def close(self) -> None:
        """Stop the timer and write out the event log. The driver does nothing more by itself."""
        self._alarm.stop()
        if self._event_log is not None:
            self._event_log.close()

    # The machine.

    def _event(self, kind: str, now: float, call: Callable[..., list[Action]], *arguments: object) -> None:
        """Ask the core, count, carry out."""
        actions = self._ask(kind, now, call, *arguments) if self._fault is None else []
        if actions:
            self._recorder.actions(now, actions)
        self._carry_out(actions)

    def _ask(self, kind: str, now: float, call: Callable[..., list[Action]], *arguments: object) -> list[Action]:
        if self._event_log is not None:
            self._event_log.append(now, kind, arguments)
        try:
            return call(now, *arguments)
        except PolicyError:  # a value of the caller's, refused whole
            raise
        except Exception as fault:  # noqa: BLE001 - whatever it is, the scheduler cannot be trusted any more
            self._halt(now, fault)
            return []

    def _carry_out(self, actions: Sequence[Action]) -> None:
        if self._working:
            self._todo.extend(actions)
            return
        if len(actions) == 1 and type(only := actions[0]) is Dispatch and not self._todo:
            self._working = True
            try:
                self._dispatch(only.lease)
            finally:
                self._working = False
        elif actions:
            self._todo.extend(actions)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Work off what is to do, set the timer, see whether all has ended."""
        if self._todo:
            self._work()
        if self._fault is None:
            core = self._core
            wake = self._scheduler.next_wakeup() if core is None else core.next_wakeup()
            if wake is not None and wake < self._alarm.at:
                self._alarm.set(wake, self.loop)
        if self._drained is not None and not (self._leases or self._waiters or self._todo):
            self._drained.set()

    def _work(self) -> None:
        self._working = True
        todo = self._todo
        try:
            for _ in range(BATCH):
                if not todo:
                    break
                self._perform(todo.popleft())
        finally:
            self._working = bool(todo)
            if todo:
                self.loop.call_soon(self._work_on)

    def _work_on(self) -> None:
        self._work()
        self._carry_out(())

    def _perform(self, action: Action) -> None:
        if isinstance(action, Dispatch):
            self._dispatch(action.lease)
        elif isinstance(action, Preempt):
            self._preempt(action)
        elif isinstance(action, ENDINGS):
            self._refuse(action)

    def _refuse(self, action: Refusal) -> None:
        entry = self._waiters.pop(action.ticket.id, None)
        if entry is None:
            return
        try:
            entry[1].refused(action)
        except Exception:  # one waiter's fault must not cost the others their answers
            log.exception("waiter.failed", request_id=action.ticket.id)

    def _dispatch(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        ticket = lease.ticket
        entry = self._waiters.pop(ticket.id, None)
        if entry is None:
            self.release(lease, Release(Outcome.CANCELLED))
            return
        self._tell(lease, entry[1])

    def _tell(self, lease: Lease, waiter: TicketWaiter) -> None:
        if lease.ticket.stoppable and isinstance(waiter, StoppableWaiter):
            self._holders[lease.id] = waiter
        try:
            waiter.dispatched(lease)
        except Exception:  # as above; and its seat must not be lost
            log.exception("waiter.failed", request_id=lease.ticket.id)
            if lease.id in self._leases:
                self.release(lease, Release(Outcome.FAILED), reason=Reason.UPSTREAM_ERROR)

    def _preempt(self, action: Preempt) -> None:
        """Have a lease stopped; it may have ended since the scheduler said so."""
        lease = action.lease
        if lease.id not in self._leases:
            return
        holder = self._holders.get(lease.id)
        self._asked[lease.id] = action.by
        try:
            stops = holder is not None and holder.preempt(lease)
        except Exception:  # as above: it goes on to its end
            log.exception("waiter.failed", request_id=lease.ticket.id)
            stops = False
        if not stops and self._asked.pop(lease.id, None) is not None:
            self.observe(Declined(lease.id))

    def _forget(self, lease: Lease) -> int | None:
        """Forget who holds a stoppable lease that has ended; return the band it was to be stopped for, if it was."""
        self._holders.pop(lease.id, None)
        return self._asked.pop(lease.id, None)

    def _decided(self, ticket_id: str) -> bool:
        return any(action.ticket.id == ticket_id for action in self._todo if isinstance(action, ANSWERS))

    def _tick(self, now: float) -> None:
        self._event("tick", now, self._scheduler.tick)

    def _halt(self, now: float, fault: Exception) -> None:
        self._fault = fault
        self._recorder.source = None  # what a half-updated scheduler says of itself is not worth a scrape's failure
        log.critical("scheduler.fault", waiting=len(self._waiters), running=len(self._leases), exc_info=fault)
        self._alarm.stop()
        decided = {action.ticket.id for action in self._todo if isinstance(action, ANSWERS)}
        rest: list[Action] = [
            Evict(t, Reason.DRAINING, detail=FAULT) for t, _ in self._waiters.values() if t.id not in decided
        ]
        self._recorder.actions(now, rest)
        self._todo.extend(rest)
        if self._event_log is not None:
            self._event_log.flush()
