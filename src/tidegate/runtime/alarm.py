"""The driver's one timer: set to the earliest moment that anybody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate.runtime.clock import Clock

NEVER: Final = float("inf")


class Alarm:
    """Calls ``due`` once, at or a little before the moment it was set to; too early costs one empty tick.

    Attributes:
        at: when it will ring, ``NEVER`` before it is set and after it rang. The caller compares before it sets, because
            that is asked after every event.

    Args:
        clock: where ``now`` comes from.
        due: hears the time that counts as reached.
    """

    __slots__ = ("_clock", "_due", "_timer", "at")

    def __init__(self, clock: Clock, due: Callable[[float], None]) -> None:
        self._clock = clock
        self._due = due
        self._timer: asyncio.TimerHandle | None = None
        self.at = NEVER

    def set(self, at: float, loop: asyncio.AbstractEventLoop) -> None:
        """Ring at ``at`` instead of when it was set to."""
        if self._timer is not None:
            self._timer.cancel()
        self.at = at
        self._timer = loop.call_later(max(0.0, at - self._clock.now()), self._ring)

    def stop(self) -> None:
        """Do not ring any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        # Event loops fire up to a millisecond early. The moment that was waited for counts as reached, else the
        # core would find nothing due and the loop would spin until it is.
        now = max(self._clock.now(), self.at)
        self._timer = None
        self.at = NEVER
        self._due(now)
