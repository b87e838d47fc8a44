"""What happens by itself: expiry, and the emptying of the queue on a drain (SPEC §4.4, §15.11)."""

from __future__ import annotations

from tidegate.core.actions import Action
from tidegate.core.dependencies import overdue
from tidegate.core.model import Reason
from tidegate.core.ordering import Entry
from tidegate.core.state import MOST_EVICTIONS, State


def sweep(state: State, actions: list[Action]) -> bool:
    """Evict what is due, at most ``MOST_EVICTIONS``; return whether nothing due is left."""
    for _ in range(MOST_EVICTIONS - 1):  # one is left for the newcomer that the same call may displace for
        entry = _next(state)
        if entry is None:
            return True
        reason = _reason(state, entry)
        if reason is not None:
            state.evict(entry, reason[0], actions, reason[1])
    return _next(state) is None


def wakeup(state: State) -> float | None:
    """Return when ``tick`` is due next, ``None`` for never."""
    if not state.waiting.total:
        return None
    if state.draining or state.names.restless:
        return state.now
    return max(state.now, state.waiting.next_expiry())


def _next(state: State) -> Entry | None:
    return state.waiting.any() if state.draining else state.waiting.due(state.now)


def _reason(state: State, entry: Entry) -> tuple[Reason, str] | None:
    """Say why a ticket that is due must go; ``None`` when it was given more time."""
    if state.draining:
        return Reason.DRAINING, ""
    if entry in state.names.parked:
        return overdue(state, entry)
    if state.pools[entry.queue.pool].seating.up:
        return Reason.EXPIRED, ""
    return Reason.NO_BACKEND, "no backend of the model came up in time"
