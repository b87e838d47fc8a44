"""The world: arrivals, the scheduler and the servers joined on one virtual clock.

The scheduler is the very one of the gateway. Events at the same instant happen in a fixed order: ends of work and
steps, then arrivals, then pages that are read, then clients that leave, then the scheduler's own wake-ups; so the same
arrivals and seeds give the same log.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from tidegate.core import (
    Action,
    Began,
    Declined,
    Dispatch,
    Evict,
    Lease,
    Outcome,
    Policy,
    Preempt,
    Reason,
    Reject,
    Release,
    Requeue,
    Scheduler,
    Signal,
    Stoppable,
    Ticket,
    WorkEstimate,
)
from tidegate.simulation.arrivals import Request
from tidegate.simulation.gaps import Gaps
from tidegate.simulation.log import Entry, Log
from tidegate.simulation.records import Sink, record_of
from tidegate.simulation.scraping import Scrape, Scraper
from tidegate.simulation.servers import NEVER, Leg, Server

_MOST_BANDS = 8

Estimate = Callable[[Request], WorkEstimate]
Started = Callable[[float, Request], None]


class SchedulerLike(Protocol):
    """The part of the scheduler that a world uses, so that a baseline can stand in for it."""

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        """See ``Scheduler``."""
        ...

    def release(self, now: float, lease_id: int, release: Release | Requeue) -> list[Action]:
        """See ``Scheduler``."""
        ...

    def cancel(self, now: float, ticket_id: str) -> list[Action]:
        """See ``Scheduler``."""
        ...

    def observe(self, now: float, signal: Signal) -> list[Action]:
        """See ``Scheduler``."""
        ...

    def tick(self, now: float) -> list[Action]:
        """See ``Scheduler``."""
        ...

    def next_wakeup(self) -> float | None:
        """See ``Scheduler``."""
        ...


def known_lengths(request: Request) -> WorkEstimate:
    """Estimate of a scheduler that knows lengths: the request's own numbers."""
    return WorkEstimate(request.prompt_tokens, request.output_tokens)


class World:
    """One run. Build it, ``run`` it once, read the log."""

    def __init__(
        self,
        scheduler: SchedulerLike | Policy,
        servers: Mapping[str, Server],
        arrivals: Iterable[Request],
        *,
        estimate: Estimate = known_lengths,
        scrape: Scrape | None = None,
        sink: Sink | None = None,
        started: Started | None = None,
        log: Log | None = None,
        stoppable: Stoppable = Stoppable.NEVER,
        gaps: Mapping[str, Gaps] | None = None,
    ) -> None:
        """Set the stage.

        Args:
            scheduler: what decides, or the policy of the scheduler to build.
            servers: by the backend names of the policy.
            arrivals: in order of time; read as the clock goes, so an endless stream is fine with ``until``.
            estimate: what the scheduler is told of a request's size.
            scrape: how the engines' metrics pages are read; ``None``: the scheduler sees none.
            sink: takes the record of each request when it has ended, and at the end those of the open ones.
            started: is told of each dispatch, as it happens.
            log: what is kept; ``None``: everything.
            stoppable: when running work may be stopped for a higher band, should the policy want that.
            gaps: by pool, what counts how long its bands go without a dispatch.
        """
        self.scheduler: SchedulerLike = Scheduler(scheduler) if isinstance(scheduler, Policy) else scheduler
        self.log = Log() if log is None else log
        self._servers = dict(servers)
        self._due = {name: server.next_event() for name, server in self._servers.items()}
        self._wake: float | None = None  # of the scheduler; ``None``: not asked since it was last told something
        self._arrivals = iter(arrivals)
        self._estimate = estimate
        self._numbers = itertools.count()
        self._turns = itertools.count()
        self._open: dict[int, Entry] = {}  # by number, those without an outcome
        self._leases: dict[int, Lease] = {}  # likewise
        self._stoppable = stoppable
        self._gaps = gaps or {}
        self._legs: dict[int, Leg] = {}  # by number, of those that were stopped
        self._waiting: dict[str, list[int]] = {}  # by pool, for each band
        self._leaving: list[tuple[float, int]] = []  # when the client of an entry leaves
        self._scraper = Scraper(scrape, self._servers)
        self._sink = sink
        self._started = started
        self._offered: list[tuple[float, int, Request]] = []
        self._offers = itertools.count()

    def offer(self, at: float, request: Request) -> None:
        """Let one more request arrive ``at`` a time (or now, when that is past); a sink may call this.

        It counts as waiting since ``request.at``, which is earlier for a row that was kept back outside the gateway.
        """
        heapq.heappush(self._offered, (at, next(self._offers), request))

    def run(self, until: float = NEVER) -> Log:
        """Run until nothing is left to happen, or to the last event before ``until``."""
        self._run(until)
        if self._sink is not None:
            for number, entry in self._open.items():
                self._tell(number, entry)
        return self.log

    def _run(self, until: float) -> None:
        due, scraper, log = self._due, self._scraper, self.log
        coming = next(self._arrivals, None)
        while True:
            work_at = min(due.values())
            arrive_at = NEVER if coming is None else coming.at
            if self._offered and self._offered[0][0] < arrive_at:
                arrive_at = max(log.ended_at, self._offered[0][0])
            leave_at = self._leaving[0][0] if self._leaving else NEVER
            now = min(work_at, arrive_at, leave_at, self._wakes_at())
            if now == NEVER and not any(map(any, self._waiting.values())):
                return
            now = min(now, scraper.next_at)
            if now >= until or now == NEVER:
                return
            log.ended_at = now
            if work_at <= now:
                self._advance(now, work_at)
            elif arrive_at <= now:
                if self._offered and self._offered[0][0] <= now:
                    self._arrive(now, heapq.heappop(self._offered)[2])
                elif coming is not None:
                    self._arrive(now, coming)
                    coming = next(self._arrivals, None)
            elif scraper.next_at <= now:
                for reading in scraper.advance(now):
                    self.observe(now, reading)
            elif leave_at <= now:
                self._leave(now, heapq.heappop(self._leaving)[1])
            else:
                self._obey(now, self.scheduler.tick(now))

    def _wakes_at(self) -> float:
        """When the scheduler wants to be woken; asked only after it was told something."""
        if self._wake is None:
            wake = self.scheduler.next_wakeup()
            self._wake = NEVER if wake is None else wake
        return self._wake

    def _advance(self, now: float, work_at: float) -> None:
        """Let the server whose event is due, of several the one named first, do it."""
        for name, at in self._due.items():
            if at == work_at:
                server = self._servers[name]
                server.advance(now, self)
                self._due[name] = server.next_event()
                return

    def observe(self, now: float, signal: Signal) -> None:
        """Tell the scheduler a fact from outside."""
        self._obey(now, self.scheduler.observe(now, signal))

    def first_token(self, now: float, number: int) -> None:
        """See ``Progress``."""
        entry = self._open[number]
        if entry.first_token is None:
            entry.first_token = now
        entry.began = True
        if entry.ticket.stoppable:
            self.observe(now, Began(self._leases[number].id))

    def finished(self, now: float, number: int) -> None:
        """See ``Progress``."""
        entry = self._open.pop(number)
        entry.finished = now
        entry.outcome = Outcome.COMPLETED
        self._tell(number, entry)
        self._legs.pop(number, None)
        used = Release(Outcome.COMPLETED, entry.request.prompt_tokens, entry.request.output_tokens)
        self._obey(now, self.scheduler.release(now, self._leases.pop(number).id, used))

    def paused(self, now: float, number: int, leg: Leg) -> None:
        """See ``Progress``: its ticket waits again, in its old place."""
        before = self._legs.get(number)
        if before is not None:
            leg = replace(leg, done=before.done + leg.done, work=before.joined(leg.work))
        self._legs[number] = leg
        entry = self._open[number]
        gaps = self._gaps.get(entry.ticket.pool)
        if gaps is not None and not entry.began:
            gaps.undone(entry.ticket.band, entry.place)
        self._count(entry.ticket, 1)
        self._obey(now, self.scheduler.release(now, self._leases.pop(number).id, Requeue()))

    def _arrive(self, now: float, request: Request) -> None:
        number = next(self._numbers)
        ticket = Ticket(
            str(number),
            request.pool,
            request.band,
            request.tenant,
            self._estimate(request),
            affinity=request.affinity,
            patient=request.patient,
            stoppable=self._stoppable,
        )
        entry = self._open[number] = Entry(request, ticket)
        self.log.arrived(entry)
        self._count(ticket, 1)
        if request.patience_s < NEVER:
            heapq.heappush(self._leaving, (now + request.patience_s, number))
        self._obey(now, self.scheduler.submit(now, ticket))

    def _leave(self, now: float, number: int) -> None:
        """A client has waited long enough: its ticket is withdrawn, or its work stopped."""
        entry = self._open.pop(number, None)
        if entry is None:
            return
        entry.outcome, entry.reason, entry.finished = Outcome.CANCELLED, Reason.CANCELLED, now
        self._tell(number, entry)
        self._legs.pop(number, None)
        lease = self._leases.pop(number, None)
        if lease is None:
            self._count(entry.ticket, -1)
            self._obey(now, self.scheduler.cancel(now, entry.ticket.id))
        else:
            server = self._servers[lease.backend]
            server.stop(number)
            self._due[lease.backend] = server.next_event()
            self._obey(now, self.scheduler.release(now, lease.id, Release(Outcome.CANCELLED)))

    def _obey(self, now: float, actions: list[Action]) -> None:
        self._wake = None
        for action in actions:
            number = int(action.ticket.id)
            if isinstance(action, Dispatch):
                self._start(now, number, action)
            elif isinstance(action, Preempt):
                lease = self._leases.get(number)
                if lease is action.lease:
                    self._pause(now, number, lease)
            elif isinstance(action, Reject | Evict):
                entry = self._open.pop(number)
                entry.outcome = Outcome.REJECTED if isinstance(action, Reject) else Outcome.EVICTED
                entry.reason = action.reason
                entry.finished = now
                self._tell(number, entry)
                self._legs.pop(number, None)
                self._count(action.ticket, -1)

    def _pause(self, now: float, number: int, lease: Lease) -> None:
        server = self._servers[lease.backend]
        if server.pause(number):
            self._due[lease.backend] = server.next_event()
        else:
            self.observe(now, Declined(lease.id))

    def _start(self, now: float, number: int, dispatch: Dispatch) -> None:
        entry, lease = self._open[number], dispatch.lease
        ticket = lease.ticket
        waiting = self._waiting[ticket.pool]
        gaps = self._gaps.get(ticket.pool)
        if gaps is not None:
            entry.place, entry.began = gaps.dispatched(ticket.band, waiting, dispatch.barred), False
        if entry.first_token is None:  # else its answer goes on
            entry.passed = any(waiting[: ticket.band])
            entry.contended = entry.passed or any(waiting[ticket.band + 1 :])
            entry.dispatched, entry.kind = now, lease.kind
            entry.turn = next(self._turns)
            self.log.went(entry)
        entry.backend = lease.backend
        self._count(ticket, -1)
        self._leases[number] = lease
        server = self._servers[lease.backend]
        server.start(now, number, entry.request, self._legs.get(number))
        self._due[lease.backend] = server.next_event()
        if self._started is not None:
            self._started(now, entry.request)

    def _tell(self, number: int, entry: Entry) -> None:
        if self._sink is not None:
            server, before = self._servers.get(entry.backend), self._legs.get(number)
            work = None if server is None else server.work(number)
            self._sink(record_of(number, entry, work if before is None else before.joined(work)))

    def _count(self, ticket: Ticket, by: int) -> None:
        waiting = self._waiting.get(ticket.pool)
        if waiting is None:
            waiting = self._waiting[ticket.pool] = [0] * _MOST_BANDS
        waiting[ticket.band] += by
