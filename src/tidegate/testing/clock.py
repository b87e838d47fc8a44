"""Time that tests hold in their hands: a clock set by hand, and an event loop whose time jumps.

On the virtual loop an hour passes in as long as its callbacks take: when nothing is ready, the loop's time moves to
the next timer at once. Blocking calls are errors there, because they would block a real gateway for everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import time
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar
from unittest import mock

T = TypeVar("T")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class BlockingCallError(AssertionError):
    """Something blocked the event loop, or waits for what cannot come."""


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def utc_now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._now)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` (not negative) pass."""
        if seconds < 0:
            raise ValueError(f"expected a time of 0 s or more, got {seconds}")
        self._now += seconds


class LoopClock:
    """The time of an event loop as a clock; with a ``VirtualLoop`` it is virtual."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()

    def now(self) -> float:
        return self._loop.time()

    def utc_now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time())


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer it moves the time there."""

    def __init__(self, turn_limit_s: float) -> None:
        super().__init__()
        self.now = 0.0
        self._turn_limit_s = turn_limit_s
        self._turn_began = time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        used_s = time.thread_time() - self._turn_began
        self._turn_began = time.thread_time()
        if used_s > self._turn_limit_s:
            raise BlockingCallError(
                f"one turn of the loop used {used_s:.2f} s of CPU, more than {self._turn_limit_s} s"
            )
        ready = super().select(0)
        if not ready and timeout is None:
            raise BlockingCallError("every task waits and no timer is set: nothing can happen any more")
        if not ready and timeout:
            self.now += timeout
        self._turn_began = time.thread_time()
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time that starts at 0.

    Args:
        turn_limit_s: most CPU seconds that one turn may use before it counts as blocking.
    """

    def __init__(self, *, turn_limit_s: float = 6.0) -> None:
        self._virtual = _JumpingSelector(turn_limit_s)
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


@contextlib.contextmanager
def forbid_blocking() -> Iterator[None]:
    """Make the calls that usually block a loop raise ``BlockingCallError``: sleeping, connecting, looking up names."""

    def blocked(name: str) -> Any:
        def call(*_args: object, **_kwargs: object) -> NoReturn:
            raise BlockingCallError(f"{name} would block the event loop")

        return call

    with (
        mock.patch.object(time, "sleep", blocked("time.sleep")),
        mock.patch.object(socket.socket, "connect", blocked("socket.connect")),
        mock.patch.object(socket, "getaddrinfo", blocked("socket.getaddrinfo")),
        mock.patch.object(socket, "create_connection", blocked("socket.create_connection")),
    ):
        yield


def run_virtual(story: Coroutine[Any, Any, T]) -> T:
    """Run ``story`` on a fresh ``VirtualLoop`` with blocking calls forbidden, and return its result."""
    with forbid_blocking(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)
