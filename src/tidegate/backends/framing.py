"""How HTTP/1.1 says where a body ends: by length or by chunks (RFC 9112 §6, §7.1). Pure functions."""

from __future__ import annotations

from typing import Final

_ZERO: Final = 0x30
_USUAL: Final = 1024
_LINES: Final[dict[int, bytes]] = {
    len(line) + size + 2: line for size in range(1, _USUAL) for line in (b"%x\r\n" % size,)
}
"""First lines of chunks by the length of the whole: a chunk of this length that begins otherwise is of another form."""


def start_of_only_chunk(data: bytes) -> int:
    """Say where the content begins if ``data`` is exactly one chunk in the plainest form; else 0.

    Plainest: a size without leading zeros and extensions, at most six digits. The last chunk, of size 0, is none.
    """
    line = _LINES.get(len(data))
    if line is not None and data.startswith(line):  # in a third of the time of what follows
        return len(line) if data.endswith(b"\r\n") else 0
    end = data.find(b"\r\n", 1, 8)
    if end < 0 or data[0] == _ZERO or not data.endswith(b"\r\n"):
        return 0
    digits = data[:end]
    if not digits.isalnum():  # int() would take signs, spaces and underscores, and 0x, which begins with a zero
        return 0
    try:
        size = int(digits, 16)
    except ValueError:
        return 0
    return end + 2 if end + size + 4 == len(data) else 0


def head_size(headers: list[tuple[bytes, bytes]]) -> int:
    """Give the bytes that these headers took."""
    return sum(len(name) + len(value) + 4 for name, value in headers)


def has_length(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the body's length is told."""
    return any(name == b"content-length" for name, _ in headers)


def framed(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the body ends by length or by chunks (the parser has refused both together)."""
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings:
        return codings[-1].rpartition(b",")[2].strip().lower() == b"chunked"
    return has_length(headers)
