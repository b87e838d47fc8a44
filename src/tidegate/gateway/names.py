"""Names of headers and methods as they are asked for. Clients send the same few again and again, and all keep one."""

from __future__ import annotations

from typing import Final

from tidegate.classify import RawHeaders

MOST, LONGEST = 512, 64
"""Names that are remembered, and the bytes of the longest that is: clients choose them."""

known: Final[dict[bytes, bytes]] = {}
"""Those that are remembered, each with its lower case."""

_methods: Final[dict[bytes, str]] = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE")}


def lowered(name: bytes) -> bytes:
    """Give a header's name in lower case, and remember it."""
    lower = known.get(name)
    if lower is None:
        lower = name.lower()
        if len(name) <= LONGEST:
            if len(known) >= MOST:
                known.clear()
            known[name] = lower
    return lower


def method_of(name: bytes) -> str:
    """Give a method's name as text."""
    return _methods.get(name) or name.decode("ascii")


def wants_leave(headers: RawHeaders) -> bool:
    """Whether a client waits for leave to send its body."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
