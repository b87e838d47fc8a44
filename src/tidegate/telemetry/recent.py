"""The last refusals that clients were told, for the person on duty: who, why, and when to come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.core import Reason

KEPT = 50

_Told = tuple[float, str, str, str, str, Reason, int, Sequence[tuple[bytes, bytes]]]


@dataclass(slots=True, frozen=True)
class Refused:
    """One refusal.

    Attributes:
        at: ``now`` of the answer.
        request_id: what the answer calls the request.
        tenant, band, model: as far as they were known; else empty.
        reason: row of the refusal table.
        status: HTTP status that the client got; 200 for a fallback answer.
        retry_after_s: seconds, as its header ``Retry-After`` says; ``None`` without one.
    """

    at: float
    request_id: str
    tenant: str
    band: str
    model: str
    reason: Reason
    status: int
    retry_after_s: int | None


class RecentRefusals:
    """A ring of them. Noting one costs no more than a tuple; headers are read when somebody looks."""

    __slots__ = ("_ring",)

    def __init__(self) -> None:
        self._ring: deque[_Told] = deque(maxlen=KEPT)

    def note(
        self,
        now: float,
        request_id: str,
        *,
        tenant: str,
        band: str,
        model: str,
        reason: Reason,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """Note what a client was told."""
        self._ring.append((now, request_id, tenant, band, model, reason, status, headers))

    def newest(self) -> Iterator[Refused]:
        """Yield those that are kept, newest first."""
        for now, request_id, tenant, band, model, reason, status, headers in reversed(self._ring):
            after = next((value for name, value in headers if name == b"retry-after"), None)
            wait_s = int(after) if after is not None and after.isdigit() else None
            yield Refused(now, request_id, tenant, band, model, reason, status, wait_s)
