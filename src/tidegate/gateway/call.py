"""What is known of one request while it goes through, and the log line that it becomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from tidegate.classify import Classified, RawHeaders, answer_headers
from tidegate.core import Lease, Outcome, Reason
from tidegate.core.compiling import mypyc_attr
from tidegate.gateway.watch import NOTHING, Used
from tidegate.telemetry.request_line import RequestLine
from tidegate.telemetry.traces import Trace

Send = Callable[[dict[str, Any]], Awaitable[None]]

CLIENT_LEFT: Final = 499
"""Status in logs only, for a client that did not wait."""

_FAILED: Final = Outcome.FAILED
_UNKNOWN: Final = NOTHING


@mypyc_attr(free_list_len=1, acyclic=True)
class Call:
    """One request. Times are ``now`` values in seconds.

    Attributes:
        request_id: what answers call it.
        arrived: when its headers were complete.
        classified: once it is.
        lease: the last seat it held.
        first_at: when its first content passed.
        status: what the client got; 0 before anything was sent.
        outcome, reason: how it ended.
        used: tokens, as far as they are known.
        instead: the model that answers for another whose work was shed.
        tenant: whose it is, empty before that is known.
        trace: hears of it, where it is traced.
        broken: the answer had begun and has no form in which its end could be told: the connection must end.
    """

    __slots__ = (
        "arrived", "broken", "classified", "first_at", "instead", "lease", "outcome", "reason", "request_id", "status",
        "tenant", "trace", "used",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        arrived: float,
        classified: Classified | None = None,
        *,
        status: int = 0,
        first_at: float | None = None,
    ) -> None:
        self.request_id = request_id
        self.arrived = arrived
        self.classified = classified
        self.lease: Lease | None = None
        self.first_at = first_at
        self.status = status
        self.outcome = _FAILED
        self.reason: Reason | None = None
        self.used: Used = _UNKNOWN
        self.instead = ""
        self.tenant = ""
        self.trace: Trace | None = None
        self.broken = False

    @property
    def started(self) -> bool:
        """Whether the client has been sent a status."""
        return self.status != 0

    @property
    def begun(self) -> bool:
        """Whether the client has a part of an answer, so that nothing but the rest of it or an error may follow."""
        return self.status != 0 and self.first_at is not None

    def ended(self, outcome: Outcome, reason: Reason | None = None) -> None:
        """Note how it ended."""
        self.outcome = outcome
        self.reason = reason

    def left(self) -> None:
        """Note that the client left."""
        self.status = CLIENT_LEFT
        self.ended(Outcome.CANCELLED, Reason.CANCELLED)

    def headers(self, now: float) -> RawHeaders:
        """Return what every answer carries."""
        band = "none" if self.classified is None else self.classified.band_name
        headers = answer_headers(request_id=self.request_id, band=band, queue_s=self.queue_s(now))
        if self.instead:
            headers.append((b"x-tidegate-model", self.instead.encode("latin-1", "replace")))
        return headers

    def queue_s(self, now: float) -> float:
        """Return the wait for a seat, seconds; without a seat, the wait until now."""
        return now - self.arrived if self.lease is None else self.lease.waited_s

    async def answer(self, send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
        """Send a whole answer; ``headers`` must hold everything but the length."""
        self.status = status
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, (b"content-length", b"%d" % len(body))],
            }
        )
        await send({"type": "http.response.body", "body": body})

    def pace(self, started: float, now: float) -> tuple[float | None, float | None]:
        """Return dispatch to first token, and the mean time per token after it, as far as both are known; seconds.

        Args:
            started: time of the dispatch.
            now: when the answer ended.
        """
        if self.first_at is None:
            return None, None
        written = self.used.output_tokens or 0
        return self.first_at - started, (now - self.first_at) / (written - 1) if written > 1 else None

    def line(self, now: float, at_utc: datetime) -> RequestLine:
        """Return the log line."""
        classified, lease = self.classified, self.lease
        return RequestLine(
            at_utc=at_utc,
            level="info",
            request_id=self.request_id,
            status=self.status,
            outcome=self.outcome,
            reason=self.reason,
            tenant=self.tenant or None,
            band=None if classified is None else classified.band_name,
            model=None if classified is None else classified.pool,
            backend=None if lease is None else lease.backend,
            # Microseconds are enough, and round() costs four times as much.
            queue_ms=None if lease is None else int(lease.waited_s * 1e6) / 1000,
            ttft_ms=None if self.first_at is None else int((self.first_at - self.arrived) * 1e6) / 1000,
            total_ms=int((now - self.arrived) * 1e6) / 1000,
            input_tokens=self.used.input_tokens,
            output_tokens=self.used.output_tokens,
        )
