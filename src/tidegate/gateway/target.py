"""What a request's target says: its path and its query. Clients ask for the same few again and again."""

from __future__ import annotations

from urllib.parse import unquote

from httptools import parse_url

MOST, LONGEST = 256, 256
"""Targets that are remembered, and the bytes of the longest that is: clients choose them."""

Target = tuple[str, bytes, bytes]
"""The path, the path as it came, and the query."""

known: dict[bytes, Target] = {}
"""Those that are remembered, for callers that cannot spare a call."""


def read_target(url: bytes) -> Target:
    """Take a target apart, and remember it. Raises ``HttpParserInvalidURLError``."""
    parsed = parse_url(url)
    path = parsed.path.decode("ascii")
    target = unquote(path) if "%" in path else path, parsed.path, parsed.query or b""
    if len(url) <= LONGEST:
        if len(known) >= MOST:
            known.clear()
        known[url] = target
    return target
