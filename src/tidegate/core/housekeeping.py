"""What happens by itself: expiry, and the emptying of the queue on a drain (SPEC §4.4, §15.11)."""

from __future__ import annotations

from tidegate.core.actions import Action
from tidegate.core.dependencies import overdue
from tidegate.core.gates import MODE, NEVER, PAUSED, paused_until
from tidegate.core.model import Reason
from tidegate.core.ordering import Entry
from tidegate.core.state import MOST_EVICTIONS, State


def sweep(state: State, actions: list[Action]) -> bool:
    """Evict what is due, at most ``MOST_EVICTIONS``; return whether nothing due is left."""
    if state.policy.observe_only and not state.draining:
        state.waiting.wake = state.waiting.alarm
        return True
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
    """Return when ``tick`` is due next, ``None`` for never."""
    if not state.waiting.total:
        return None
    if state.draining or state.names.restless or state.closing:
        return state.now
    at = state.waiting.alarm if state.policy.observe_only else state.waiting.next_wake()
    return max(state.now, at) if at < NEVER else None


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
    if entry.stops:  # its client has a part of its answer: it is as good as running
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
    seating = state.pools[entry.queue.pool].seating
    if seating.up:
        busy = paused_until(seating, state.now) is not None
        return (Reason.UPSTREAM_BUSY, PAUSED.detail) if busy else (Reason.EXPIRED, "")
    return Reason.NO_BACKEND, "no backend of the model came up in time"
