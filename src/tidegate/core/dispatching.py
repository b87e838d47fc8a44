"""Give free seats to waiting tickets, and take seats back (SPEC §4, §5.1)."""

from __future__ import annotations

from tidegate.core.actions import Action, Dispatch
from tidegate.core.capacity import answered, arm
from tidegate.core.gates import NEVER
from tidegate.core.lending import started
from tidegate.core.model import Lease, Outcome, Release, Turn
from tidegate.core.ordering import GONE, Entry
from tidegate.core.pools import Pool
from tidegate.core.requeueing import retry
from tidegate.core.state import State
from tidegate.core.tenants import Tenant


def deal(state: State, pool: Pool, actions: list[Action]) -> None:
    """Dispatch from one pool until no seat is free or nothing may run."""
    if state.draining or state.behind:
        return
    now, seating = state.now, pool.seating
    if not state.waiting.total and pool.rests(now):
        return
    if pool.retries:
        retry(state, pool, actions)
    while seating.free > 0:
        turn = pool.quick_turn(now) if seating.simple else pool.next_turn(now, actions)
        if turn is None:
            if seating.gating:
                arm(state, pool)
            break
        entry, kind, band = turn
        state.waiting.leave(entry)
        entry.tenant.queued -= 1
        start(state, pool, entry, kind, band, actions)
    if pool.press.at < NEVER:
        pool.press.look(state, pool, actions)


def start(state: State, pool: Pool, entry: Entry, kind: Turn, band: int, actions: list[Action]) -> None:
    """Give a free seat to a ticket that does not wait any more; ``kind`` and ``band`` are those of its turn."""
    ticket, tenant, seating, now = entry.ticket, entry.tenant, pool.seating, state.now
    tenant.running += 1
    if tenant.limit is not None:
        tenant.settle()
    backend = entry.backend = seating.only or seating.choose(entry, band, now)
    backend.running += 1  # from here as ``Seating.seat``
    backend.outstanding += entry.cost
    backend.sensor.answers += entry.answer
    seating.taken += 1
    seating.free -= 1
    if seating.gating:
        backend.charge(now, entry)
    number = state.leases = state.leases + 1
    lease = entry.lease = Lease(number, ticket, backend.name, kind, band, now - entry.submitted, now)
    state.running[number] = entry
    actions.append(Dispatch(ticket, lease, pool.barred))
    if ticket.stoppable:
        pool.press.running(number, entry, kind, band)
    if state.names.works:
        started(state, entry, actions)


def give_back(state: State, entry: Entry, release: Release) -> Pool:
    """Take back the seat of a released ticket; return the pool that has it free now."""
    queue, tenant, ticket, now = entry.queue, entry.tenant, entry.ticket, state.now
    entry.state = GONE
    if ticket.name:
        state.names.end(entry, release.outcome, now)
    del state.live[ticket.id]
    pool = state.pools[queue.pool]
    pool.drain.note(now - entry.lease.started)
    if ticket.stoppable:
        pool.press.ended(entry, release)
    backend = entry.backend
    control = backend.control
    if control is not None:
        answered(state, pool, entry, release, control)
    running = backend.running = backend.running - 1  # from here as ``Seating.unseat``
    backend.outstanding -= entry.cost
    backend.sensor.answers -= entry.answer
    if backend.up:
        seating = pool.seating
        seating.taken -= 1
        if running < backend.seats:
            seating.free += 1
        elif seating.lent is not None:
            seating.recount()
    held = tenant.running = tenant.running - 1
    if tenant.limit is not None:
        tenant.settle()
    if release.output_tokens is not None or release.input_tokens is not None:
        _correct(entry, release)
    flow = entry.flow
    left = flow.running = flow.running - 1
    queue.running -= 1
    if not left and not flow.count:
        queue.retire(flow)
    if not held and not tenant.flows:
        tenant.forget()
    return pool


def deal_around(state: State, tenant: Tenant, actions: list[Action]) -> None:
    """Deal wherever a tenant with ``max_running`` waits: it may run again."""
    for name in dict.fromkeys(flow.queue.pool for flow in tenant.flows):
        deal(state, state.pools[name], actions)


def _correct(entry: Entry, release: Release) -> None:
    """Settle the accounts by the tokens that the engine told, with the estimate for the part it did not tell."""
    work = entry.ticket.work
    used_in = work.input_tokens if release.input_tokens is None else release.input_tokens
    used_out = work.output_tokens if release.output_tokens is None else release.output_tokens
    over = used_in + used_out - entry.cost
    if release.outcome is Outcome.COMPLETED:
        entry.backend.sensor.finished(work.output_tokens, used_out)
    if over:
        entry.queue.correct(entry.flow, over)
        if entry.tenant.tokens is not None:
            entry.tenant.correct(entry.submitted, over)
        if entry.charged is not None:
            entry.backend.settle(entry, over)
