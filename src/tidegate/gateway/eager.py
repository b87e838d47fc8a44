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
from typing import Any, Final

from tidegate.core.compiling import mypyc_attr

NAME: Final = "begun early"
"""Of each such task: to number them costs as much as to make them current."""

_task: Final = asyncio.Task
_copy: Final = contextvars.copy_context
_current: Final = asyncio.current_task
_enter: Final = asyncio._enter_task
_leave: Final = asyncio._leave_task


@mypyc_attr(free_list_len=1)
class Early(Coroutine[Any, Any, None]):
    """What its task sees of a coroutine whose first step is taken before the task asks for it.

    Attributes:
        waits_for: what the first step ended with, until the task knows.
        end: or how the coroutine ended in it.
    """

    __slots__ = ("_ahead", "_context", "_coroutine", "end", "waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._context = _copy()
        self._ahead = True  # a step further than the task knows
        self.waits_for: asyncio.Future[Any] | None = None
        self.end: BaseException | None = None

    def task(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Make the task that it is to be."""
        made: asyncio.Task[None] = _task(self, loop=loop, name=NAME, context=self._context)
        return made

    def begin(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        """Run the coroutine up to its first wait, or to its end.

        Its task is the current one meanwhile, so that it can be cancelled and use time-outs as any other. One that has
        ended is done a turn later.
        """
        outer = None
        try:
            _enter(loop, task)
        except RuntimeError:  # within another task, which is rare: to ask first would cost more
            outer = _current(loop)
            if outer is None:
                raise
            _leave(loop, outer)
            _enter(loop, task)
        try:
            self.waits_for = self._context.run(self._coroutine.send, None)
        except StopIteration:
            self.end = StopIteration()
        except BaseException as error:  # noqa: BLE001 - for the task to raise
            self.end = error
        finally:
            _leave(loop, task)
            if outer is not None:
                _enter(loop, outer)

    def send(self, value: Any) -> Any:
        """Tell how the first step ended, then take the others."""
        if not self._ahead:
            return self._coroutine.send(value)
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
        waits_for, self.waits_for = self.waits_for, None
        end, self.end = self.end, None
        if end is not None:
            raise end
        return waits_for
