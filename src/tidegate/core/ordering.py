"""Order the waiting tickets of one flow: first come, shortest first, earliest deadline (SPEC §4.3).

A ``Line`` holds one flow's entries twice at most: by age always, because the oldest makes the band's claim, and by
the key of the order when that is not arrival. Keys are static: ageing in ``sjf`` is written as ``tokens +
sjf_aging · arrival_ms``, which sorts like ``tokens - sjf_aging · wait_ms`` at any moment. Equal keys keep arrival
order. Entries that leave from the middle stay as dead ones until they reach an end or outnumber the living; so every
step costs O(log n), amortised, and memory stays within a constant of the living.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from tidegate.core.compiling import mypyc_attr
from tidegate.core.policy import Order

if TYPE_CHECKING:
    from tidegate.core.fairness import Flow
    from tidegate.core.model import Lease, Ticket
    from tidegate.core.queues import BandQueue
    from tidegate.core.quota import Slot
    from tidegate.core.routing import Backend
    from tidegate.core.tenants import Tenant
    from tidegate.core.waiting import BandList

WAITING: Final = 0
RUNNING: Final = 1
GONE: Final = 2
_SLACK: Final = 32  # dead entries that are not worth a sweep


@mypyc_attr(free_list_len=1)
class Entry:
    """A ticket inside the scheduler, from submit to release.

    Attributes:
        before, after: its neighbours among those that wait in its band (see ``waiting``).
        called: full name that it bears (see ``names``), empty without one.
        begun: a part of its answer is there, so that neither a mode nor a newcomer turns it away.
        returned: it has had a seat before; it waits aside, outside of capacity and displacement.
        state: WAITING, RUNNING or GONE.
    """

    __slots__ = (
        "after", "answer", "arrived", "avoid", "backend", "before", "begun", "called", "charged", "cost", "early",
        "expires", "flow", "lease", "line", "promoted", "queue", "returned", "seq", "state", "stops", "submitted",
        "tenant", "ticket",
    )  # fmt: skip

    before: Entry
    after: Entry
    flow: Flow
    queue: BandQueue
    line: BandList
    lease: Lease
    backend: Backend

    def __init__(
        self,
        ticket: Ticket,
        tenant: Tenant,
        seq: int,
        arrived: float,
        submitted: float,
        expires: float,
    ) -> None:
        self.ticket = ticket
        self.tenant = tenant
        self.seq = seq
        self.arrived = arrived
        self.submitted = submitted
        self.expires = expires
        work = ticket.work
        self.answer = answer = work.output_tokens
        self.cost = work.input_tokens + answer or 1
        self.state = WAITING
        self.promoted = False
        self.stops = 0  # how often it was preempted
        self.begun = False
        self.returned = False
        self.avoid: tuple[Backend, ...] = ()  # those that failed it
        self.charged: Slot | None = None  # where its tokens stand in the backend's quota
        self.called = ""
        self.early = False  # expires before tickets of its band that entered earlier

    def double(self, seq: int, expires: float) -> Entry:
        """Return one to wait in its place, with its past: the old one may lie dead in a line until swept."""
        moved = Entry(self.ticket, self.tenant, seq, self.arrived, self.submitted, expires)
        moved.promoted, moved.avoid, moved.stops = self.promoted, self.avoid, self.stops
        moved.returned, moved.begun, moved.called = self.returned, self.begun, self.called
        return moved


def runnable(entries: list[Entry]) -> list[Entry]:
    """Return those that still wait, and whose tenants may run more."""
    return [entry for entry in entries if not (entry.state or entry.flow.tenant.parked)]


def first_begun(entries: list[Entry]) -> Entry | None:
    """Return the oldest that waits and may run of the tickets that have begun, ``None`` when there is none."""
    able = runnable(entries)
    return min(able, key=lambda entry: (entry.arrived, entry.seq)) if able else None


class Rule:
    """How the flows of one band are ordered. A new ``Rule`` makes each flow sort itself anew when next touched."""

    __slots__ = ("aging", "order")

    def __init__(self, order: Order, sjf_aging: float) -> None:
        self.order = order
        self.aging = sjf_aging * 1000.0  # tokens per second of waiting

    def key(self, entry: Entry) -> float:
        """Return the static sort key: tokens for ``sjf``, a time for ``edf``."""
        if self.order is Order.SJF:
            return entry.cost + self.aging * entry.arrived
        return entry.expires


class Line:
    """The waiting entries of one flow."""

    __slots__ = ("count", "dead", "early", "heap", "heap_dead", "largest", "line", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.count = 0
        self.line: deque[Entry] = deque()  # by arrival
        self.dead = 0
        self.early: list[tuple[float, int, Entry]] = []  # kept arrivals, oldest last; older than the line's end
        self.heap: list[tuple[float, int, Entry]] | None = None if rule.order is Order.FIFO else []
        self.heap_dead = 0
        self.largest: list[tuple[float, int, Entry]] | None = None  # made by the first displacement from here

    def add(self, entry: Entry) -> None:
        """Take in a waiting entry."""
        line = self.line
        self.count += 1
        if line and entry.arrived < line[-1].arrived:
            insort(self.early, (-entry.arrived, -entry.seq, entry))
        else:
            line.append(entry)
        if self.heap is not None:
            key = self.rule.key(entry)
            heappush(self.heap, (key, entry.seq, entry))
            if self.largest is not None:
                heappush(self.largest, (-key, -entry.seq, entry))

    def drop(self, entry: Entry) -> None:
        """Forget an entry that is no longer WAITING."""
        self.count -= 1
        line = self.line
        if line and line[0] is entry:
            line.popleft()
            while line and line[0].state:
                line.popleft()
                self.dead -= 1
        else:
            self.dead += 1
            if self.dead > self.count + _SLACK:
                self._sweep()
        if self.heap is not None:
            if self.heap and self.heap[0][2] is entry:
                heappop(self.heap)
            else:
                self.heap_dead += 1
                if self.heap_dead > self.count + _SLACK:
                    self._sort()

    def oldest(self) -> Entry:
        """Return the entry that arrived first. The line must not be empty."""
        line, early = self.line, self.early
        while line and line[0].state:
            line.popleft()
            self.dead -= 1
        if early:
            while early and early[-1][2].state:
                early.pop()
                self.dead -= 1
            if early and (not line or (-early[-1][0], -early[-1][1]) < (line[0].arrived, line[0].seq)):
                return early[-1][2]
        return line[0]

    def newest(self) -> Entry:
        """Return the entry that arrived last. The line must not be empty."""
        line, early = self.line, self.early
        while line and line[-1].state:
            line.pop()
            self.dead -= 1
        while early and early[0][2].state:
            del early[0]
            self.dead -= 1
        if early and (not line or (-early[0][0], -early[0][1]) > (line[-1].arrived, line[-1].seq)):
            return early[0][2]
        return line[-1]

    def first(self) -> Entry:
        """Return the entry that the order serves next. The line must not be empty."""
        heap = self.heap
        if heap is None:
            return self.oldest()
        while heap[0][2].state:
            heappop(heap)
            self.heap_dead -= 1
        return heap[0][2]

    def pop_first(self) -> Entry:
        """Take the entry that the order serves next for a seat."""
        entry = self.first()
        entry.state = RUNNING
        self.drop(entry)
        return entry

    def pop_newest(self) -> Entry:
        """Take the entry that arrived last for a seat."""
        entry = self.newest()
        entry.state = RUNNING
        self.drop(entry)
        return entry

    def last(self) -> Entry:
        """Return the entry that ``sjf`` serves last, else the newest. The line must not be empty."""
        if self.rule.order is not Order.SJF:
            return self.newest()
        if self.largest is None:
            self.largest = [(-key, -seq, entry) for key, seq, entry in self.heap or () if not entry.state]
            heapify(self.largest)
        while self.largest[0][2].state:
            heappop(self.largest)
        return self.largest[0][2]

    def obey(self, rule: Rule) -> None:
        """Sort by another rule."""
        self.rule = rule
        self.largest = None
        self._sort()

    def _sort(self) -> None:
        self.heap_dead = 0
        if self.rule.order is Order.FIFO:
            self.heap = None
            return
        waiting = [*(entry for entry in self.line), *(entry for _, _, entry in self.early)]
        self.heap = [(self.rule.key(entry), entry.seq, entry) for entry in waiting if not entry.state]
        heapify(self.heap)
        if self.largest is not None:
            self.largest = None  # it holds the same dead; the next displacement makes it anew

    def _sweep(self) -> None:
        self.line = deque(entry for entry in self.line if not entry.state)
        self.early = [item for item in self.early if not item[2].state]
        self.dead = 0
