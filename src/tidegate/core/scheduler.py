"""The scheduler: one event in, actions out. This file only composes the parts.

Rules that hold for every call: it never waits, never raises for overload, and costs at most O(log n) in what waits.
``now`` is seconds from one monotonic source; a smaller one than before is taken as the latest seen. Every ticket
that was submitted ends in exactly one of: a ``Reject``, an ``Evict``, a ``cancel`` while it waits, or a ``release``.
"""

from __future__ import annotations

from tidegate.core.actions import Action, Dispatch, Evict, Reject
from tidegate.core.admission import arrive
from tidegate.core.bids import PoolBids, pool_bids, waiting
from tidegate.core.capacity import count_elsewhere, learn, lend
from tidegate.core.dependencies import call, note_elsewhere, resolve, status
from tidegate.core.dispatching import deal, deal_around, give_back
from tidegate.core.errors import TidegateError
from tidegate.core.gates import NEVER, Gate, hold, look
from tidegate.core.grants import use
from tidegate.core.housekeeping import sweep, wakeup
from tidegate.core.model import Outcome, Release, Requeue, Ticket
from tidegate.core.names import Status
from tidegate.core.ordering import WAITING
from tidegate.core.policy import Policy
from tidegate.core.requeueing import take_back
from tidegate.core.signals import (
    Began,
    Capacity,
    Counters,
    Declined,
    Drain,
    Elsewhere,
    Granted,
    Signal,
    Waiter,
)
from tidegate.core.snapshots import Snapshot, Why, explain, take_snapshot
from tidegate.core.state import MOST_EVICTIONS, State


class Scheduler:
    """Decides who runs, who waits and who is refused.

    Args:
        policy: what to obey, its pools with their backends included. Backends count as up until told otherwise.
    """

    def __init__(self, policy: Policy) -> None:
        self._state = State(policy)

    @property
    def policy(self) -> Policy:
        """The policy obeyed now."""
        return self._state.policy

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        """Take a new ticket: it is dispatched, queued or rejected.

        Raises:
            TidegateError: a ticket with this id waits or runs here already.
        """
        state = self._state
        if ticket.id in state.live:  # before anything is due is done: an error would lose those actions
            raise TidegateError(f"expected a new ticket id, got {ticket.id!r}, which waits or runs already")
        actions: list[Action] = []
        if now < state.now or now >= state.waiting.wake or state.draining:
            now = self._begin(now, actions)
        state.now = now
        arrive(state, ticket, actions)
        if actions and type(actions[-1]) is not Dispatch:
            self._count_refusals(actions)
        if state.names.restless:
            self._settle_names(actions)
        return actions

    def release(self, now: float, lease_id: int, release: Release | Requeue) -> list[Action]:
        """Give a seat back, and with ``Requeue`` the ticket too.

        A lease that is not held (a second release) is ignored: no actions.
        """
        state = self._state
        entry = state.running.pop(lease_id, None)
        if entry is None:
            return []
        actions: list[Action] = []
        if now < state.now or now >= state.waiting.wake or state.draining:
            now = self._begin(now, actions)
        state.now = now
        if type(release) is Release:
            pool = give_back(state, entry, release)
        else:
            assert isinstance(release, Requeue)
            pool = take_back(state, entry, release, actions)
        if state.names.restless:  # first those who waited for this one, then the seat
            self._settle_names(actions)
        if state.waiting.total or not pool.rests(now):
            deal(state, pool, actions)
        if entry.tenant.limit is not None:
            deal_around(state, entry.tenant, actions)
        return actions

    def cancel(self, now: float, ticket_id: str) -> list[Action]:
        """Forget a waiting ticket. One that runs keeps its seat until ``release``; an unknown one is ignored."""
        actions: list[Action] = []
        self._begin(now, actions)
        entry = self._state.live.get(ticket_id)
        if entry is not None and entry.state == WAITING:
            self._state.remove(entry, actions)
            if entry.ticket.name:
                self._state.names.end(entry, Outcome.CANCELLED, self._state.now)
            self._settle_names(actions)
        return actions

    def observe(self, now: float, signal: Signal) -> list[Action]:
        """Learn a fact from outside; unknown backends are ignored."""
        state = self._state
        actions: list[Action] = []
        if isinstance(signal, Drain):
            state.draining = True
        self._begin(now, actions)
        if isinstance(signal, Waiter):
            call(state, signal, actions)
            self._settle_names(actions)
        elif isinstance(signal, Elsewhere):
            note_elsewhere(state, signal)
            self._settle_names(actions)
        elif isinstance(signal, (Began, Declined)):
            entry = state.running.get(signal.lease)
            if entry is not None:
                where = state.pools[entry.queue.pool]
                where.press.told(signal, state.now)
                deal(state, where, actions)
        elif isinstance(signal, Granted):
            use(state, signal, actions)
        elif isinstance(signal, Counters):
            count_elsewhere(state, signal)
        elif not isinstance(signal, Drain):
            pool = lend(state, signal) if isinstance(signal, Capacity) else learn(state, signal)
            if pool is not None:
                deal(state, pool, actions)
        return actions

    def set_policy(self, now: float, policy: Policy) -> list[Action]:
        """Obey another policy from now on. Lower limits never discard what waits or runs.

        Raises:
            PolicyError: the set of bands differs; nothing was changed then.
        """
        self._state.check(policy)  # first, as in submit
        actions: list[Action] = []
        self._begin(now, actions)
        self._state.obey(policy)
        self._begin(now, actions)
        self._deal_all(actions)
        return actions

    def tick(self, now: float) -> list[Action]:
        """Do what is due by time alone. Twice with the same ``now`` and nothing due does nothing."""
        actions: list[Action] = []
        self._begin(now, actions)
        return actions

    def next_wakeup(self) -> float | None:
        """Return when ``tick`` is due next, ``None`` for never; ``now`` when more is due already."""
        state = self._state
        return wakeup(state) if state.waiting.total else None

    def snapshot(self, now: float) -> Snapshot:
        """Return depths, waits, seats and counts; walks no tickets."""
        return take_snapshot(self._state, max(now, self._state.now))

    def why(self, now: float, ticket_id: str) -> Why:
        """Say why a ticket waits."""
        return explain(self._state, max(now, self._state.now), ticket_id)

    def status(self, now: float, name: str) -> Status:
        """Return how far the request of a full name (``tenant/name``) is; ended ones are known ten minutes."""
        return status(self._state, name, max(now, self._state.now))

    def hold(self, pool: str, band: int) -> Gate | None:
        """Return what stops a band from starting work now, ``None`` when nothing does."""
        seating = self._state.pools[pool].seating
        look(seating, self._state.now)
        return hold(seating, band)

    def bids(self, now: float, pool: str) -> PoolBids:
        """Return the seats that a pool uses and what its bands have waiting that may run; walks no tickets.

        Raises:
            KeyError: there is no such pool.
        """
        state = self._state
        state.now = max(now, state.now)
        return pool_bids(state, state.pools[pool])

    def waiting(self, pool: str, band: int) -> int:
        """Return how many tickets wait in a band of a pool."""
        return waiting(self._state.pools[pool], band)

    @property
    def storm(self) -> bool:
        """Whether more was refused than dispatched in the last second (SPEC §15.19)."""
        return self._state.storm.rages(self._state.now, self._state.leases)

    def _count_refusals(self, actions: list[Action]) -> None:
        refused = sum(isinstance(action, (Reject, Evict)) for action in actions)
        self._state.storm.note(self._state.now, refused, self._state.leases)

    def _begin(self, now: float, actions: list[Action]) -> float:
        """Move time on, never back, and do what is due by then before anything else; return the time it is."""
        state = self._state
        if now > state.now:
            state.now = now
        if state.draining or state.now >= state.waiting.wake:
            behind = state.behind
            state.behind = not sweep(state, actions)
            if behind and not state.behind:
                self._deal_all(actions)
            if state.now >= state.waiting.alarm:
                state.waiting.set_alarm(NEVER)
                self._deal_all(actions)
        if state.names.restless:
            self._settle_names(actions)
        return state.now

    def _settle_names(self, actions: list[Action]) -> None:
        """Tell waiters what has ended, and deal where work moved between bands."""
        state = self._state
        names = state.names
        resolve(state, actions, max(0, MOST_EVICTIONS - len(actions)))
        while names.moved:
            names.moved = False
            self._deal_all(actions)
        names.restless = bool(names.ended)

    def _deal_all(self, actions: list[Action]) -> None:
        for pool in self._state.pools.values():
            deal(self._state, pool, actions)
