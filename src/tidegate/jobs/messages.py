"""What the gateway and the jobs' worker process say to each other, over one socket.

A frame is a length of four bytes and a message in MessagePack. Messages of one side arrive in order. Every message may
be said again after the worker died: what it leads to happens once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from tidegate.stores import BatchWork, LeasedRow

HEAD: Final = struct.Struct("<I")
MOST_FRAME: Final = 2**31
"""Bytes. A window of rows is far smaller; beyond it, the stream is out of step."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker needs to know; times in seconds, sizes in bytes."""

    store: str
    files: str
    owner: str
    max_attempts: int = 5
    max_lines: int = 50_000
    max_line: int = 32 * 2**20
    keep_s: float = 30 * 86_400.0
    lease_s: float = 60.0


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First word to a worker.

    ``held`` are the lease tokens of the rows that the gateway holds, one for each row; ``utc`` is the gateway's time,
    0 when it has none.
    """

    setup: Setup
    held: list[int]
    utc: float = 0.0


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A question of the API; ``method`` is a name of the desk, ``args`` its keyword arguments."""

    id: int
    method: str
    args: dict[str, object]


class Want(msgspec.Struct, frozen=True, tag="want"):
    """The gateway has room for rows of a batch."""

    batch_id: str
    count: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a row.

    ``status``: an answer, to be kept or retried. Else ``broken``: an attempt without one. Else it was returned.
    """

    row: LeasedRow
    status: int | None = None
    body: bytes = b""
    request_id: str = ""
    broken: bool = False
    error: str = ""
    retry_after_s: float | None = None


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Ends of rows. Answered with ``Settled`` of the same number once they are on disk."""

    id: int
    results: list[Result]


ToWorker = Hello | Ask | Want | Report


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """Answer to an ``Ask``: a result, or the kind and the words of an error."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str | None = None
    message: str = ""


class RowOut(msgspec.Struct, frozen=True):
    """A row to send."""

    row: LeasedRow
    tenant: str
    band: str
    endpoint: str
    body: bytes


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    """Answer to a ``Want``; as many as there were."""

    batch_id: str
    rows: list[RowOut]


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """A report is on disk."""

    id: int


class Work(msgspec.Struct, frozen=True, tag="work"):
    """All batches that have rows to answer; a batch that is missing has no row to be sent any more."""

    batches: list[BatchWork]


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A batch has ended."""

    batch_id: str


FromWorker = Reply | Rows | Settled | Work | Ended

_encoder = msgspec.msgpack.Encoder()


def frame(message: ToWorker | FromWorker) -> bytes:
    """Write a message as a frame."""
    body = _encoder.encode(message)
    return HEAD.pack(len(body)) + body


class Unframer:
    """Takes bytes as they come and gives whole frames, without their heads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes; yield what is whole now.

        Raises:
            ValueError: the stream is out of step.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= HEAD.size:
                (size,) = HEAD.unpack_from(buffer, at)
                if size > MOST_FRAME:
                    raise ValueError(f"expected a frame of at most {MOST_FRAME} bytes, got {size}")
                if len(buffer) - at - HEAD.size < size:
                    break
                at += HEAD.size + size
                yield bytes(buffer[at - size : at])
        finally:
            del buffer[:at]
