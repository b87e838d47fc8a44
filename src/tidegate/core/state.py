"""The scheduler's mutable state in one place, and the one way out of the queue that is not a dispatch."""

from __future__ import annotations

from typing import Final

from tidegate.core.actions import Action, Evict
from tidegate.core.errors import PolicyError
from tidegate.core.fairness import CROWD, Flow, flow_key
from tidegate.core.lending import withdraw
from tidegate.core.live import Live
from tidegate.core.model import Outcome, Reason, Ticket
from tidegate.core.names import Names
from tidegate.core.ordering import GONE, Entry
from tidegate.core.policy import Policy
from tidegate.core.pools import Pool
from tidegate.core.queues import BandQueue
from tidegate.core.requeueing import stop_running
from tidegate.core.routing import Backend
from tidegate.core.storm import Storm
from tidegate.core.tenants import Tenant, Tenants
from tidegate.core.waiting import Waiting

MOST_EVICTIONS: Final = 256  # per call, so that a mass expiry or a drain never stalls the caller's loop


class State:
    """Who waits, who runs, and under which policy.

    ``live`` is all of both by ticket id, ``running`` by lease id. While ``behind``, more is due for eviction than one
    call may evict, and nothing is dispatched. While ``closing``, a mode closed a band and what waits there has to go.
    """

    __slots__ = (
        "backends", "behind", "closing", "draining", "entries", "leases", "live", "names", "now", "policy",
        "pools", "running", "storm", "tenants", "waiting",
    )  # fmt: skip

    def __init__(self, policy: Policy) -> None:
        self.now = 0.0
        self.policy = policy
        self.draining = False
        self.behind = False
        self.closing = False
        self.storm = Storm()
        self.entries = 0
        self.leases = 0
        self.live = Live()
        self.running: dict[int, Entry] = {}
        self.tenants = Tenants(policy.tenants)
        self.names = Names()
        self.waiting = Waiting(policy)
        self.pools = {spec.name: Pool(spec.name, spec, policy) for spec in policy.pools}
        self.backends: dict[str, tuple[Pool, Backend]] = {}
        self._index_backends()

    def check(self, policy: Policy) -> None:
        """See whether a policy can be obeyed from now on; changes nothing.

        Raises:
            PolicyError: the names or the number of bands differ; that needs a restart.
        """
        names = [band.name for band in policy.bands]
        if names != [band.name for band in self.policy.bands]:
            raise PolicyError("policy.bands", f"expected the same bands while running, got {', '.join(names)}")

    def obey(self, policy: Policy) -> None:
        """Take a new, checked policy whole. Waiting and running tickets stay what they are."""
        self.policy = policy
        self.waiting.obey(policy)
        self.tenants.obey(policy.tenants, self.now)
        named = {spec.name: spec for spec in policy.pools}
        for pool in self.pools.values():
            pool.obey(named.pop(pool.name, None), policy)
        for name, spec in named.items():
            self.pools[name] = Pool(name, spec, policy)
        self._index_backends()
        for entry in self.waiting.aside():
            if entry.returned and not self.pools[entry.queue.pool].known:
                self.waiting.set_expiry(entry, self.now)  # no backend of its model will ever come
        self.names.doubted.clear()
        if policy.observe_only:
            for entry in self.names.parked:
                self.names.doubt(entry)
        self.closing = not policy.observe_only and not all(band.admit for band in policy.bands)
        self.waiting.wake = 0.0  # what is due may be another now

    def may_shut_out(self, entry: Entry) -> None:
        """See to it that a ticket goes at once that comes to wait in a band which a mode has closed before."""
        band = self.policy.bands[entry.ticket.band]
        if not (band.admit or self.policy.observe_only or entry.begun or entry.ticket.patient):
            self.closing = True
            self.waiting.wake = 0.0

    def flow_for(self, queue: BandQueue, ticket: Ticket, tenant: Tenant) -> Flow:
        """Find or open the flow of a ticket; beyond ``max_flows`` it is a shared one."""
        key = flow_key(ticket)
        flow = queue.flows.get(key)
        if flow is None and self.tenants.flows >= self.policy.max_flows:
            # Tenants with limits keep a flow of their own, else max_running could not park it alone.
            key, tenant = (tenant.name, tenant) if tenant.known else (CROWD, self.tenants.crowd)
            flow = queue.flows.get(key)
        return flow if flow is not None else queue.open(key, tenant)

    def expiry(self, queue: BandQueue, ticket: Ticket) -> float:
        """Return when a ticket that begins to wait now expires: band's TTL, client's TTL or deadline."""
        expires = self.now + queue.ttl_s
        if ticket.ttl_s is not None and self.now + ticket.ttl_s < expires:
            expires = self.now + ticket.ttl_s
        if ticket.deadline is not None and ticket.deadline < expires:
            expires = ticket.deadline
        return expires

    def evict(self, entry: Entry, reason: Reason, actions: list[Action], detail: str = "") -> None:
        """Refuse a waiting ticket."""
        self.remove(entry, actions)
        if entry.ticket.name:
            self.names.end(entry, Outcome.EVICTED, self.now)
        entry.tenant.give_back(entry.submitted, entry.cost)
        retry_after_s = self.pools[entry.queue.pool].retry_after(entry.queue.band, self.now)
        actions.append(Evict(entry.ticket, reason, retry_after_s, detail))

    def remove(self, entry: Entry, actions: list[Action]) -> None:
        """Take a waiting ticket out; what it lent is withdrawn."""
        entry.state = GONE
        del self.live[entry.ticket.id]
        self.waiting.leave(entry)
        entry.tenant.queued -= 1
        wait = self.names.parked.pop(entry, None)
        if wait is not None:
            withdraw(self, wait, actions)
        elif entry.avoid:
            del self.pools[entry.queue.pool].retries[entry]
            stop_running(entry)
        else:
            queue = entry.queue
            queue.remove(entry)
            if queue.count and self.pools[queue.pool].room.waits(queue.band):
                self.waiting.set_alarm(self.now)  # what comes up now may have room
        entry.tenant.forget()

    def _index_backends(self) -> None:
        pools = self.pools.values()
        self.backends = {each.name: (pool, each) for pool in pools for each in pool.seating.backends}
