"""Bytes of a request head and the parts of an upstream's address: pure functions, no socket.

Invariant: whatever callers pass, the head has exactly the lines meant. Values with CR, LF or NUL, names that are
no tokens, and headers that frame the message (which are ours to write) raise ``ValueError`` (RFC 9112 §2.2, §6).
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit


class Lines:
    """Header lines as a row of names and as many values; equal rows are rendered by what is remembered of one."""

    __slots__ = ("names", "values")

    def __init__(self, names: tuple[bytes, ...], values: list[bytes]) -> None:
        self.names: Final = names
        self.values: Final = values


Headers = Sequence[tuple[bytes, bytes]] | Lines

TOKEN = (string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~").encode()
"""Characters of a method or header name (RFC 9110 §5.6.2)."""

VISIBLE = bytes(range(0x21, 0x7F))

FRAMING = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"upgrade", b"te", b"trailer"}
    | {b"expect", b"proxy-connection"}
)
"""Request headers that callers may not pass: the client writes or omits them itself."""

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"}
    | {b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
"""Response headers that belong to this connection only and must not be passed on (RFC 9110 §7.6.1)."""


_BODILESS: Final = frozenset({b"GET", b"HEAD", b"DELETE"})
_LF: Final = 0x0A  # as numbers: looking for one by ``bytes`` raises and catches an error inside CPython
_CR: Final = 0x0D
_NUL: Final = 0x00
_MOST_ROWS: Final = 1024
_LONGEST_ROW: Final = 1024
_rows: Final[dict[tuple[bytes, ...], bytes]] = {}
"""What ``%`` makes header lines of, by names that have passed the check, so that it is made once for each row of them;
bounded in number and length, since clients choose names."""

SHORT: Final = 65536
"""Bytes of a body that is written together with its head: to copy them costs less than a second write."""

MOST_STARTS: Final = 256
_LONGEST_START: Final = 1024
"""First lines that are remembered of an upstream, and the bytes of the longest that is, with those of all requests."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an upstream lives. ``path`` is the prefix of every target, without a slash at its end."""

    tls: bool
    host: str
    port: int
    authority: bytes
    path: bytes


def parse_address(url: str) -> Address:
    """Split a backend's root url.

    Raises:
        ValueError: not http(s), no host, or credentials, query or fragment in it.
    """
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("a backend url must not hold credentials, a query or a fragment; credentials go to api_key")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"expected http://host:port or https://host:port as a backend url, came {url!r}")
    path = parts.path.rstrip("/").encode("ascii")
    if path.translate(None, VISIBLE):
        raise ValueError(f"expected a backend url without spaces or control characters, came {url!r}")
    host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode("ascii")
    default = 443 if parts.scheme == "https" else 80
    port = parts.port or default
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port == default else f"{shown}:{port}"
    return Address(parts.scheme == "https", host, port, authority.encode("ascii"), path)


class Heads:
    """Renders the heads of requests to one upstream."""

    __slots__ = ("_fixed", "_path", "_posts")

    def __init__(self, authority: bytes, path: bytes, headers: Headers) -> None:
        """Render what all of them have.

        Args:
            authority: for ``host``.
            path: put before each target.
            headers: that every request carries.

        Raises:
            ValueError: these headers would break the framing.
        """
        if _breaks(authority):
            raise ValueError(f"expected a host without CR, LF or NUL, came {authority[:80]!r}")
        self._path = path
        self._fixed = b"host: %b\r\n" % authority + _rendered(headers)
        self._posts: dict[bytes, bytes] = {}  # by target, bounded, since clients choose targets

    def render(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> bytes:
        """Render a head, with a short body already behind it.

        A length is written for every body, and for an empty one of a method that usually has one (RFC 9110 §8.6).
        """
        if method == b"POST":
            start = self._posts.get(target)
            if start is None:
                start = self._remember(target)
        else:
            start = self._start(method, target)
        lines, length = _rendered(headers), len(body)
        if length or method not in _BODILESS:
            along = body if length <= SHORT else b""
            return b"%bcontent-length: %d\r\n%b\r\n%b" % (start, length, lines, along)
        return b"%b%b\r\n" % (start, lines)

    def _remember(self, target: bytes) -> bytes:
        start = self._start(b"POST", target)
        if len(start) <= _LONGEST_START:
            if len(self._posts) >= MOST_STARTS:
                self._posts.clear()
            self._posts[target] = start
        return start

    def _start(self, method: bytes, target: bytes) -> bytes:
        if not method or not target or method.translate(None, TOKEN) or target.translate(None, VISIBLE):
            shown = target[:80]
            raise ValueError(f"expected a method and a target without spaces or controls, came {method!r} {shown!r}")
        return b"%b %b%b HTTP/1.1\r\n%b" % (method, self._path, target, self._fixed)


def _rendered(headers: Headers) -> bytes:
    """Give header lines.

    Values are checked together: this is on the hot path.
    """
    if isinstance(headers, Lines):
        names, values = headers.names, headers.values
    else:
        names = tuple([name for name, _ in headers])
        values = [value for _, value in headers]
    row = _rows.get(names)
    if row is None:
        row = _row_of(names)
    if _breaks(b"".join(values)):
        at_fault = [name for name, value in zip(names, values, strict=True) if _breaks(value)]
        raise ValueError(f"expected header values without CR, LF or NUL; at fault: {at_fault!r}")
    return row % tuple(values)


def _breaks(text: bytes) -> bool:
    return _LF in text or _CR in text or _NUL in text


def _row_of(names: tuple[bytes, ...]) -> bytes:
    for name in names:
        if not name or name.translate(None, TOKEN):
            raise ValueError(f"expected a header name that is a token, came {name[:80]!r}")
        if name.lower() in FRAMING:
            raise ValueError(f"{name!r} is written by the upstream client and cannot be passed")
    row = b"".join([name.replace(b"%", b"%%") + b": %b\r\n" for name in names])
    if sum(map(len, names)) <= _LONGEST_ROW:
        if len(_rows) >= _MOST_ROWS:
            _rows.clear()
        _rows[names] = row
    return row
