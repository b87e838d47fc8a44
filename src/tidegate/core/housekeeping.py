"""What happens by itself: expiry, and the emptying of the queue on a drain (SPEC §4.4, §15.11)."""

from __future__ import annotations

from heapq import heappop

from tidegate.core.actions import Action
from tidegate.core.dependencies import overdue, unsent
from tidegate.core.gates import MODE, NEVER, NO_ROOM, PAUSED, paused_until
from tidegate.core.model import Reason
from tidegate.core.ordering import Entry
from tidegate.core.room import lacks
from tidegate.core.state import MOST_EVICTIONS, State


def sweep(state: State, actions: list[Action]) -> bool:
    """Evict what is due, at most ``MOST_EVICTIONS``; return whether nothing due is left."""
    if state.policy.observe_only and not state.draining:
        return _end_doubt(state, actions)
    for _ in range(MOST_EVICTIONS - 1):  # one is left for the newcomer that the same call may displace for
        entry = _next(state)
        if entry is None:
            return True
        reason = _reason(state, entry)
        if reason is not None:
            state.evict(entry, reason[0], actions, reason[1])
    done = _next(state) is None
    if not done:
        state.waiting.wake = state.now
    return done


def wakeup(state: State) -> float | None:
    """Return when ``tick`` is due next, ``None`` for never. Something must wait."""
    if state.draining or state.names.restless or state.closing:
        return state.now
    observing = state.policy.observe_only
    at = min(state.waiting.alarm, state.names.next_doubt()) if observing else state.waiting.next_wake()
    return max(state.now, at) if at < NEVER else None


def _end_doubt(state: State, actions: list[Action]) -> bool:
    """End the wait for names that nobody sends: all that is due while the rules are only observed."""
    names = state.names
    for _ in range(MOST_EVICTIONS - 1):
        if names.next_doubt() > state.now:
            break
        entry = heappop(names.doubted)[2]
        reason = unsent(state, entry)
        if reason is not None:
            state.evict(entry, reason[0], actions, reason[1])
    next_doubt = names.next_doubt()
    state.waiting.wake = min(state.waiting.alarm, next_doubt)
    return next_doubt > state.now


def _next(state: State) -> Entry | None:
    if state.draining:
        return state.waiting.any()
    entry = state.waiting.due(state.now)
    if entry is None and state.closing:
        entry = _shut_out(state)
        state.closing = entry is not None
    return entry


def _shut_out(state: State) -> Entry | None:
    """Return a waiting ticket that the mode has no place for, ``None`` when there is none.

    Jobs keep a bounded window of patient tickets here, and few stand aside, so that passing them over is cheap.
    """
    for index, band in enumerate(state.policy.bands):
        if not band.admit:
            for entry in state.waiting.bands[index].entries():
                if not entry.ticket.patient:
                    return entry
    return next((entry for entry in state.waiting.aside() if _is_shut_out(state, entry)), None)


def _is_shut_out(state: State, entry: Entry) -> bool:
    if entry.begun:  # as good as running, and running work ends
        return False
    return not (state.policy.bands[entry.queue.band].admit or entry.ticket.patient or entry in state.names.parked)


def _reason(state: State, entry: Entry) -> tuple[Reason, str] | None:
    """Say why a ticket that is due must go; ``None`` when it was given more time."""
    if state.draining:
        return Reason.DRAINING, ""
    if entry.expires > state.now:
        return Reason.SHED, MODE.detail
    if entry in state.names.parked:
        return overdue(state, entry)
    pool, band = state.pools[entry.queue.pool], entry.queue.band
    seating = pool.seating
    if seating.up:
        if paused_until(seating, state.now) is not None:
            return Reason.UPSTREAM_BUSY, PAUSED.detail
        held = pool.room.waits(band) and lacks(seating, band, entry.cost, state.now)
        return Reason.EXPIRED, NO_ROOM.detail if held else ""
    return Reason.NO_BACKEND, "no backend of the model came up in time"
