"""What a request's target says: its path and its query. Clients ask for the same few again and again."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from httptools import parse_url

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
