"""Accept or refuse a newcomer; displace lower work when the whole queue is full (SPEC §6, §15.3, §15.15).

A newcomer is queued first and the free seats are dealt; only if it still waits do the capacities speak. So one that
can be dispatched at once is never refused for capacity. Order of the checks: the tenant's ``max_queued``, the band's
own capacity with its ``full`` rule, then bytes and length of the whole queue, where the lowest waiting band gives
way. Bounds lowered live discard nothing: a newcomer displaces no more than it adds.
"""

from __future__ import annotations

from tidegate.core.actions import Action, Reject
from tidegate.core.claims import claim_of
from tidegate.core.fairness import Flow
from tidegate.core.forecast import INFINITE, expected_wait
from tidegate.core.gates import hold
from tidegate.core.model import Reason, Ticket
from tidegate.core.ordering import Entry
from tidegate.core.policy import Full
from tidegate.core.pools import Pool
from tidegate.core.queues import BandQueue
from tidegate.core.state import MOST_EVICTIONS, State
from tidegate.core.tenants import Tenant


def refusal(state: State, now: float, ticket: Ticket) -> Reject | None:
    """Refuse a newcomer that may not even be looked at; ``None`` when it may."""
    if state.draining:
        return Reject(ticket, Reason.DRAINING)
    pool = state.pools.get(ticket.pool)
    if pool is None or not pool.known:
        return Reject(ticket, Reason.UNKNOWN_MODEL, None, f"no model named {ticket.pool!r} is configured")
    if not pool.seating.up:
        return Reject(ticket, Reason.NO_BACKEND, None, f"no backend of {ticket.pool!r} is up")
    if ticket.deadline is not None and ticket.deadline <= now:
        return Reject(ticket, Reason.EXPIRED, None, "the deadline had passed on arrival")
    if ticket.ttl_s is not None and ticket.ttl_s <= 0:
        return Reject(ticket, Reason.EXPIRED, None, "the time to wait had passed on arrival")
    tenant = state.tenants.all.get(ticket.tenant)
    if tenant is not None and tenant.known:
        refused = _over_budget(tenant, ticket, now)
        if refused is not None:
            return refused
    if state.policy.bands[min(ticket.band, len(pool.queues) - 1)].shed_hopeless:
        return _hopeless(state, pool, ticket, now)
    return None


def _over_budget(tenant: Tenant, ticket: Ticket, now: float) -> Reject | None:
    for budget, unit in ((tenant.requests, "requests"), (tenant.tokens, "tokens")):
        if budget is not None and not budget.open(now):
            detail = f"the limit of {budget.limit} {unit} per minute is reached"
            return Reject(ticket, Reason.TENANT_LIMIT, budget.open_in_s(now), detail)
    return None


def _hopeless(state: State, pool: Pool, ticket: Ticket, now: float) -> Reject | None:
    """Refuse what would wait longer than half its first-token target, its TTL or its client's deadline."""
    band = min(ticket.band, len(pool.queues) - 1)
    queue = pool.queues[band]
    if pool.seating.free > 0 and hold(pool.seating, band) is None:
        return None  # a seat is free and nothing that may run waits for it
    flow = queue.flows.get(flow_key(ticket))
    wait_s = expected_wait(pool, state.policy, band, backlog=flow.count if flow else None, now=now)
    slo_s = queue.spec.ttft_slo_s
    limit_s = min(_patience(queue, ticket, now), INFINITE if slo_s is None else slo_s / 2)
    if wait_s is None or wait_s <= limit_s:
        return None
    return Reject(ticket, Reason.SHED, wait_s, f"the expected wait of {wait_s:.1f} s is longer than it can use")


def _patience(queue: BandQueue, ticket: Ticket, now: float) -> float:
    """Return the longest that a ticket may wait: the least of the band's TTL, the client's, and its deadline."""
    wait_s = queue.spec.ttl_s
    if ticket.ttl_s is not None and ticket.ttl_s < wait_s:
        wait_s = ticket.ttl_s
    if ticket.deadline is not None and ticket.deadline - now < wait_s:
        wait_s = ticket.deadline - now
    return wait_s


def enter(state: State, now: float, ticket: Ticket) -> Entry:
    """Queue a newcomer, whatever the capacities say."""
    pool = state.pools[ticket.pool]
    queue = pool.queues[min(ticket.band, len(pool.queues) - 1)]
    expires = now + queue.ttl_s
    if ticket.ttl_s is not None and now + ticket.ttl_s < expires:
        expires = now + ticket.ttl_s
    if ticket.deadline is not None and ticket.deadline < expires:
        expires = ticket.deadline
    arrived = ticket.arrived
    if arrived is None or arrived > now:
        arrived = now
    state.entries += 1
    flow = queue.flows.get(flow_key(ticket) if ticket.flow else ticket.tenant)
    if flow is None:
        tenant = state.tenants.get(ticket.tenant)
        flow = _new_flow(state, queue, ticket, tenant)
    else:
        tenant = flow.tenant
    entry = Entry(ticket, tenant, state.entries, arrived, now, expires)
    entry.band = queue.band
    state.live[ticket.id] = entry
    tenant.queued += 1
    state.waiting.enter(entry)
    queue.add(entry, flow, now)
    return entry


def flow_key(ticket: Ticket) -> str:
    """Name the flow: the tenant, with its fairness id when that is another."""
    if ticket.flow and ticket.flow != ticket.tenant:
        return f"{ticket.tenant}\0{ticket.flow}"
    return ticket.tenant


def _new_flow(state: State, queue: BandQueue, ticket: Ticket, tenant: Tenant) -> Flow:
    """Open a flow for a ticket whose flow is not open; beyond ``max_flows`` take a shared one."""
    if state.tenants.flows < state.policy.max_flows:
        return queue.open(flow_key(ticket), tenant)
    # Tenants with limits keep a flow of their own, else max_running could not park it alone.
    key, owner = (tenant.name, tenant) if tenant.known else ("\0", state.tenants.crowd)
    return queue.flows.get(key) or queue.open(key, owner)


def confine(state: State, entry: Entry, actions: list[Action]) -> None:
    """Apply the capacities to a newcomer that still waits: it, or others, may have to go."""
    waiting, policy = state.waiting, state.policy
    band = waiting.bands[entry.band]
    spec = policy.bands[entry.band]
    limit = entry.tenant.spec.max_queued
    if limit is not None and entry.tenant.queued > limit:
        refuse(state, entry, Reason.TENANT_LIMIT, actions, f"more than {limit} requests of this tenant wait")
        return
    if band.count > spec.capacity:
        oldest = band.oldest()
        if spec.full is Full.REJECT_NEWEST or oldest is entry or oldest is None:
            refuse(state, entry, Reason.QUEUE_FULL, actions, f"band {spec.name} is full")
            return
        state.evict(oldest, Reason.DISPLACED, actions)
    if waiting.total > policy.queue_capacity or waiting.bytes > policy.queue_bytes:
        _make_room(state, entry, actions)


def refuse(state: State, entry: Entry, reason: Reason, actions: list[Action], detail: str) -> None:
    """Take a newcomer out again and reject it."""
    state.remove(entry)
    actions.append(Reject(entry.ticket, reason, state.pools[entry.queue.pool].retry_after(entry.band), detail))


def _make_room(state: State, entry: Entry, actions: list[Action]) -> None:
    waiting, policy = state.waiting, state.policy
    total = max(policy.queue_capacity, waiting.total - 1)
    size = max(policy.queue_bytes, waiting.bytes - entry.ticket.size_bytes)
    if waiting.bytes - sum(band.bytes for band in waiting.bands[entry.band + 1 :]) > size:
        refuse(state, entry, Reason.QUEUE_FULL, actions, "the bytes of waiting requests are at their limit")
        return
    while waiting.total > total or waiting.bytes > size:
        victim = _victim(state, entry.queue.band) if len(actions) < MOST_EVICTIONS else None
        if victim is None:
            refuse(state, entry, Reason.QUEUE_FULL, actions, "the queue is full and nothing lower waits")
            return
        state.evict(victim, Reason.DISPLACED, actions)


def _victim(state: State, band: int) -> Entry | None:
    """Return the waiting ticket that a newcomer of ``band`` may displace, ``None`` when none claims lower."""
    pools = list(state.pools.values())
    for lower in range(len(state.policy.bands) - 1, band, -1):
        queues = [pool.queues[lower] for pool in pools if pool.queues[lower].count]
        if not queues:
            continue
        victim = _last_of(max(queues, key=_longest_backlog), state.now)
        if claim_of(victim, state.now).band > band:
            return victim
        newest = state.waiting.bands[lower].newest()  # if even this one is promoted, the whole band is
        if newest is not None and claim_of(newest, state.now).band > band:
            return newest
    return None


def _longest_backlog(queue: BandQueue) -> int:
    return queue.longest().count


def _last_of(queue: BandQueue, now: float) -> Entry:
    """Return the ticket of the longest flow that would be served last."""
    flow = queue.longest()
    return flow.oldest() if queue.serves_newest(now) else flow.last()
