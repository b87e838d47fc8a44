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
_MOST_NAMES = 1024
_passed_names: set[bytes] = set()
"""Header names that have passed the check, so that it is made once for each; bounded, since clients choose names."""


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
    return _rendered([b"host: ", authority, b"\r\n"], 1, headers)


def request_head(method: bytes, target: bytes, fixed: bytes, headers: Headers, body_length: int) -> bytes:
    """Render a request head; ``fixed`` comes from ``fixed_lines``.

    A length is written for every body, and for an empty one of a method that usually has one (RFC 9110 §8.6).
    """
    if not method or not target or method.translate(None, TOKEN) or target.translate(None, VISIBLE):
        raise ValueError(f"expected a method and a target without spaces or controls, came {method!r} {target[:80]!r}")
    if body_length or method not in _BODILESS:
        start = [method, b" ", target, b" HTTP/1.1\r\n", fixed, b"content-length: ", b"%d" % body_length, b"\r\n"]
        lines = 2
    else:
        start = [method, b" ", target, b" HTTP/1.1\r\n", fixed]
        lines = 1
    return _rendered(start, lines + fixed.count(b"\n"), headers) + b"\r\n"


def _rendered(parts: list[bytes], lines: int, headers: Headers) -> bytes:
    """Append header lines to ``parts``, which hold that many whole lines, and join.

    Values are checked together, by counting line breaks in what came out: this is on the hot path.
    """
    for name, value in headers:
        if name not in _passed_names:
            _check_name(name)
        parts += (name, b": ", value, b"\r\n")
    text = b"".join(parts)
    lines += len(headers)
    if text.count(b"\n") != lines or text.count(b"\r") != lines or b"\0" in text:
        at_fault = [name for name, value in headers if not {10, 13, 0}.isdisjoint(value)]
        raise ValueError(f"expected header values without CR, LF or NUL; at fault: {at_fault!r}")
    return text


def _check_name(name: bytes) -> None:
    if not name or name.translate(None, TOKEN):
        raise ValueError(f"expected a header name that is a token, came {name[:80]!r}")
    if name.lower() in FRAMING:
        raise ValueError(f"{name!r} is written by the upstream client and cannot be passed")
    if len(_passed_names) < _MOST_NAMES:
        _passed_names.add(name)
