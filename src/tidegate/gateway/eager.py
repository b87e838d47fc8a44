"""A task that begins at once, within the callback that makes it, and waits for the loop only where it has to.

Between the bytes of a request and its first wait nothing needs a turn of the loop, and a refusal never waits at all. As
an ordinary task it would begin a turn later, behind everything that has come for others by then.

Python has this from 3.12 on (``asyncio.eager_task_factory``); here it is for 3.11 too, with the two functions that
asyncio offers to other makers of tasks (see "Extending" in its documentation).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any


def begin(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run a coroutine up to its first wait, or to its end; return the task that it is.

    It is the current task meanwhile, so that it can be cancelled and use time-outs as any other. One that has ended is
    done a turn later.
    """
    begun, context = _Begun(coroutine), contextvars.copy_context()
    task: asyncio.Task[None] = asyncio.Task(begun, loop=loop, context=context)
    outer = asyncio.current_task(loop)
    if outer is not None:
        asyncio._leave_task(loop, outer)
    asyncio._enter_task(loop, task)
    try:
        context.run(begun.start)
    finally:
        asyncio._leave_task(loop, task)
        if outer is not None:
            asyncio._enter_task(loop, outer)
    return task


class _Begun(Coroutine[Any, Any, None]):
    """What its task sees of a coroutine whose first step is taken before the task asks for it."""

    __slots__ = ("_ahead", "_coroutine", "_end", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._ahead = False  # a step further than the task knows
        self._waits_for: asyncio.Future[Any] | None = None
        self._end: BaseException | None = None

    def start(self) -> None:
        """Take the first step."""
        self._ahead = True
        try:
            self._waits_for = self._coroutine.send(None)
        except StopIteration:
            self._end = StopIteration()
        except BaseException as error:  # noqa: BLE001 - for the task to raise
            self._end = error

    def send(self, value: Any) -> Any:
        """Tell how the first step ended, then take the others."""
        if not self._ahead:
            return self._coroutine.send(value)
        if self._end is None:
            self._ahead = False
            waits_for, self._waits_for = self._waits_for, None
            return waits_for
        return self._catch_up()

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:  # noqa: ARG002
        """Raise an error where it waits; where it has ended there is nothing left to cancel."""
        waits_for = self._catch_up() if self._ahead else None
        if waits_for is not None:
            waits_for.cancel()  # as its task does with what it knows to wait for
        return self._coroutine.throw(kind if value is None else value)

    def close(self) -> None:
        """End it without another step."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()

    def _catch_up(self) -> asyncio.Future[Any] | None:
        self._ahead = False
        waits_for, self._waits_for = self._waits_for, None
        end, self._end = self._end, None
        if end is not None:
            raise end
        return waits_for
