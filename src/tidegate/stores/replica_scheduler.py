"""A scheduler that shares its pools: passes every call on, and notes what the ledger has to hear of.

Nothing of this is in the way of a gateway that is alone: there the driver has the scheduler itself.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core import (
    MOST_HEADS,
    Action,
    Dispatch,
    Granted,
    Lease,
    Policy,
    PoolBids,
    Release,
    Requeue,
    Scheduler,
    Signal,
    Snapshot,
    Status,
    Ticket,
    Why,
)
from tidegate.core.fairness import flow_key
from tidegate.stores.ledger_client import Client


class SharedScheduler:
    """Implements ``SchedulerLike``.

    Args:
        scheduler: what decides.
        told: called with the name of a pool of which there is something to tell.
    """

    def __init__(self, scheduler: Scheduler, told: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._told = told
        self._named = {tenant.name for tenant in scheduler.policy.tenants}
        self._leases: dict[int, Lease] = {}
        self.clients: dict[str, Client] = {}

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        """See ``Scheduler``."""
        actions = self._note(self._scheduler.submit(now, ticket))
        if ticket.pool in self.clients and self._scheduler.waiting(ticket.pool, ticket.band) <= MOST_HEADS:
            self._tell(ticket.pool)
        return actions

    def release(self, now: float, lease_id: int, release: Release | Requeue) -> list[Action]:
        """See ``Scheduler``."""
        lease = self._leases.pop(lease_id, None)
        actions = self._note(self._scheduler.release(now, lease_id, release))
        if lease is not None and lease.ticket.pool in self.clients:
            tokens = _beyond(lease, release)
            if tokens and lease.band == lease.ticket.band:  # lent work is on the account of whoever lent
                client = self.clients[lease.ticket.pool]
                client.charged(lease.band, self._payer(lease.ticket), tokens, lease.backend)
            self._tell(lease.ticket.pool)
        return actions

    def cancel(self, now: float, ticket_id: str) -> list[Action]:
        """See ``Scheduler``."""
        return self._note(self._scheduler.cancel(now, ticket_id))

    def observe(self, now: float, signal: Signal) -> list[Action]:
        """See ``Scheduler``."""
        actions = self._note(self._scheduler.observe(now, signal))
        if isinstance(signal, Granted) and signal.pool in self.clients:
            started = any(isinstance(each, Dispatch) for each in actions)
            self.clients[signal.pool].used_up(started=started)
        return actions

    def set_policy(self, now: float, policy: Policy) -> list[Action]:
        """See ``Scheduler``."""
        actions = self._note(self._scheduler.set_policy(now, policy))
        self._named = {tenant.name for tenant in policy.tenants}
        for name, client in self.clients.items():
            client.observing = policy.observe_only
            self._tell(name)
        return actions

    def tick(self, now: float) -> list[Action]:
        """See ``Scheduler``."""
        return self._note(self._scheduler.tick(now))

    def next_wakeup(self) -> float | None:
        """See ``Scheduler``."""
        return self._scheduler.next_wakeup()

    def snapshot(self, now: float) -> Snapshot:
        """See ``Scheduler``."""
        return self._scheduler.snapshot(now)

    def status(self, now: float, name: str) -> Status:
        """See ``Scheduler``."""
        return self._scheduler.status(now, name)

    def why(self, now: float, ticket_id: str) -> Why:
        """See ``Scheduler``."""
        return self._scheduler.why(now, ticket_id)

    def bids(self, now: float, pool: str) -> PoolBids:
        """See ``Scheduler``."""
        return self._scheduler.bids(now, pool)

    def _note(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Dispatch):
                self._leases[action.lease.id] = action.lease
        return actions

    def _tell(self, pool: str) -> None:
        self.clients[pool].changed()
        self._told(pool)

    def _payer(self, ticket: Ticket) -> str:
        return ticket.tenant if ticket.tenant in self._named else flow_key(ticket)


def _beyond(lease: Lease, release: Release | Requeue) -> int:
    """Return the tokens used beyond the estimate, as the scheduler's own accounts are corrected."""
    work = lease.ticket.work
    estimate = work.input_tokens + work.output_tokens or 1
    if isinstance(release, Requeue):
        return -estimate
    if release.input_tokens is None and release.output_tokens is None:
        return 0
    used_in = work.input_tokens if release.input_tokens is None else release.input_tokens
    used_out = work.output_tokens if release.output_tokens is None else release.output_tokens
    return used_in + used_out - estimate
