"""Who watches a walk over the scheduler: everybody's outcome, and what may be done to whom."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from properties.liveness_policies import BACKENDS, NO_BACKEND, make_policy
from tidegate.core import (
    Action,
    Dispatch,
    Evict,
    GateKind,
    Health,
    Lease,
    Policy,
    Preempt,
    Reason,
    Reject,
    Scheduler,
    Ticket,
)


@dataclass(slots=True)
class Books:
    """What the observer knows."""

    tickets: dict[str, Ticket] = field(default_factory=dict)
    waiting: dict[str, Ticket] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    begun: set[str] = field(default_factory=set)
    failed: dict[str, set[str]] = field(default_factory=dict)  # backends that failed a ticket which wants another one
    asked: set[int] = field(default_factory=set)
    went_on: int = 0  # dispatches of what has begun into closed bands
    stops: int = 0


class Observer:
    """Makes each call of a walk and looks at what follows.

    The events are kept, so that a second scheduler can be brought to the same place.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.policy: Policy = make_policy(self.rng)
        self.first = self.policy
        self.core = Scheduler(self.policy)
        self.events: list[tuple[str, float, tuple[object, ...]]] = []
        self.now = 0.0
        self.books = Books()
        self.up = dict.fromkeys(BACKENDS, True)
        self.paused: dict[str, float] = dict.fromkeys(BACKENDS, 0.0)
        self.draining = False

    def tell(self, method: str, *arguments: object) -> None:
        """Make one call and look at what follows."""
        self.events.append((method, self.now, arguments))
        for action in getattr(self.core, method)(self.now, *arguments):
            self.see(action)
        self.look()

    def see(self, action: Action) -> None:
        if isinstance(action, Dispatch):
            self.dispatched(action)
        elif isinstance(action, Reject | Evict):
            if action.ticket.id in self.books.begun:
                self.turned_away(action)
            self.end(action.ticket.id)
        elif isinstance(action, Preempt):
            assert action.lease.id in self.books.leases
            assert action.lease.id not in self.books.asked, "asked twice"
            self.books.asked.add(action.lease.id)

    def dispatched(self, action: Dispatch) -> None:
        books, lease, ticket = self.books, action.lease, action.ticket
        assert books.waiting.pop(ticket.id, None) is ticket, "it does not wait"
        assert self.up[lease.backend], "its backend is down"
        assert lease.backend not in books.failed.get(ticket.id, ()), "that backend has failed it"
        assert not self.draining
        books.leases[lease.id] = lease
        open_to = self.policy.observe_only or self.policy.bands[lease.band].admit
        assert open_to or ticket.id in books.begun or ticket.id in books.failed, "the mode closes its band"
        books.went_on += not open_to

    def turned_away(self, action: Reject | Evict) -> None:
        ticket, reason = action.ticket, action.reason
        deadline = ticket.deadline
        late = deadline is not None and deadline <= self.now
        if deadline is not None and reason is Reason.UPSTREAM_BUSY:
            ends = [self.paused[name] for name, pool in BACKENDS.items() if pool == ticket.pool and self.up[name]]
            late = late or deadline < min(ends)
        failed = self.books.failed.get(ticket.id, set())
        left = [name for name, pool in BACKENDS.items() if pool == ticket.pool and self.up[name] and name not in failed]
        without = reason in NO_BACKEND and not left
        drained = reason is Reason.DRAINING and self.draining
        assert late or without or drained, f"its client has a part of it: {action}"

    def end(self, ident: str) -> None:
        del self.books.waiting[ident]
        self.books.ended[ident] += 1

    def look(self) -> None:
        """See that the counts agree, and that somebody will be woken for whoever time alone would end."""
        books, wake = self.books, self.core.next_wakeup()
        shot = self.core.snapshot(self.now)
        assert (shot.queued, shot.running) == (len(books.waiting), len(books.leases))
        assert wake is None or wake >= self.now
        ends = [ticket for ticket in books.waiting.values() if ticket.id not in books.begun or ticket.deadline]
        if ends and not self.policy.observe_only:
            returned = all(ticket.id in books.failed or not ticket.deadline for ticket in ends)
            assert wake is not None or returned, f"nobody looks after {ends}"

    def nobody_is_shut_in(self) -> None:
        """See that a band which the mode closes keeps nobody but jobs; they are not sent away, all else is."""
        for ident, ticket in self.books.waiting.items():
            why = None if ticket.patient or ident in self.books.begun else self.core.why(self.now, ident)
            assert why is None or why.gate is None or why.gate.kind is not GateKind.MODE, f"{ticket} waits for the mode"

    def probe(self) -> None:
        """See that nothing could be done before the wake-up that another event would show."""
        wake = self.core.next_wakeup()
        ahead = self.now + self.rng.choice([0.05, 1.0, 8.0, 70.0])
        if wake is not None and ahead >= wake:
            ahead = (self.now + wake) / 2
            if not self.now < ahead < wake:
                return
        twin = Scheduler(self.first)
        for method, now, arguments in self.events:
            getattr(twin, method)(now, *arguments)
        for name, up in self.up.items():
            actions = twin.observe(ahead, Health(name, up))
            late = [each for each in actions if isinstance(each, Dispatch | Evict)]
            assert not late, f"at {self.now}, woken at {wake}, but at {ahead} {late}"
