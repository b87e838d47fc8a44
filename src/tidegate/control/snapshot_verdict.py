"""The first look: are the transactions safe? Judged from the numbers of the highest band alone. Pure.

``unsafe`` when the band misses its target or somebody in it was refused by us, ``strained`` when either is near or
something that it needs is missing, ``idle`` when nothing of it came in the last minute, else ``safe``. Each finding has
a code, which the page puts into words, and the number that it rests on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidegate.control.snapshot_windows import Recent
from tidegate.core import Reason
from tidegate.core.snapshots import BackendSnapshot

LEAST_WITHIN, GOOD_WITHIN = 0.95, 0.99
NEAR = 0.5

OURS = frozenset(
    {
        Reason.QUEUE_FULL,
        Reason.DISPLACED,
        Reason.EXPIRED,
        Reason.SHED,
        Reason.PREEMPTED,
        Reason.UPSTREAM_BUSY,
        Reason.NO_BACKEND,
        Reason.UPSTREAM_ERROR,
        Reason.UPSTREAM_TIMEOUT,
        Reason.DRAINING,
    }
)
"""Refusals that are not the caller's own doing."""


class State(StrEnum):
    """How the transactions are."""

    SAFE = "safe"
    STRAINED = "strained"
    UNSAFE = "unsafe"
    IDLE = "idle"


@dataclass(slots=True, frozen=True)
class Finding:
    """Why they are not simply safe; ``state`` is what this alone would make them."""

    state: State
    code: str
    number: float | None = None


def judge(
    *,
    not_ready: str | None,
    recent: Recent,
    depth: int,
    running: int,
    oldest_s: float,
    target_s: float | None,
    reserve_short: bool,
    backends: Sequence[BackendSnapshot],
) -> tuple[State, tuple[Finding, ...]]:
    """Judge the highest band.

    Args:
        not_ready: why newcomers have no chance at all.
        recent: the band's last minute.
        depth: how many of it wait.
        running: how many of it run.
        oldest_s: the longest wait of those.
        target_s: target for the first token; ``None``: there is none, and only refusals count.
        reserve_short: its automatic reserve would need more seats than it may have.
        backends: all of them.
    """
    found = []
    if not_ready is not None:
        found.append(Finding(State.UNSAFE, "not_ready"))
    if refused := sum(count for reason, count in recent.refusals.items() if reason in OURS):
        found.append(Finding(State.UNSAFE, "refused", refused))
    found += _times(recent, oldest_s, target_s)
    if down := sum(not backend.up for backend in backends):
        found.append(Finding(State.STRAINED, "backends_down", down))
    if stale := sum(backend.up and backend.stale for backend in backends):
        found.append(Finding(State.STRAINED, "backends_stale", stale))
    if reserve_short:
        found.append(Finding(State.STRAINED, "reserve_short"))
    worst = next((state for state in (State.UNSAFE, State.STRAINED) if any(f.state is state for f in found)), None)
    if worst is None:
        quiet = recent.dispatched == 0 and depth == 0 and running == 0
        worst = State.IDLE if quiet else State.SAFE
    return worst, tuple(found)


def _times(recent: Recent, oldest_s: float, target_s: float | None) -> list[Finding]:
    if target_s is None:
        return []
    found = []
    within = recent.within_slo
    if within is not None and within < GOOD_WITHIN:
        state = State.UNSAFE if within < LEAST_WITHIN else State.STRAINED
        found.append(Finding(state, "late", 1 - within))
    if oldest_s > NEAR * target_s:
        state = State.UNSAFE if oldest_s > target_s else State.STRAINED
        found.append(Finding(state, "waits", oldest_s))
    return found
