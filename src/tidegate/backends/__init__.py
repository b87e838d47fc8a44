"""Speak to upstreams: a lean HTTP/1.1 client, the table of engine kinds, what engines show of themselves, and health.

Why our own client: ``docs/decisions/0002-own-upstream-client.md``.
"""

from __future__ import annotations

from tidegate.backends.engine_signals import SIGNALS, MetricNames
from tidegate.backends.engines import ENGINES, EngineKind, PrioritySign, Reuse, stream_error
from tidegate.backends.errors import BackendError, Broken, Overloaded, ProtocolError, TimedOut, Unavailable
from tidegate.backends.health import BackendHealth, HealthRules, Standing
from tidegate.backends.poller import Page, Poller, page_root
from tidegate.backends.prober import Prober
from tidegate.backends.rate_limits import pause_s, rate_limit, tells_limits
from tidegate.backends.response import Response
from tidegate.backends.trust import tls_context
from tidegate.backends.upstream import Counters, Upstream
from tidegate.backends.wire import FRAMING, HOP_BY_HOP, Lines
from tidegate.backends.wire import Headers as HeaderLines

__all__ = [
    "ENGINES",
    "FRAMING",
    "HOP_BY_HOP",
    "SIGNALS",
    "BackendError",
    "BackendHealth",
    "Broken",
    "Counters",
    "EngineKind",
    "HeaderLines",
    "HealthRules",
    "Lines",
    "MetricNames",
    "Overloaded",
    "Page",
    "Poller",
    "PrioritySign",
    "Prober",
    "ProtocolError",
    "Response",
    "Reuse",
    "Standing",
    "TimedOut",
    "Unavailable",
    "Upstream",
    "page_root",
    "pause_s",
    "rate_limit",
    "stream_error",
    "tells_limits",
    "tls_context",
]
