"""Give free seats to waiting tickets, and take seats back (SPEC §4, §5.1)."""

from __future__ import annotations

from tidegate.core.actions import Action, Dispatch
from tidegate.core.model import Lease, Release, Turn
from tidegate.core.ordering import GONE, Entry
from tidegate.core.pools import Pool
from tidegate.core.state import State


def deal(state: State, pool: Pool, actions: list[Action]) -> None:
    """Dispatch from one pool until no seat is free or nothing may run."""
    if state.draining or state.behind:
        return
    now = state.now
    while pool.seating.free > 0:
        turn = pool.next_turn(now, actions)
        if turn is None:
            return
        actions.append(_start(state, pool, *turn))


def finish(state: State, entry: Entry, release: Release, actions: list[Action]) -> None:
    """Give back the seat of a released ticket and deal it out again."""
    lease, queue = entry.lease, entry.queue
    entry.state = GONE
    del state.live[entry.ticket.id]
    pool = state.pools[queue.pool]
    pool.drain.note(state.now - lease.started)
    entry.backend.seating.unseat(entry.backend, entry.cost)
    unparked = entry.tenant.finished()
    used = _tokens_used(entry, release)
    if used is not None:
        queue.correct(entry.flow, used - entry.cost)
        entry.tenant.correct(entry.submitted, used - entry.cost)
    queue.released(entry.flow)
    deal(state, pool, actions)
    if unparked:
        for name in dict.fromkeys(flow.queue.pool for flow in entry.tenant.flows):
            deal(state, state.pools[name], actions)
    elif not entry.tenant.running:
        entry.tenant.forget()


def _start(state: State, pool: Pool, entry: Entry, kind: Turn, band: int) -> Dispatch:
    """Move a ticket from the queue to a seat."""
    now, seating = state.now, pool.seating
    state.waiting.leave(entry)
    tenant = entry.tenant
    tenant.queued -= 1
    tenant.started()
    backend = entry.backend = seating.pick()
    seating.seat(backend, entry.cost)
    state.leases += 1
    lease = entry.lease = Lease(state.leases, entry.ticket, backend.name, kind, band, now - entry.submitted, now)
    state.running[lease.id] = entry
    return Dispatch(entry.ticket, lease)


def _tokens_used(entry: Entry, release: Release) -> int | None:
    """Return the tokens that the engine told, with the estimate for the part it did not tell."""
    if release.input_tokens is None and release.output_tokens is None:
        return None
    work = entry.ticket.work
    used_in = work.input_tokens if release.input_tokens is None else release.input_tokens
    used_out = work.output_tokens if release.output_tokens is None else release.output_tokens
    return used_in + used_out
