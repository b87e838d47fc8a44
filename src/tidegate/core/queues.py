"""The waiting tickets of one band in one pool: who is oldest, who is next (SPEC §4.1 to §4.3).

The oldest ticket that may run makes the band's claim. It comes from a heap of flows by their oldest ticket, kept like
the heap of ``fairness``: one valid item per flow, its key at most the present one, the top brought up to date before
it is believed. Exact over all that waits, and no step walks flows or tickets.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from tidegate.core.fairness import MOST_IDLE, NONE, FairFlows, Flow
from tidegate.core.forecast import Arrivals
from tidegate.core.model import Turn
from tidegate.core.ordering import RUNNING, Entry, Rule
from tidegate.core.policy import BacklogOrder, Band, Policy, Saturated

if TYPE_CHECKING:
    from tidegate.core.tenants import Tenant
    from tidegate.core.urgency import Urgency

FLOOR: Final = Turn.FLOOR
OVERTAKE: Final = Turn.OVERTAKE
_SLACK: Final = 64


class BandQueue(FairFlows):
    """Flows of one band in one pool.

    Attributes:
        count: tickets that wait here, those of parked tenants included.
        running: leases held by work dispatched from here.
        begun: of the tickets that wait here, those with a part of their answer; may hold some that wait no more.
        urgency: who waits here and may have others stopped; ``None``: the band may not.
        oldest: the oldest ticket that may run; out of date while ``stale`` (see ``head``).
        busy_since: when the queue was last empty.
        entered, dispatches, overtakes, floors, promotions: counts since the start.
    """

    __slots__ = (
        "_ages", "_longest", "arrivals", "backlog_after_s", "band", "begun", "busy_since", "capacity", "dispatches",
        "entered", "floors", "newest_first", "oldest", "overtakes", "pool", "promotions", "screens", "spec", "stale",
        "ttl_s", "urgency",
    )  # fmt: skip

    def __init__(self, pool: str, band: int, policy: Policy) -> None:
        super().__init__()
        self.pool = pool
        self.band = band
        self._ages: list[tuple[float, int, Flow]] = []
        self._longest: list[tuple[int, int, Flow]] = []
        self.oldest: Entry | None = None
        self.stale = False
        self.begun: list[Entry] = []
        self.urgency: Urgency | None = None
        self.busy_since = 0.0
        self.arrivals = Arrivals()
        self.entered = self.dispatches = self.overtakes = self.floors = self.promotions = 0
        self.obey(policy)

    def obey(self, policy: Policy) -> None:
        """Take a new policy; each flow sorts itself when next touched."""
        self.spec: Band = policy.bands[self.band]
        self.ttl_s, self.capacity = self.spec.ttl_s, self.spec.capacity
        self.screens = self.spec.shed_hopeless or not self.spec.admit or self.spec.when_saturated is Saturated.SHED
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
        self.entered += 1
        if flow.rule is not self.rule:
            flow.obey(self.rule)
        count = flow.count + 1
        line = flow.line
        if flow.heap is None and (entry.arrived >= line[-1].arrived if line else count == 1):  # what flow.add does then
            line.append(entry)
            flow.count = count
            if count == 1:
                self._wake(entry, flow)
        else:
            flow.add(entry)
            if count == 1 or entry.arrived < flow.age_at:
                self._wake(entry, flow)
        if count > flow.mark:
            self._mark(flow)

    def add_back(self, entry: Entry, flow: Flow, now: float) -> None:
        """Let an entry wait that was here before, or in another band: it did not arrive now."""
        self.add(entry, flow, now)
        self.entered -= 1
        if entry.begun:
            self.begun[:] = [*(each for each in self.begun if not each.state), entry]

    def _wake(self, entry: Entry, flow: Flow) -> None:
        """Let a flow bid that was empty, or whose oldest ticket is now ``entry``."""
        tenant = flow.tenant
        if flow.count == 1:
            if flow.tag < self.virtual:
                flow.tag = self.virtual
            if not flow.running:
                tenant.home.flows += 1
        if tenant.parked:
            return
        if flow.count == 1:
            self.line_up(flow)
        arrived = entry.arrived
        if flow.age_seq == NONE or arrived < flow.age_at:
            self._push_age(flow, entry)
        oldest = self.oldest
        if oldest is None or arrived < oldest.arrived:
            self.oldest = entry

    def remove(self, entry: Entry) -> None:
        """Forget an entry whose state says that it does not wait any more."""
        flow = entry.flow
        flow.drop(entry)
        self.count -= 1
        if self.oldest is entry:
            self.stale = True
        if not flow.count and not flow.running:
            self.retire(flow)

    def head(self) -> Entry | None:
        """Return the oldest ticket that may run, ``None`` when none may."""
        return self._find_head() if self.stale else self.oldest

    def next_up(self, now: float) -> Entry:
        """Return the ticket that a turn would serve. The queue must have one that may run."""
        return self._next_of(self.next_flow(), now)

    def next_up_of_others(self, now: float, most: int) -> list[Entry]:
        """Return the tickets that turns would serve of the next ``most`` flows behind the first; changes no order."""
        return [self._next_of(flow, now) for _, flow in self.first_flows(most + 1)[1:]]

    def _next_of(self, flow: Flow, now: float) -> Entry:
        if flow.rule is not self.rule:
            flow.obey(self.rule)
        return flow.newest() if self.serves_newest(now) else flow.first()

    def take(self, kind: Turn, now: float) -> Entry:
        """Remove the ticket of a dispatch and charge its flow. The queue must have a runnable ticket.

        An overtake serves the ticket whose age made the claim; turns and floors follow flow and order.
        """
        if kind is OVERTAKE:
            self.overtakes += 1
            return self.take_oldest()
        if kind is FLOOR:
            self.floors += 1
        order = self.order
        tag, number, flow = order[0]
        if flow.order_no != number or flow.tag != tag or not flow.count or flow.tenant.parked:
            self.next_flow()
            tag, number, flow = order[0]
        if flow.rule is not self.rule:
            flow.obey(self.rule)
        line = flow.line
        if flow.heap is None and not flow.early and not self.newest_first and not line[0].state:
            entry = line.popleft()  # nearly always; the other branch would find the same
            entry.state = RUNNING
            flow.count -= 1
        else:
            entry = flow.pop_newest() if self.newest_first and self.serves_newest(now) else flow.pop_first()
        flow.running += 1
        if tag > self.virtual:  # as ``charge``, for the flow whose turn it is
            self.virtual = tag
            if len(self._idle) > MOST_IDLE:
                self._forgive()
        flow.tag = flow.order_tag = tag = tag + entry.cost / flow.tenant.weight
        heapreplace(order, (tag, number, flow))
        self.running += 1
        self.dispatches += 1
        self.count -= 1
        if self.oldest is entry:
            self.stale = True
        return entry

    def pass_through(self, entry: Entry, flow: Flow, kind: Turn) -> None:
        """Account for a newcomer that runs at once, as ``add`` and ``take`` would. Nothing may wait here."""
        entry.queue, entry.flow = self, flow
        entry.state = RUNNING
        self.entered += 1
        self.dispatches += 1
        self.running += 1
        if kind is FLOOR:
            self.floors += 1
        tenant = flow.tenant
        if not flow.running:
            tenant.home.flows += 1
        flow.running += 1
        tag = flow.tag
        if tag > self.virtual:
            self.virtual = tag
            if len(self._idle) > MOST_IDLE:
                self._forgive()
        else:
            tag = self.virtual
        flow.tag = tag + entry.cost / tenant.weight

    def take_oldest(self) -> Entry:
        """Remove the oldest ticket that may run, and charge its flow. There must be one."""
        entry = self.head()
        assert entry is not None
        return self._take_out(entry)

    def take_before(self, entry: Entry, kind: Turn) -> Entry:
        """Remove a ticket whose turn it is not, since that one has no room, and charge its flow."""
        if kind is OVERTAKE:
            self.overtakes += 1
        if kind is FLOOR:
            self.floors += 1
        return self._take_out(entry)

    def _take_out(self, entry: Entry) -> Entry:
        flow = entry.flow
        entry.state = RUNNING
        flow.drop(entry)
        self.charge(flow, entry.cost)
        self.dispatches += 1
        self.count -= 1
        self.stale = True
        return entry

    def serves_newest(self, now: float) -> bool:
        """Say whether the band has been backlogged long enough to serve the newest first."""
        return self.newest_first and self.count > 0 and now - self.busy_since >= self.backlog_after_s

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
                heapreplace(heap, (-flow.count, self.number(), flow))
            else:
                return flow

    def parking_changed(self, flow: Flow) -> None:
        """Note that the flow's tenant was parked or may run again."""
        self.stale = True
        if not flow.tenant.parked and flow.count:
            self.line_up(flow)
            oldest = flow.oldest()
            if flow.age_seq == NONE or oldest.arrived < flow.age_at:  # an older one may have come while parked
                self._push_age(flow, oldest)

    def _push_age(self, flow: Flow, oldest: Entry) -> None:
        ages = self._ages
        if len(ages) > _SLACK and len(ages) > 2 * len(self.flows) + _SLACK:
            ages = self._ages = [item for item in ages if item[2].age_seq == item[1]]
            heapify(ages)
        seq, arrived = oldest.seq, oldest.arrived
        flow.age_seq, flow.age_at = seq, arrived
        heappush(ages, (arrived, seq, flow))

    def _mark(self, flow: Flow) -> None:
        """Keep the flow findable by length: twice its count, so that a growing flow is pushed seldom."""
        if len(self._longest) > 4 * len(self.flows) + _SLACK:
            self._longest = [item for item in self._longest if item[2].mark == -item[0]]
            heapify(self._longest)
        flow.mark = 2 * flow.count
        heappush(self._longest, (-flow.mark, self.number(), flow))

    def _find_head(self) -> Entry | None:
        ages = self._ages
        self.stale = False
        self.oldest = None
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
                    self.oldest = oldest
                    break
                flow.age_seq, flow.age_at = oldest.seq, oldest.arrived
                heapreplace(ages, (oldest.arrived, oldest.seq, flow))
        return self.oldest
