"""Start work on a seat that was granted from outside (SPEC §11).

A grant names a band and a backend, never a ticket: the ticket is bound when the grant arrives, so cancelling, expiry,
order and inheritance stay here. A grant that nobody may take any more changes nothing; the seat goes back with the next
report. The accounts between bands are kept by whoever grants, so those of the pool are not touched.
"""

from __future__ import annotations

from tidegate.core.actions import Action, Dispatch
from tidegate.core.gates import look
from tidegate.core.lending import started
from tidegate.core.model import Lease, Turn
from tidegate.core.ordering import Entry
from tidegate.core.pools import Pool
from tidegate.core.requeueing import dispatch_again
from tidegate.core.routing import Backend
from tidegate.core.signals import Granted
from tidegate.core.state import State


def use(state: State, grant: Granted, actions: list[Action]) -> None:
    """Dispatch the band's best ticket to the backend of a grant, if one may go there."""
    pool, backend = state.backends.get(grant.backend, (None, None))
    if pool is None or backend is None or pool.name != grant.pool or state.draining or state.behind:
        return
    if pool.seating.gating:
        look(pool.seating, state.now)
    if not pool.seating.can_take(backend, grant.band):
        return
    again = [each for each in pool.retries if each.queue.band == grant.band and backend not in each.avoid]
    if again:
        entry = min(again, key=lambda each: (each.arrived, each.seq))
        pool.seating.seat_on(backend, entry, state.now)
        dispatch_again(state, pool, entry, backend, actions)
        return
    if pool.seating.admits(grant.band) and pool.queues[grant.band].head() is not None:
        taken = pool.take_granted(grant.band, grant.kind, backend, state.now)
        if taken is not None:
            _start(state, pool, taken, backend, grant.kind, actions)


def _start(
    state: State, pool: Pool, entry: Entry, backend: Backend, kind: Turn, actions: list[Action]
) -> None:  # as ``dispatching.deal``, which has it in place
    ticket, tenant, now, band = entry.ticket, entry.tenant, state.now, entry.queue.band
    state.waiting.leave(entry)
    tenant.queued -= 1
    tenant.running += 1
    if tenant.limit is not None:
        tenant.settle()
    entry.backend = backend
    pool.seating.seat_on(backend, entry, now)
    number = state.leases = state.leases + 1
    lease = entry.lease = Lease(number, ticket, backend.name, kind, band, now - entry.submitted, now)
    state.running[number] = entry
    actions.append(Dispatch(ticket, lease))
    if ticket.stoppable:
        pool.press.running(number, entry, kind, band)
    if ticket.name:
        started(state, entry, actions)
