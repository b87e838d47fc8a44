"""What happens by itself: expiry, and the emptying of the queue on a drain (SPEC §4.4, §15.11)."""

from __future__ import annotations

from tidegate.core.actions import Action
from tidegate.core.model import Reason
from tidegate.core.ordering import Entry
from tidegate.core.state import MOST_EVICTIONS, State


def sweep(state: State, actions: list[Action]) -> bool:
    """Evict what is due, at most ``MOST_EVICTIONS``; return whether nothing due is left."""
    for _ in range(MOST_EVICTIONS - 1):  # one is left for the newcomer that the same call may displace for
        entry = _next(state)
        if entry is None:
            return True
        state.evict(entry, _reason(state, entry), actions)
    return _next(state) is None


def wakeup(state: State) -> float | None:
    """Return when ``tick`` is due next, ``None`` for never."""
    if not state.waiting.total:
        return None
    if state.draining:
        return state.now
    return max(state.now, state.waiting.next_expiry())


def _next(state: State) -> Entry | None:
    if not state.draining:
        return state.waiting.due(state.now)
    lists = (band.oldest() for band in reversed(state.waiting.bands))  # batch work has most time to come again
    return next((entry for entry in lists if entry is not None), None)


def _reason(state: State, entry: Entry) -> Reason:
    if state.draining:
        return Reason.DRAINING
    return Reason.EXPIRED if state.pools[entry.queue.pool].seating.up else Reason.NO_BACKEND
