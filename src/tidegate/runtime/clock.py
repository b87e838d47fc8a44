"""The only place of the live product that reads a clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Tells the time. ``now`` MUST never go backwards."""

    def now(self) -> float:
        """Seconds from one monotonic source."""
        ...

    def utc_now(self) -> datetime:
        """Wall-clock time in UTC, for logs and stored rows only."""
        ...


class SystemClock:
    """The machine's clocks.

    ``now`` is the monotonic clock and not ``loop.time()``: uvloop's loop time stands still during one turn of the
    loop and counts whole milliseconds, too coarse for waits of which most are below one.
    Both are the functions themselves, without a step in between: eight times in each request somebody asks.
    """

    __slots__ = ()

    now = staticmethod(time.monotonic)
    utc_now = staticmethod(partial(datetime.now, UTC))
