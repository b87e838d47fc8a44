"""What all connections of one upstream stand on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from tidegate.backends.engines import Reuse


class Limits:
    """Bounds of one connection; durations in seconds, None is unlimited, sizes in bytes.

    Attributes:
        shortest_s: the shorter of the two durations.
        always: a connection may carry another request after every complete response.
    """

    __slots__ = ("always", "head_timeout_s", "high_water", "max_head", "shortest_s", "silence_timeout_s")

    def __init__(
        self,
        head_timeout_s: float | None,
        silence_timeout_s: float | None,
        *,
        max_head: int,
        high_water: int,
        reuse: Reuse,
    ) -> None:
        self.head_timeout_s = head_timeout_s
        self.silence_timeout_s = silence_timeout_s
        set_limits = [limit for limit in (head_timeout_s, silence_timeout_s) if limit is not None]
        self.shortest_s: float | None = min(set_limits, default=None)
        self.max_head = max_head
        self.high_water = high_water
        self.always = reuse is Reuse.ALWAYS


class Ground:
    """An event loop, with those of its functions at hand that every request calls.

    Attributes:
        loop: the event loop.
        time: its time in seconds.
        create_future: what a task of it can wait for.
    """

    __slots__ = ("create_future", "loop", "time")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.time: Callable[[], float] = loop.time
        self.create_future: Callable[[], asyncio.Future[Any]] = loop.create_future


def probe_when_silent(sock: socket.socket | None) -> None:
    """Have the kernel find out within half a minute that a host is gone: a stream may be silent for long."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
