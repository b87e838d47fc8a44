"""Watch how late the event loop is: the one sign that something on it blocks."""

from __future__ import annotations

import asyncio

from tidegate.runtime.clock import Clock
from tidegate.telemetry import Recorder

EVERY_S = 0.02
"""A stall is seen but for the part of this that it falls into; fifty wake-ups a second use 0.03 % of a core."""


class StallMonitor:
    """Sets a timer again and again and tells the recorder how late it came."""

    def __init__(self, clock: Clock, recorder: Recorder) -> None:
        self._clock = clock
        self._recorder = recorder
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = self._clock.now() + EVERY_S
        self._timer = loop.call_later(EVERY_S, self._look, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now, due = self._clock.now(), self._due
        self.start(loop)  # first: a fault is not the end of it
        self._recorder.loop_stall.note(now, max(0.0, now - due))
