"""The waiting tickets of one band in one pool, as flows: who is oldest, who is next (SPEC §4.2, §4.3).

Between flows it is start-time fair queuing (Goyal, Vin, Cheng 1996) on tokens: a flow's ``tag`` is the virtual time
at which its next ticket starts; serving a ticket moves it by tokens over weight; a flow that wakes up starts at the
present virtual time, so it neither pays for the past nor banks credit. When a ticket is released its flow is
corrected by the tokens really used (the virtual token counter of Sheng et al. 2024).

Two heaps of flows answer the two questions exactly. Each flow has one valid item per heap whose key is at most its
present one; the top is brought up to date before it is believed, so no step walks all flows or tickets:
``_ages`` by oldest ticket (the band's claim), ``_order`` by tag (whose turn it is).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from tidegate.core.model import Turn
from tidegate.core.ordering import Entry, Line, Rule
from tidegate.core.policy import BacklogOrder, Band, Policy

if TYPE_CHECKING:
    from tidegate.core.tenants import Tenant

OVERTAKE = Turn.OVERTAKE
NONE = -1
_SLACK = 64


class Flow(Line):
    """One sub-queue of a band: a ``Line`` with its fair-share account."""

    __slots__ = (
        "age_at",
        "age_seq",
        "idle",
        "key",
        "mark",
        "order_no",
        "order_tag",
        "queue",
        "running",
        "tag",
        "tenant",
    )

    def __init__(self, key: str, tenant: Tenant, queue: BandQueue) -> None:
        super().__init__(queue.rule)
        self.key = key
        self.tenant = tenant
        self.queue = queue
        self.tag = 0.0
        self.running = 0
        self.idle = False  # stands in the queue's list of idle flows
        self.order_no, self.order_tag = NONE, 0.0  # its valid item in _order
        self.age_seq, self.age_at = NONE, 0.0  # its valid item in _ages
        self.mark = 0  # upper bound of count under which it stands in _longest


class BandQueue:
    """Flows of one band in one pool. Counts are of tickets that wait here, parked ones included."""

    __slots__ = (
        "_ages", "_head", "_idle", "_longest", "_order", "_pushes", "_stale", "backlog_after_s", "band", "busy_since",
        "count", "dispatches", "floors", "flows", "newest_first", "overtakes", "pool", "promotions", "rule",
        "running", "spec", "virtual",
    )  # fmt: skip

    def __init__(self, pool: str, band: int, policy: Policy) -> None:
        self.pool = pool
        self.band = band
        self.flows: dict[str, Flow] = {}
        self._order: list[tuple[float, int, Flow]] = []
        self._ages: list[tuple[float, int, Flow]] = []
        self._idle: list[tuple[float, int, Flow]] = []
        self._longest: list[tuple[int, int, Flow]] = []
        self._pushes = 0
        self._head: Entry | None = None
        self._stale = False
        self.virtual = 0.0
        self.count = self.running = 0
        self.busy_since = 0.0
        self.dispatches = self.overtakes = self.floors = self.promotions = 0
        self.rule: Rule
        self.obey(policy)

    def obey(self, policy: Policy) -> None:
        """Take a new policy; each flow sorts itself when next touched."""
        self.spec: Band = policy.bands[self.band]
        self.rule = Rule(self.spec.order, policy.sjf_aging)
        self.newest_first = self.spec.backlog_order is BacklogOrder.NEWEST_FIRST
        self.backlog_after_s = policy.backlog_after_s

    def open(self, key: str, tenant: Tenant) -> Flow:
        """Make a new, empty flow."""
        flow = self.flows[key] = Flow(key, tenant, self)
        tenant.opened(flow)
        return flow

    def add(self, entry: Entry, flow: Flow, now: float) -> None:
        """Let an entry wait in one of this queue's flows."""
        entry.queue, entry.flow = self, flow
        if not self.count:
            self.busy_since = now
        self.count += 1
        if flow.rule is not self.rule:
            flow.obey(self.rule)
        if not flow.count and flow.tag < self.virtual:
            flow.tag = self.virtual
        flow.add(entry)
        if flow.count > flow.mark:
            self._mark(flow)
        if flow.tenant.parked:
            return
        if flow.order_no == NONE:
            self._push_order(flow)
        if flow.age_seq == NONE or entry.arrived < flow.age_at:
            self._push_age(flow, entry)
        head = self._head
        if head is None or entry.arrived < head.arrived:
            self._head = entry

    def remove(self, entry: Entry) -> None:
        """Forget an entry whose state says that it does not wait any more."""
        flow = entry.flow
        flow.drop(entry)
        self.count -= 1
        if self._head is entry:
            self._stale = True
        if not flow.count and not flow.running:
            self._retire(flow)

    def head(self) -> Entry | None:
        """Return the oldest ticket that may run, ``None`` when none may."""
        return self._find_head() if self._stale else self._head

    def take(self, kind: Turn, now: float) -> Entry:
        """Pick the ticket of a dispatch and charge its flow. The queue must have a runnable ticket.

        An overtake serves the ticket whose age made the claim; turns and floors follow flow and order.
        """
        if kind is OVERTAKE:
            entry = self.head()
            assert entry is not None
        else:
            flow = self._next_flow()
            if flow.rule is not self.rule:
                flow.obey(self.rule)
            entry = flow.newest() if self.newest_first and self.serves_newest(now) else flow.first()
        flow = entry.flow
        if flow.tag > self.virtual:
            self.virtual = flow.tag
        flow.tag += entry.cost / flow.tenant.weight
        flow.running += 1
        self.running += 1
        if self._idle:
            self._forgive()
        return entry

    def serves_newest(self, now: float) -> bool:
        """Say whether the band has been backlogged long enough to serve the newest first."""
        return self.newest_first and self.count > 0 and now - self.busy_since >= self.backlog_after_s

    def settle(self, entry: Entry, used: int | None) -> None:
        """Correct the fair-share account of a released entry by the tokens really used."""
        flow = entry.flow
        flow.running -= 1
        self.running -= 1
        if used is not None and used != entry.cost:
            flow.tag += (used - entry.cost) / flow.tenant.weight
            if flow.order_no != NONE and flow.tag < flow.order_tag:
                self._push_order(flow)
        if not flow.count and not flow.running:
            self._retire(flow)

    def longest(self) -> Flow:
        """Return the flow with most tickets waiting. The queue must not be empty."""
        heap = self._longest
        while True:
            mark, _, flow = heap[0]
            if flow.mark != -mark or not flow.count:
                heappop(heap)
                if flow.mark == -mark:
                    flow.mark = 0
            elif flow.count < flow.mark:
                flow.mark = flow.count
                heapreplace(heap, (-flow.count, self._number(), flow))
            else:
                return flow

    def parking_changed(self, flow: Flow) -> None:
        """Note that the flow's tenant was parked or may run again."""
        self._stale = True
        if not flow.tenant.parked and flow.count:
            if flow.order_no == NONE:
                self._push_order(flow)
            if flow.age_seq == NONE:
                self._push_age(flow, flow.oldest())

    def _number(self) -> int:
        self._pushes += 1
        return self._pushes

    def _push_order(self, flow: Flow) -> None:
        if len(self._order) > 2 * len(self.flows) + _SLACK:
            self._order = [item for item in self._order if item[2].order_no == item[1]]
            heapify(self._order)
        flow.order_no, flow.order_tag = self._number(), flow.tag
        heappush(self._order, (flow.tag, flow.order_no, flow))

    def _push_age(self, flow: Flow, oldest: Entry) -> None:
        if len(self._ages) > 2 * len(self.flows) + _SLACK:
            self._ages = [item for item in self._ages if item[2].age_seq == item[1]]
            heapify(self._ages)
        flow.age_seq, flow.age_at = oldest.seq, oldest.arrived
        heappush(self._ages, (oldest.arrived, oldest.seq, flow))

    def _mark(self, flow: Flow) -> None:
        """Keep the flow findable by length: twice its count, so that a growing flow is pushed seldom."""
        if len(self._longest) > 4 * len(self.flows) + _SLACK:
            self._longest = [item for item in self._longest if item[2].mark == -item[0]]
            heapify(self._longest)
        flow.mark = 2 * flow.count
        heappush(self._longest, (-flow.mark, self._number(), flow))

    def _next_flow(self) -> Flow:
        order = self._order
        while True:
            tag, number, flow = order[0]
            if flow.order_no != number:
                heappop(order)
            elif not flow.count or flow.tenant.parked:
                heappop(order)
                flow.order_no = NONE
            elif flow.tag > tag:
                flow.order_tag = flow.tag
                heapreplace(order, (flow.tag, number, flow))
            else:
                return flow

    def _find_head(self) -> Entry | None:
        ages = self._ages
        self._stale = False
        self._head = None
        while ages:
            _, seq, flow = ages[0]
            if flow.age_seq != seq:
                heappop(ages)
            elif not flow.count or flow.tenant.parked:
                heappop(ages)
                flow.age_seq = NONE
            else:
                oldest = flow.oldest()
                if oldest.seq == seq:
                    self._head = oldest
                    break
                flow.age_seq, flow.age_at = oldest.seq, oldest.arrived
                heapreplace(ages, (oldest.arrived, oldest.seq, flow))
        return self._head

    def _retire(self, flow: Flow) -> None:
        """Let go of an empty flow, at once or when virtual time has passed what it owes."""
        if not self.count and not self.running:  # the band's busy period ends: all start again from zero
            for each in list(self.flows.values()):
                self._close(each)
            for heap in (self._order, self._ages, self._idle, self._longest):
                heap.clear()
            self.virtual = 0.0
        elif flow.tag <= self.virtual:
            self._close(flow)
        elif not flow.idle:
            flow.idle = True
            heappush(self._idle, (flow.tag, self._number(), flow))

    def _forgive(self) -> None:
        """Close up to two idle flows that virtual time has caught up with."""
        idle = self._idle
        for _ in range(2):
            if not idle or idle[0][0] > self.virtual:
                return
            flow = heappop(idle)[2]
            flow.idle = False
            if not flow.count and not flow.running and self.flows.get(flow.key) is flow:
                self._retire(flow)

    def _close(self, flow: Flow) -> None:
        del self.flows[flow.key]
        flow.order_no = flow.age_seq = NONE
        flow.mark = 0
        flow.tenant.left(flow)
