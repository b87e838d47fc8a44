"""Speak to upstreams: a lean HTTP/1.1 client, and the table of engine kinds.

Why our own client: ``docs/decisions/0002-own-upstream-client.md``.
"""

from __future__ import annotations

from tidegate.backends.engines import ENGINES, EngineKind, PrioritySign, Reuse, stream_error
from tidegate.backends.errors import BackendError, Broken, Overloaded, ProtocolError, TimedOut, Unavailable
from tidegate.backends.response import Response
from tidegate.backends.upstream import Counters, Upstream
from tidegate.backends.wire import FRAMING, HOP_BY_HOP

__all__ = [
    "ENGINES",
    "FRAMING",
    "HOP_BY_HOP",
    "BackendError",
    "Broken",
    "Counters",
    "EngineKind",
    "Overloaded",
    "PrioritySign",
    "ProtocolError",
    "Response",
    "Reuse",
    "TimedOut",
    "Unavailable",
    "Upstream",
    "stream_error",
]
