"""Names of headers in lower case, one object for all messages that have it: its hash is known, and it is kept once.

How many are kept is bounded, since who sends them chooses them.
"""

from __future__ import annotations

from typing import Final

_MOST: Final = 512
_LONGEST: Final = 64

known: Final[dict[bytes, bytes]] = {}
"""By what came. Where there is none, ask ``remember``."""


def remember(name: bytes) -> bytes:
    """Give a name in lower case, and keep it if it is short."""
    lower = name.lower()
    if len(name) <= _LONGEST:
        if len(known) >= _MOST:
            known.clear()
        lower = known.setdefault(lower, lower)  # one object for all ways to write it
        known[name] = lower
    return lower
