"""Accept or refuse a newcomer; displace lower work when the whole queue is full (SPEC §6, §15.3, §15.15).

A newcomer is queued first and the free seats are dealt; only if it still waits do the capacities speak. So one that
can be dispatched at once is never refused for capacity. Where nothing else waits it is not even queued: the same is
decided in a quarter of the steps. Order of the checks: the tenant's ``max_queued``, the band's
own capacity with its ``full`` rule, then bytes and length of the whole queue, where the lowest waiting band gives
way. Bounds lowered live discard nothing: a newcomer displaces no more than it adds.
"""

from __future__ import annotations

from tidegate.core.actions import Action, Reject
from tidegate.core.claims import claim_of
from tidegate.core.dependencies import appeared, bind, patience, unmet
from tidegate.core.dispatching import deal, start
from tidegate.core.fairness import flow_key
from tidegate.core.forecast import INFINITE, expected_wait
from tidegate.core.gates import (
    MODE,
    NO_ROOM,
    NO_SEAT,
    PAUSED,
    Gate,
    GateKind,
    hold,
    look,
    paused_until,
    stops_for_want_of_seats,
)
from tidegate.core.lending import Wait
from tidegate.core.model import Reason, Ticket
from tidegate.core.names import full_name
from tidegate.core.ordering import GONE, WAITING, Entry
from tidegate.core.policy import Full, Saturated
from tidegate.core.pools import Pool
from tidegate.core.queues import BandQueue
from tidegate.core.room import lacks, open_but_for_room
from tidegate.core.state import MOST_EVICTIONS, State


def arrive(state: State, ticket: Ticket, actions: list[Action]) -> None:
    """Dispatch, queue or reject a newcomer."""
    pool = state.pools.get(ticket.pool)
    if pool is None or not pool.seating.up or state.draining:
        actions.append(_nowhere(state, pool, ticket))
        return
    seating, tenants, waiting, now = pool.seating, state.tenants, state.waiting, state.now
    queue = pool.queues[ticket.band]
    hurried = ticket.ttl_s is not None or ticket.deadline is not None
    held = queue.screens and (seating.limited or seating.free <= 0)  # else it may have a seat at once
    if hurried or held or seating.gating or tenants.metered:
        refused = _screen(state, pool, queue, ticket)
        if refused is not None and not _only_observed(state, pool, refused.reason):
            actions.append(refused)
            return
    if ticket.depends_on:
        pending = unmet(state, ticket)
        if pending:
            _park(state, queue, ticket, pending, actions)
            return
    payer, fair = ticket.tenant, ticket.flow
    flow = queue.flows.get(flow_key(ticket) if fair and fair != payer else payer)
    if flow is None:
        tenant = tenants.get(payer)
        flow = state.flow_for(queue, ticket, tenant)
    else:
        tenant = flow.tenant
    expires = state.expiry(queue, ticket) if hurried else now + queue.ttl_s
    arrived = ticket.arrived
    if arrived is None or arrived > now:
        arrived = now
    state.entries = number = state.entries + 1
    entry = state.live[ticket.id] = Entry(ticket, tenant, number, arrived, now, expires)
    if seating.free > 0 and arrived == now and not (tenant.parked or state.behind):
        kind = pool.turn_alone(queue, now) if not waiting.total or pool.is_empty() else None
        if kind is not None:
            queue.pass_through(entry, flow, kind)
            start(state, pool, entry, kind, queue.band, actions)
            if tenant.known or ticket.name:
                _accept(state, entry, actions)
            return
    tenant.queued += 1
    crowded = waiting.enter(entry, queue.band)
    queue.add(entry, flow, now)
    if seating.free > 0:
        deal(state, pool, actions)
        crowded = waiting.is_crowded()
    if (crowded or tenant.known or entry.line.count > queue.capacity) and entry.state == WAITING:
        _confine(state, entry, actions)
    if queue.urgency is not None and entry.state == WAITING:
        pool.press.expect(state, entry, queue.urgency)
    if (tenant.known or ticket.name) and entry.state != GONE:
        _accept(state, entry, actions)


def _accept(state: State, entry: Entry, actions: list[Action]) -> None:
    if state.tenants.metered:
        entry.tenant.charge(state.now, entry.cost)
    if entry.ticket.name:
        work = state.names.begin(entry)
        if work is not None:
            appeared(state, entry, work, actions)


def _park(state: State, queue: BandQueue, ticket: Ticket, pending: list[str] | Reject, actions: list[Action]) -> None:
    """Park a newcomer that has to wait for others, if there is room for it."""
    if isinstance(pending, Reject):
        actions.append(pending)
        return
    now = state.now
    unknown = any(state.names.is_unknown(name, now) for name in pending)
    state.entries += 1
    tenant = state.tenants.get(ticket.tenant)
    expires = patience(state, ticket, now, unknown=unknown)
    entry = Entry(ticket, tenant, state.entries, now if ticket.arrived is None else ticket.arrived, now, expires)
    entry.queue = queue
    state.live[ticket.id] = entry
    tenant.queued += 1
    state.waiting.enter_aside(entry, queue.band)
    state.names.parked[entry] = Wait(ticket.tenant, queue.band, entry)
    if state.policy.observe_only:
        state.names.doubt(entry)
    _confine(state, entry, actions)
    if entry.state == WAITING:
        bind(state, entry, pending, actions)
        _accept(state, entry, actions)


def _nowhere(state: State, pool: Pool | None, ticket: Ticket) -> Reject:
    if state.draining:
        return Reject(ticket, Reason.DRAINING)
    if pool is None or not pool.known:
        return Reject(ticket, Reason.UNKNOWN_MODEL, None, f"no model named {ticket.pool!r} is configured")
    return Reject(ticket, Reason.NO_BACKEND, None, f"no backend of {ticket.pool!r} is up")


def _screen(state: State, pool: Pool, queue: BandQueue, ticket: Ticket) -> Reject | None:
    """Refuse a newcomer for what is known without queuing it."""
    return (
        _untimely(state, ticket)
        or _over_budget(state, ticket)
        or _saturated(state, pool, queue, ticket)
        or _busy(state, pool, queue, ticket)
        or _hopeless(state, pool, queue, ticket)
    )


def _gate(state: State, pool: Pool, queue: BandQueue) -> Gate | None:
    """Return what stops a newcomer from being dispatched at once, if nothing waits before it."""
    if pool.seating.gating:
        look(pool.seating, state.now)
    return hold(pool.seating, queue.band)


def _only_observed(state: State, pool: Pool, reason: Reason) -> bool:
    """Count a refusal that is only observed (``Policy.observe_only``); return whether it is."""
    if state.policy.observe_only:
        pool.would[reason] += 1
    return state.policy.observe_only


def _saturated(state: State, pool: Pool, queue: BandQueue, ticket: Ticket) -> Reject | None:
    """Refuse what a mode, or a band's ceiling or watermark with ``when_saturated: shed``, stops; never patient work."""
    spec = queue.spec
    if ticket.patient or (spec.admit and spec.when_saturated is Saturated.QUEUE):
        return None
    if not spec.admit and ticket.name and state.names.awaited(full_name(ticket, ticket.name)) is not None:
        return None  # somebody who may run waits for it, and will lend it his band
    gate = _gate(state, pool, queue) if spec.admit else MODE
    seating = pool.seating
    if open_but_for_room(seating, gate) and lacks(seating, queue.band, ticket.work.tokens, state.now):
        gate = NO_ROOM
    elif gate is NO_SEAT:
        gate = stops_for_want_of_seats(seating, queue.band, state.now)
    if gate is None or gate.kind not in (GateKind.CEILING, GateKind.KV, GateKind.ROOM, GateKind.MODE):
        return None
    return Reject(ticket, Reason.SHED, pool.retry_after(queue.band, state.now), gate.detail)


def _busy(state: State, pool: Pool, queue: BandQueue, ticket: Ticket) -> Reject | None:
    """Refuse what would expire while every backend pauses."""
    until = paused_until(pool.seating, state.now) if pool.seating.gating else None
    if until is None or until - state.now <= _patience(queue, ticket, state.now):
        return None
    return Reject(ticket, Reason.UPSTREAM_BUSY, until - state.now, PAUSED.detail)


def _untimely(state: State, ticket: Ticket) -> Reject | None:
    if ticket.deadline is not None and ticket.deadline <= state.now:
        return Reject(ticket, Reason.EXPIRED, None, "the deadline had passed on arrival")
    if ticket.ttl_s is not None and ticket.ttl_s <= 0:
        return Reject(ticket, Reason.EXPIRED, None, "the time to wait had passed on arrival")
    return None


def _over_budget(state: State, ticket: Ticket) -> Reject | None:
    tenant = state.tenants.all.get(ticket.tenant) if state.tenants.metered else None
    if tenant is None:
        return None
    for budget, unit in ((tenant.requests, "requests"), (tenant.tokens, "tokens")):
        if budget is not None and not budget.open(state.now):
            detail = f"the limit of {budget.limit} {unit} per minute is reached"
            return Reject(ticket, Reason.TENANT_LIMIT, budget.open_in_s(state.now), detail)
    return None


def _hopeless(state: State, pool: Pool, queue: BandQueue, ticket: Ticket) -> Reject | None:
    """Refuse what would wait longer than half its first-token target, its TTL or its client's deadline."""
    if not queue.spec.shed_hopeless or ticket.patient or _gate(state, pool, queue) is None:
        return None  # with a free seat that it may use, it does not wait
    now = state.now
    flow = queue.flows.get(flow_key(ticket))
    wait_s = expected_wait(pool, state.policy, queue.band, backlog=flow.count if flow else None, now=now)
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


def _confine(state: State, entry: Entry, actions: list[Action]) -> None:
    """Apply the capacities to a newcomer that still waits: it, or others, may have to go."""
    waiting, tenant = state.waiting, entry.tenant
    limit = tenant.spec.max_queued
    if state.policy.observe_only:
        _count_full(state, entry)
        return
    if limit is not None and tenant.queued > limit:
        _refuse(state, entry, Reason.TENANT_LIMIT, actions, f"more than {limit} requests of this tenant wait")
        return
    spec = entry.queue.spec
    if entry.line.count > spec.capacity:
        oldest = entry.line.oldest()
        if spec.full is Full.REJECT_NEWEST or oldest is entry or oldest is None:
            _refuse(state, entry, Reason.QUEUE_FULL, actions, f"band {spec.name} is full")
            return
        state.evict(oldest, Reason.DISPLACED, actions)
    if waiting.is_crowded():
        _make_room(state, entry, actions)


def _count_full(state: State, entry: Entry) -> None:
    """Count what the capacities would have done, while they are only observed."""
    limit, would = entry.tenant.spec.max_queued, state.pools[entry.queue.pool].would
    if limit is not None and entry.tenant.queued > limit:
        would[Reason.TENANT_LIMIT] += 1
    elif entry.line.count > entry.queue.spec.capacity or state.waiting.is_crowded():
        would[Reason.QUEUE_FULL] += 1


def _refuse(state: State, entry: Entry, reason: Reason, actions: list[Action], detail: str) -> None:
    """Take a newcomer out again and reject it."""
    state.remove(entry, actions)
    actions.append(
        Reject(entry.ticket, reason, state.pools[entry.queue.pool].retry_after(entry.queue.band, state.now), detail)
    )


def _make_room(state: State, entry: Entry, actions: list[Action]) -> None:
    waiting, policy = state.waiting, state.policy
    total = max(policy.queue_capacity, waiting.total - 1)
    size = max(policy.queue_bytes, waiting.bytes - entry.ticket.size_bytes)
    if waiting.bytes - sum(band.bytes for band in waiting.bands[entry.queue.band + 1 :]) > size:
        _refuse(state, entry, Reason.QUEUE_FULL, actions, "the bytes of waiting requests are at their limit")
        return
    while waiting.total > total or waiting.bytes > size:
        victim = _victim(state, entry.queue.band) if len(actions) < MOST_EVICTIONS else None
        if victim is None:
            _refuse(state, entry, Reason.QUEUE_FULL, actions, "the queue is full and nothing lower waits")
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
        if claim_of(victim, state.now).band > band and not victim.begun:
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
