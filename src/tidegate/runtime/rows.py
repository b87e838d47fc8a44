"""A request that nobody waits for on a connection: a row of a batch. The words in which its sender and its owner speak.

The owner (the jobs' pump) knows no HTTP, the sender (the gateway) no batches; ``assembly`` brings them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidegate.core import Reason
from tidegate.telemetry.request_line import RequestLine


@dataclass(slots=True, frozen=True, kw_only=True)
class RowRequest:
    """What is to be sent.

    Attributes:
        tenant: name of who pays.
        band: name of the band.
        path: endpoint.
        body: JSON.
        arrived: when the row first came to the scheduler, a ``now`` value; ``None``: now.
    """

    tenant: str
    band: str
    path: str
    body: bytes
    arrived: float | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class RowAnswer:
    """An answer to keep: the upstream's, or our own to a request that can never be right.

    Attributes:
        retry_after_s: when the upstream wants to be asked again, ``None`` when it does not say.
        line: what the log is to say of it, if this is the row's end.
    """

    status: int
    body: bytes
    request_id: str = ""
    retry_after_s: float | None = None
    line: RequestLine | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class RowReturned:
    """Nothing came of it and it is nobody's fault: refused by the scheduler, too busy, no connection.

    Attributes:
        refused: the scheduler refused it, so that others like it will be refused too.
        retry_after_s: the earliest time at which it makes sense again, seconds from now; ``None``: unknown.
    """

    reason: Reason
    detail: str = ""
    refused: bool = False
    retry_after_s: float | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class RowBroken:
    """The upstream began to work on it and did not finish. ``line`` as in ``RowAnswer``."""

    reason: Reason
    detail: str = ""
    line: RequestLine | None = None


RowEnd = RowAnswer | RowReturned | RowBroken


class PlacedRow(Protocol):
    """A row that is known to fit somewhere. Sent once."""

    @property
    def pool(self) -> str:
        """Name of the pool it goes to."""
        ...

    @property
    def band(self) -> int:
        """Index of its band."""
        ...

    async def send(self, seated: Callable[[], None]) -> RowEnd:
        """Wait for a seat, call ``seated``, ask, return the end. A cancelled call leaves nothing behind."""
        ...

    def bear(self, name: str) -> bool:
        """While it waits, let it be known by ``name`` within its tenant; ``False``: it does not wait (any more)."""
        ...


class RowSender(Protocol):
    """Sends rows."""

    def place(self, row: RowRequest) -> PlacedRow | RowAnswer | RowReturned:
        """Read a row and find its pool; what can never be sent is answered at once."""
        ...
