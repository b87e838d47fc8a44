"""What a request asks for: path and query, of which clients send the same few again and again; leave to send a body."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from httptools import parse_url

from tidegate.classify import RawHeaders

MOST, LONGEST = 256, 256
"""Targets that are remembered, and the bytes of the longest that is: clients choose them."""

Target = tuple[str, bytes, bytes]
"""The path, the path as it came, and the query."""

known: Final[dict[bytes, Target]] = {}
"""Those that are remembered, for callers that cannot spare a call."""


def read_target(url: bytes) -> Target:
    """Take a target apart, and remember it. Raises ``HttpParserInvalidURLError``."""
    parsed: Any = parse_url(url)  # whose query may be None, against what its types say
    path: str = parsed.path.decode("ascii")
    target = unquote(path) if "%" in path else path, parsed.path, parsed.query or b""
    if len(url) <= LONGEST:
        if len(known) >= MOST:
            known.clear()
        known[url] = target
    return target


def wants_leave(headers: RawHeaders) -> bool:
    """Whether a client waits for leave to send its body."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
