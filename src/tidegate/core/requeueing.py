"""Take a dispatched ticket back to its old place: a 429, or a failure before the first byte (SPEC §5.3, §5.4, §15.8).

It keeps its arrival, is outside capacity and TTL, and what it was charged is given back. After a 429 it stands in its
queue again. After a failure of the backend itself it wants another one, each once: it has had its turn, so it takes the
next seat that such a backend has free, before any turn; when none is left, it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.core.actions import Action, Dispatch, Evict
from tidegate.core.gates import look, paused_until
from tidegate.core.lending import settle_work
from tidegate.core.model import Lease, Outcome, Reason, Requeue
from tidegate.core.ordering import GONE, RUNNING, Entry

if TYPE_CHECKING:
    from tidegate.core.pools import Pool
    from tidegate.core.routing import Backend
    from tidegate.core.state import State

NEVER: Final = float("inf")


def take_back(state: State, entry: Entry, asked: Requeue, actions: list[Action]) -> Pool:
    """Take back the seat of a lease that came to nothing; its ticket waits again, or ends."""
    pool = state.pools[entry.queue.pool]
    moved = _double(state, entry)
    moved.returned = True
    if asked.begun:
        moved.begun = True
    if entry.ticket.stoppable:
        victim, was_asked = pool.press.ended(entry, asked)
        if was_asked:
            moved.stops += 1
            moved.begun = True
            pool.drain.stopped(state.now - entry.lease.started)
        if victim is not None and was_asked and victim.began is None:
            pool.undo(entry, latest=entry.queue.dispatches == victim.turn)
    pool.seating.unseat(entry)
    entry.backend.settle(entry, -entry.cost)
    if asked.avoid:
        moved.avoid = (*entry.avoid, entry.backend)
        state.waiting.enter_aside(moved, moved.ticket.band)
        pool.retries[moved] = asked.reason  # the deal that follows a release finds it a seat, or ends it
        state.may_shut_out(moved)
        return pool
    stop_running(moved)
    busy_until = paused_until(pool.seating, state.now)
    if busy_until is not None and busy_until > moved.expires:
        _give_up(state, moved, busy_until - state.now, actions)
        return pool
    _line_up(state, pool, moved, actions)
    return pool


def retry(state: State, pool: Pool, actions: list[Action]) -> None:
    """Give seats to the tickets that wait for another backend."""
    seating = pool.seating
    if seating.gating:
        look(seating, state.now)
    for entry in sorted(pool.retries, key=_rank):
        others = [backend for backend in seating.backends if backend.up and backend not in entry.avoid]
        if not others:
            state.evict(entry, pool.retries[entry], actions, "it failed on every backend of the model")
        elif seating.free > 0 and any(seating.can_take(backend, entry.queue.band) for backend in others):
            backend = seating.seat(entry, entry.queue.band, state.now)
            dispatch_again(state, pool, entry, backend, actions)


def stop_running(entry: Entry) -> None:
    """Count a ticket out of those that its flow has running."""
    flow, queue = entry.flow, entry.queue
    flow.running -= 1
    queue.running -= 1
    if not flow.count and not flow.running:
        queue.retire(flow)


def _double(state: State, entry: Entry) -> Entry:
    """Make the waiting entry that takes the place of a running one."""
    ticket, tenant = entry.ticket, entry.tenant
    entry.state = GONE
    expires = NEVER if ticket.deadline is None else ticket.deadline
    if not state.pools[entry.queue.pool].known:
        expires = state.now  # its model has been taken out of the settings
    state.entries += 1
    moved = entry.double(state.entries, expires)
    moved.queue, moved.flow, moved.lease = entry.queue, entry.flow, entry.lease
    state.live[ticket.id] = moved
    if ticket.name:
        state.names.replaced(entry, moved)
        work = state.names.work_of(entry)
        if work is not None:
            work.entry = moved
    tenant.running -= 1
    tenant.queued += 1
    if tenant.limit is not None:
        tenant.settle()
    return moved


def _line_up(state: State, pool: Pool, entry: Entry, actions: list[Action]) -> None:
    """Put a ticket back into the queue of its own band; who lends to it finds it there."""
    entry.queue.correct(entry.flow, -entry.cost)
    entry.avoid = ()
    state.waiting.enter_aside(entry, entry.ticket.band)
    queue = pool.queues[entry.ticket.band]
    queue.add_back(entry, state.flow_for(queue, entry.ticket, entry.tenant), state.now)
    work = state.names.work_of(entry)
    if work is not None:
        settle_work(state, work, actions)
    state.may_shut_out(entry)


def _give_up(state: State, entry: Entry, wait_s: float, actions: list[Action]) -> None:
    """Answer a ticket whose client will not wait as long as every upstream wants it to."""
    ticket, tenant = entry.ticket, entry.tenant
    entry.state = GONE
    del state.live[ticket.id]
    if ticket.name:
        state.names.end(entry, Outcome.EVICTED, state.now)
    tenant.queued -= 1
    tenant.give_back(entry.submitted, entry.cost)
    tenant.forget()
    actions.append(Evict(ticket, Reason.UPSTREAM_BUSY, wait_s, "every backend of the model asked for a pause"))


def dispatch_again(state: State, pool: Pool, entry: Entry, backend: Backend, actions: list[Action]) -> None:
    """Send a ticket that has had its turn to another backend, on which a seat has been taken for it."""
    del pool.retries[entry]
    state.waiting.leave(entry)
    entry.state = RUNNING
    tenant = entry.tenant
    tenant.queued -= 1
    tenant.running += 1
    if tenant.limit is not None:
        tenant.settle()
    entry.backend = backend
    state.leases += 1
    before, now = entry.lease, state.now
    lease = Lease(state.leases, entry.ticket, backend.name, before.kind, before.band, now - entry.submitted, now)
    entry.lease = lease
    state.running[lease.id] = entry
    if entry.ticket.stoppable:
        pool.press.running(lease.id, entry, lease.kind, lease.band)
    actions.append(Dispatch(entry.ticket, lease))


def _rank(entry: Entry) -> tuple[int, float, int]:
    return entry.queue.band, entry.arrived, entry.seq
