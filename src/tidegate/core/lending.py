"""Lend the band of a waiter to the work it waits for (SPEC §4.6).

A ``Wait`` is somebody who waits: a ticket parked on its dependencies, or a caller outside. A ``Work`` is a named one
that is waited for. A wait lends its band to at most ``lend_limit`` of its works that still wait themselves and
stand in lower bands; a work runs in the best band lent to it. A parked ticket passes on what it is lent, so lending is
transitive. What changes is settled from a work list, not by recursion, so chains may be long; the cost is in waits and
works affected, never in what else is queued.

Lent work moves: it stands in the lent band's queue, in one flow of the waiter's tenant, under that band's gates, and
cannot be displaced below that band. Its expiry, and the band whose capacity it counts in, stay its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.actions import Action, Promote
from tidegate.core.ordering import GONE, WAITING, Entry

if TYPE_CHECKING:
    from tidegate.core.fairness import Flow
    from tidegate.core.queues import BandQueue
    from tidegate.core.state import State


class Wait:
    """Somebody who waits.

    Attributes:
        tenant: who lends.
        own: the waiter's band.
        band: the band it lends, better than ``own`` when it is lent to itself.
        entry: the parked ticket, ``None`` for a caller outside.
        works: what it still waits for, in the order declared.
    """

    __slots__ = ("band", "entry", "own", "tenant", "works")

    def __init__(self, tenant: str, band: int, entry: Entry | None) -> None:
        self.tenant = tenant
        self.own = self.band = band
        self.entry = entry
        self.works: dict[Work, None] = {}


class Work:
    """A named request that somebody waits for. ``entry`` is ``None`` while nobody has sent it yet."""

    __slots__ = ("bids", "entry", "name", "waits")

    def __init__(self, name: str, entry: Entry | None) -> None:
        self.name = name
        self.entry = entry
        self.waits: dict[Wait, None] = {}
        self.bids: dict[int, dict[Wait, None]] = {}  # who lends, by band

    def best(self) -> tuple[int, Wait] | None:
        """Return the best band lent and who lends it, the first of them."""
        lent = [band for band, waits in self.bids.items() if waits]
        if not lent:
            return None
        band = min(lent)
        return band, next(iter(self.bids[band]))


def relend(state: State, wait: Wait, actions: list[Action]) -> None:
    """Settle what one wait lends, and whatever follows from it."""
    todo = [wait]
    while todo:
        each = todo.pop()
        left = state.policy.lend_limit
        for work in list(each.works):
            entry = work.entry
            wants = entry is not None and _can_move(entry) and entry.ticket.band > each.band
            if _bid(work, each, each.band if wants and left > 0 else None):
                todo.extend(_follow(state, work, actions))
            left -= wants


def withdraw(state: State, wait: Wait, actions: list[Action]) -> None:
    """End a wait: its works lose what it lent."""
    works = list(wait.works)
    wait.works.clear()
    for work in works:
        work.waits.pop(wait, None)
        if _bid(work, wait, None):
            for follower in _follow(state, work, actions):
                relend(state, follower, actions)
        state.names.drop_unawaited(work)


def settle_work(state: State, work: Work, actions: list[Action]) -> None:
    """Put a work that just came to wait where its lenders want it."""
    for wait in list(work.waits):
        relend(state, wait, actions)
    _follow(state, work, actions)


def started(state: State, entry: Entry, actions: list[Action]) -> None:
    """Note that a named ticket got its seat: its waiters may lend to another."""
    work = state.names.work_of(entry)
    if work is not None:
        for wait in list(work.waits):
            relend(state, wait, actions)


def _bid(work: Work, wait: Wait, band: int | None) -> bool:
    """Note that ``wait`` lends ``band`` to ``work`` (``None``: nothing); return whether that is new."""
    changed = False
    for each, waits in work.bids.items():
        if each != band and wait in waits:
            del waits[wait]
            changed = True
    if band is not None and wait not in work.bids.setdefault(band, {}):
        work.bids[band][wait] = None
        changed = True
    return changed


def _can_move(entry: Entry) -> bool:
    """Say whether a ticket still waits for its turn; one that waits for another backend has had it."""
    return entry.state == WAITING and not entry.avoid


def _follow(state: State, work: Work, actions: list[Action]) -> list[Wait]:
    """Obey the best bid for a work; return the wait that now lends another band, if the work itself waits for more."""
    entry, best = work.entry, work.best()
    if entry is None or not _can_move(entry):
        return []
    parked = state.names.parked.get(entry)
    if parked is not None:
        band = parked.own if best is None else min(parked.own, best[0])
        if band == parked.band:
            return []
        parked.band = band
        return [parked]
    if best is None:
        if entry.queue.band != entry.ticket.band:
            _go_home(state, work, entry)
    else:
        band, wait = best
        queue = state.pools[entry.queue.pool].queues[band]
        flow = _lent_flow(state, queue, wait)
        if entry.flow is not flow:
            _lend(state, work, entry, flow)
            actions.append(Promote(entry.ticket, band, "lent"))
    return []


def _lent_flow(state: State, queue: BandQueue, wait: Wait) -> Flow:
    key = f"\0lent\0{wait.tenant}"
    return queue.flows.get(key) or queue.open(key, state.tenants.get(wait.tenant))


def _lend(state: State, work: Work, entry: Entry, flow: Flow) -> None:
    moved = _copy(state, work, entry)
    state.waiting.enter_aside(moved, entry.ticket.band)
    _requeue(state, moved, flow.queue, flow)


def _go_home(state: State, work: Work, entry: Entry) -> None:
    moved = _copy(state, work, entry)
    (state.waiting.enter_aside if moved.returned else state.waiting.enter)(moved, entry.ticket.band)
    queue = state.pools[entry.queue.pool].queues[entry.ticket.band]
    _requeue(state, moved, queue, state.flow_for(queue, entry.ticket, entry.tenant))
    state.may_shut_out(moved)


def _copy(state: State, work: Work, entry: Entry) -> Entry:
    """Take an entry out of the queue and make its double."""
    entry.state = GONE
    state.waiting.leave(entry)
    entry.queue.remove(entry)
    state.entries += 1
    moved = entry.double(state.entries, entry.expires)
    work.entry = state.live[entry.ticket.id] = moved
    state.names.replaced(entry, moved)
    return moved


def _requeue(state: State, entry: Entry, queue: BandQueue, flow: Flow) -> None:
    queue.add_back(entry, flow, state.now)  # rates of arrival are not for lent work
    state.names.moved = state.names.restless = True
