"""Share a band between tenants: start-time fair queuing on tokens (SPEC §4.2).

After Goyal, Vin, Cheng (1996): a flow's ``tag`` is the virtual time at which its next ticket starts; serving a ticket
moves it by tokens over weight; virtual time is the start tag of the latest ticket served. A flow that wakes up starts
at the present virtual time, so it neither pays for the past nor banks credit. When a ticket is released, its flow is
corrected by the tokens really used (the virtual token counter of Sheng et al., 2024). When the band has neither
waiting nor running work, its busy period ends: virtual time moves to the greatest tag, and nobody owes any more.

The flow whose turn it is comes from a heap by tag; of equal tags the one that began to wait first. Each flow has one
valid item there, whose key is at most its tag; the top is brought up to date before it is believed. So no step walks
all flows.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from tidegate.core.ordering import Line, Rule

if TYPE_CHECKING:
    from tidegate.core.model import Ticket
    from tidegate.core.queues import BandQueue
    from tidegate.core.tenants import Tenant

NONE: Final = -1
CROWD: Final = "\0"  # key of the flow that all share beyond max_flows
MOST_IDLE: Final = 256  # idle flows kept for their return: making one costs as much as serving a request
_SLACK: Final = 64  # items too many that are not worth a sweep


class Flow(Line):
    """One sub-queue of a band: a ``Line`` with its fair-share account.

    Attributes:
        tag: virtual start time of its next ticket.
        running: its tickets that hold a seat.
        order_no, order_tag: number and tag of its valid item in the heap of flows; the number, given when it began to
            wait, is ``NONE`` without one.
        age_seq, age_at: sequence number and arrival of its valid item among the band's ages (see ``queues``).
        mark: length under which it stands among the longest flows, at least its count.
    """

    __slots__ = (
        "age_at", "age_seq", "idle", "key", "mark", "order_no", "order_tag", "queue", "running", "tag", "tenant",
    )  # fmt: skip

    def __init__(self, key: str, tenant: Tenant, queue: BandQueue) -> None:
        super().__init__(queue.rule)
        self.key = key
        self.tenant = tenant
        self.queue = queue
        self.tag = 0.0
        self.running = 0
        self.idle = False  # stands among the idle flows that still owe
        self.order_no, self.order_tag = NONE, 0.0
        self.age_seq, self.age_at = NONE, 0.0
        self.mark = 0


def flow_key(ticket: Ticket) -> str:
    """Name the flow of a ticket: its tenant, with its fairness id when that is another."""
    if ticket.flow and ticket.flow != ticket.tenant:
        return f"{ticket.tenant}\0{ticket.flow}"
    return ticket.tenant


class FairFlows:
    """The flows of one band in one pool, and whose turn it is."""

    __slots__ = ("_idle", "_latest", "_pushes", "count", "flows", "order", "rule", "running", "virtual")

    def __init__(self) -> None:
        self.flows: dict[str, Flow] = {}
        self.order: list[tuple[float, int, Flow]] = []
        self._idle: deque[Flow] = deque()
        self._latest = 0.0  # greatest tag of those that went idle
        self._pushes = 0
        self.virtual = 0.0
        self.count = self.running = 0
        self.rule: Rule

    def next_flow(self) -> Flow:
        """Return the flow whose turn it is. One must be runnable."""
        flow = self._first()
        assert flow is not None
        return flow

    def _first(self) -> Flow | None:
        """Return the runnable flow with the least tag, ``None`` when none is."""
        order = self.order
        while order:
            tag, number, flow = order[0]
            if flow.order_no != number or flow.order_tag != tag:
                heappop(order)
            elif not flow.count or flow.tenant.parked:
                heappop(order)
                flow.order_no = NONE
            elif flow.tag > tag:
                flow.order_tag = flow.tag
                heapreplace(order, (flow.tag, number, flow))
            else:
                return flow
        return None

    def first_flows(self, most: int) -> list[tuple[int, Flow]]:
        """Return the runnable flows with the least tags, at most ``most``, each with its number; changes no order."""
        taken: list[tuple[float, int, Flow]] = []
        while len(taken) < most and self._first() is not None:
            item = heappop(self.order)
            if not taken or taken[-1] != item:  # an older item of a flow may be valid again beside its equal
                taken.append(item)
        for item in taken:
            heappush(self.order, item)
        return [(number, flow) for _, number, flow in taken]

    def charge(self, flow: Flow, tokens: int) -> None:
        """Account for a dispatch out of turn (an overtake); ``BandQueue.take`` accounts for the others.

        It carries virtual time no further than to the least tag: else newcomers would start late, and all others would
        catch up before them.
        """
        number, tag = flow.order_no, flow.tag
        top = self.order[0]
        if top[1] == number and top[0] == tag == flow.order_tag:  # it was its turn besides
            if tag > self.virtual:
                self.virtual = tag
            flow.tag = flow.order_tag = tag = tag + tokens / flow.tenant.weight
            heapreplace(self.order, (tag, number, flow))
        else:
            first = self._first()
            self.virtual = max(self.virtual, tag if first is None else min(tag, first.tag))
            flow.tag = tag + tokens / flow.tenant.weight
        flow.running += 1
        self.running += 1

    def correct(self, flow: Flow, tokens: int) -> None:
        """Account for tokens used beyond the estimate; negative gives back."""
        flow.tag = tag = flow.tag + tokens / flow.tenant.weight
        if tag < flow.order_tag and flow.order_no != NONE:
            self._move_up(flow)

    def lead(self, key: str, tokens: float) -> None:
        """Set how far a waiting flow is ahead of the others' virtual time; unknown ones are ignored."""
        flow = self.flows.get(key)
        if flow is not None and flow.count:
            flow.tag = self.virtual + tokens
            if flow.order_no != NONE and flow.tag < flow.order_tag:
                self._move_up(flow)

    def number(self) -> int:
        """Return a new number; ties between equal keys fall to the one that came first."""
        self._pushes += 1
        return self._pushes

    def line_up(self, flow: Flow) -> None:
        """Put a flow into the heap that may run from now on."""
        self._pushes = flow.order_no = self._pushes + 1
        self._move_up(flow)

    def _move_up(self, flow: Flow) -> None:
        """Give a flow of the heap another item there, at its present tag."""
        if len(self.order) > 2 * len(self.flows) + _SLACK:
            self.order = [item for item in self.order if item[2].order_no == item[1] and item[2].order_tag == item[0]]
            heapify(self.order)
        flow.order_tag = flow.tag
        heappush(self.order, (flow.tag, flow.order_no, flow))

    def retire(self, flow: Flow) -> None:
        """Note that a flow has neither waiting nor running work; it is closed some time later."""
        flow.tenant.home.flows -= 1
        if flow.tag > self._latest:
            self._latest = flow.tag
        if not self.count and not self.running and self._latest > self.virtual:
            self.virtual = self._latest
        if not flow.idle:
            flow.idle = True
            self._idle.append(flow)
            if len(self._idle) > MOST_IDLE:
                self._forgive()

    def _forgive(self) -> None:
        """Close an idle flow or two, those that virtual time has caught up with."""
        idle = self._idle
        for _ in range(2):
            flow = idle.popleft()
            if flow.count or flow.running:
                flow.idle = False
            elif flow.tag > self.virtual:
                idle.append(flow)  # it still owes
            else:
                del self.flows[flow.key]
                flow.order_no = flow.age_seq = NONE
                flow.mark = 0
                flow.tenant.left(flow)
