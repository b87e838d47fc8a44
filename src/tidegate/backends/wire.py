"""Bytes of a request head and the parts of an upstream's address: pure functions, no socket.

Invariant: whatever callers pass, the head has exactly the lines meant. Values with CR, LF or NUL, names that are
no tokens, and headers that frame the message (which are ours to write) raise ``ValueError`` (RFC 9112 §2.2, §6).
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

Headers = Sequence[tuple[bytes, bytes]]

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


_BODILESS = frozenset({b"GET", b"HEAD", b"DELETE"})
_BREAKS = b"\r\n\0"
_MOST_ROWS = 1024
_LONGEST_ROW = 1024
_rows: dict[tuple[bytes, ...], bytes] = {}
"""What ``%`` makes header lines of, by names that have passed the check, so that it is made once for each row of them;
bounded in number and length, since clients choose names."""

_MOST_STARTS = 256
_starts: dict[tuple[bytes, bytes, bytes], bytes] = {}
"""First lines of requests that have passed the check, by method, target and fixed lines; bounded likewise."""


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


def fixed_lines(authority: bytes, headers: Headers) -> bytes:
    """Render the header lines that every request to one upstream carries."""
    if not {10, 13, 0}.isdisjoint(authority):
        raise ValueError(f"expected a host without CR, LF or NUL, came {authority[:80]!r}")
    return b"host: %b\r\n" % authority + _rendered(headers)


def request_head(method: bytes, target: bytes, fixed: bytes, headers: Headers, body_length: int) -> bytes:
    """Render a request head; ``fixed`` comes from ``fixed_lines``.

    A length is written for every body, and for an empty one of a method that usually has one (RFC 9110 §8.6).
    """
    start = _starts.get((method, target, fixed)) or _start_of(method, target, fixed)
    if body_length or method not in _BODILESS:
        return b"%bcontent-length: %d\r\n%b\r\n" % (start, body_length, _rendered(headers))
    return b"%b%b\r\n" % (start, _rendered(headers))


def _start_of(method: bytes, target: bytes, fixed: bytes) -> bytes:
    if not method or not target or method.translate(None, TOKEN) or target.translate(None, VISIBLE):
        raise ValueError(f"expected a method and a target without spaces or controls, came {method!r} {target[:80]!r}")
    start = b"%b %b HTTP/1.1\r\n%b" % (method, target, fixed)
    if len(start) <= _LONGEST_ROW:
        if len(_starts) >= _MOST_STARTS:
            _starts.clear()
        _starts[method, target, fixed] = start
    return start


def _rendered(headers: Headers) -> bytes:
    """Give header lines.

    Values are checked together, by counting what may break a line in what came out: this is on the hot path.
    """
    names, values = zip(*headers, strict=True) if headers else ((), ())
    text = (_rows.get(names) or _row_of(names)) % values
    if len(text) - len(text.translate(None, _BREAKS)) != 2 * len(names):
        at_fault = [name for name, value in headers if not {10, 13, 0}.isdisjoint(value)]
        raise ValueError(f"expected header values without CR, LF or NUL; at fault: {at_fault!r}")
    return text


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
