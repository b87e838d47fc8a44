"""What the byte path tells of one request while it is traced; ``otel`` makes spans of it.

The gateway holds ``None`` where nothing is traced, so that not tracing costs one comparison for each event.
"""

from __future__ import annotations

from typing import Protocol

from tidegate.core import Lease, Outcome, Reason
from tidegate.telemetry.request_line import RequestLine

Headers = list[tuple[bytes, bytes]]


class Trace(Protocol):
    """One traced request. No method may raise. Events that do not come are closed by those that follow."""

    def waits(self) -> None:
        """It waits for a seat, for the first time or again."""
        ...

    def dispatched(self, lease: Lease) -> None:
        """It has a seat."""
        ...

    def asked(self) -> None:
        """The backend is being asked."""
        ...

    def carried(self, headers: Headers) -> Headers:
        """Return the headers that go upstream, with the context of the span that waits for the answer."""
        ...

    def returned(self, outcome: Outcome | None, reason: Reason | None) -> None:
        """The seat is given back; without an outcome the request waits again."""
        ...

    def end(self, line: RequestLine) -> None:
        """It has ended as its log line says."""
        ...


class Traces(Protocol):
    """Begins traces."""

    def begin(self, method: str, path: str, headers: Headers) -> Trace | None:
        """Begin the trace of a request; ``None``: nobody wants it, and no context has to be made."""
        ...

    def stop(self) -> None:
        """Send what is left, within a few seconds; blocks."""
        ...
