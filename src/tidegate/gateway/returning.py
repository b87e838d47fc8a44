"""Those who were refused and come back: by their idempotency key they keep their first arrival time (SPEC §6).

Only a bounded number is remembered, and each for a minute after its last refusal, so that keys cost little and an old
one gives no right for ever.
"""

from __future__ import annotations

from tidegate.core import Reason

REMEMBERED_S = 60.0
MOST = 10_000
KEEPS_PLACE = frozenset({Reason.QUEUE_FULL, Reason.DISPLACED, Reason.SHED, Reason.UPSTREAM_BUSY})
"""Refusals after which coming back is the same request again. Who waited too long, or too much, starts anew."""


class Returning:
    """First arrivals by tenant and idempotency key. Times are ``now`` values in seconds."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[float, float]] = {}  # (first arrival, last refusal), oldest first

    def first_arrival(self, tenant: str, key: str, now: float) -> float | None:
        """Return when a request that comes back came first, ``None`` when it is new."""
        known = self._known.get((tenant, key)) if key else None
        if known is None or now - known[1] > REMEMBERED_S:
            return None
        return known[0]

    def refused(self, tenant: str, key: str, reason: Reason, *, arrived: float, now: float) -> None:
        """Remember a refused request that arrived first at ``arrived``."""
        if not key or reason not in KEEPS_PLACE:
            return
        known = self._known
        known.pop((tenant, key), None)
        known[tenant, key] = (arrived, now)
        while len(known) > MOST:
            del known[next(iter(known))]

    def __len__(self) -> int:
        return len(self._known)
