"""Read a form upload (``multipart/form-data``, RFC 7578) as it comes. Pure: bytes in, parts out.

Content is handed on as it arrives, so that a file of any size costs no memory. Only the last few bytes are held back,
which may be the beginning of a boundary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from enum import Enum, auto
from typing import Final

MOST_HEAD: Final = 16 * 1024
MOST_PREAMBLE: Final = 64 * 1024


class MultipartError(ValueError):
    """The body is no form; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part begins. ``filename`` is the client's, for display only; ``None``: it is a field."""

    name: str
    filename: str | None


class _At(Enum):
    BOUNDARY = auto()
    AFTER = auto()
    HEAD = auto()
    CONTENT = auto()
    END = auto()


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a content type names.

    Raises:
        MultipartError: it names none.
    """
    message = Message()
    message["content-type"] = content_type
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise MultipartError("expected content-type multipart/form-data with a boundary")
    if not re.fullmatch(r"[ -~]{1,200}", boundary):
        raise MultipartError("expected a boundary of up to 200 printable characters")
    return boundary.encode()


class MultipartReader:
    """Feed it the body; it gives a ``Part`` at each beginning, and the part's content in pieces."""

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # the first boundary has no line before it
        self._at = _At.BOUNDARY

    @property
    def complete(self) -> bool:
        """Whether the last boundary has come."""
        return self._at is _At.END

    def feed(self, data: bytes) -> Iterator[Part | bytes]:
        """Add bytes.

        Raises:
            MultipartError: this is no form.
        """
        self._buffer += data
        while True:
            before = self._at, len(self._buffer)
            if self._at is _At.BOUNDARY:
                self._skip_preamble()
            elif self._at is _At.AFTER:
                self._after_boundary()
            elif self._at is _At.HEAD:
                yield from self._head()
            elif self._at is _At.CONTENT:
                yield from self._content()
            else:
                self._buffer.clear()
            if (self._at, len(self._buffer)) == before or self._at is _At.END:
                return

    def _skip_preamble(self) -> None:
        at = self._buffer.find(self._mark)
        if at >= 0:
            del self._buffer[: at + len(self._mark)]
            self._at = _At.AFTER
        elif len(self._buffer) > MOST_PREAMBLE:
            raise MultipartError("expected the boundary that content-type names, found none")

    def _after_boundary(self) -> None:
        if len(self._buffer) < 2:
            return
        if self._buffer.startswith(b"--"):
            self._at = _At.END
        elif self._buffer.startswith(b"\r\n"):
            self._at = _At.HEAD  # its line end stays, so that an empty head is found as well
        else:
            raise MultipartError("expected a line end after the boundary")

    def _head(self) -> Iterator[Part]:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MOST_HEAD:
                raise MultipartError(f"expected headers of a part of at most {MOST_HEAD} bytes")
            return
        head = bytes(self._buffer[2:end])
        del self._buffer[: end + 4]
        self._at = _At.CONTENT
        yield _part(head)

    def _content(self) -> Iterator[bytes]:
        at = self._buffer.find(self._mark)
        end = at if at >= 0 else max(0, len(self._buffer) - len(self._mark) + 1)
        if end:
            yield bytes(self._buffer[:end])
        if at >= 0:
            end += len(self._mark)
            self._at = _At.AFTER
        del self._buffer[:end]


def _part(head: bytes) -> Part:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            message = Message()
            message["content-disposition"] = value.decode(errors="replace").strip()
            field = message.get_param("name", header="content-disposition")
            filename = message.get_filename()
            if isinstance(field, str):
                return Part(field, filename)
    raise MultipartError("expected each part to have a name")
