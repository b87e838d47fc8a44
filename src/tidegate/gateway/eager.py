"""A task that begins at once, within the callback that makes it, and waits for the loop only where it has to.

Between the bytes of a request and its first wait nothing needs a turn of the loop, and a refusal never waits at all. As
an ordinary task it would begin a turn later, behind everything that has come for others by then.

Python has this from 3.12 on (``asyncio.eager_task_factory``), but to make a task of asyncio's is a sixteenth of what a
plain request costs: it is a future that nobody awaits, in a set of weak references that nobody reads. This one is what
asyncio allows other makers of tasks (see "Extending" in its documentation): it can be cancelled, and is the current one
in its steps, so that time-outs work. Libraries that want more of their task (anyio) run within one, see ``as_task``.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from tidegate.core.compiling import mypyc_attr

_END: Final = object()

_copy: Final = contextvars.copy_context
_current: Final = asyncio.current_task
_enter: Final[Any] = asyncio._enter_task
_leave: Final[Any] = asyncio._leave_task
_next: Final[Any] = next


@mypyc_attr(free_list_len=1)
class EagerTask:
    """Runs a coroutine, and tells ``over`` how it ended as a part of its last step. Methods as in ``asyncio.Task``."""

    __slots__ = ("_cancels", "_context", "_coroutine", "_loop", "_must_cancel", "_over", "_steps", "_waits_for")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        over: Callable[[BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._over = over
        self._context = _copy()
        self._coroutine: Coroutine[Any, Any, None] | None = coroutine  # None once it has ended
        self._steps: Iterator[Any] = coroutine.__await__()
        self._waits_for: asyncio.Future[Any] | None = None
        self._must_cancel = False  # with the next step
        self._cancels = 0

    def begin(self) -> None:
        """Run the coroutine up to its first wait, or to its end."""
        loop = self._loop
        try:
            _enter(loop, self)
        except RuntimeError:  # within another task, which is rare: to ask first would cost more
            self._begin_within(_current(loop))
            return
        try:
            self._step(first=True)
        finally:
            _leave(loop, self)

    def _begin_within(self, outer: asyncio.Task[Any] | None) -> None:
        if outer is None:
            raise RuntimeError("expected to begin in the loop that runs")
        loop = self._loop
        _leave(loop, outer)
        try:
            self.begin()
        finally:
            _enter(loop, outer)

    def done(self) -> bool:
        """Whether it has ended."""
        return self._coroutine is None

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - nobody is told it
        """Raise ``CancelledError`` where it waits; whether there is anything left to cancel."""
        if self._coroutine is None:
            return False
        self._cancels += 1
        waits_for = self._waits_for
        if waits_for is None or not waits_for.cancel():
            self._must_cancel = True
        return True

    def cancelling(self) -> int:
        """How often it has been cancelled, but for what was taken back."""
        return self._cancels

    def uncancel(self) -> int:
        """Take one back."""
        if self._cancels:
            self._cancels -= 1
            if not self._cancels:
                self._must_cancel = False
        return self._cancels

    def _go_on(self, _waited_for: object = None) -> None:
        """Go on in its own context, called by the loop."""
        self._waits_for = None
        loop = self._loop
        _enter(loop, self)
        try:
            self._step(first=False)
        finally:
            _leave(loop, self)

    def _fail(self, fault: BaseException) -> None:
        """Go on as ``_go_on``, with an error."""
        loop = self._loop
        _enter(loop, self)
        try:
            self._step(first=False, fault=fault)
        finally:
            _leave(loop, self)

    def _thrown(self, fault: BaseException | None) -> Any:
        coroutine = self._coroutine
        assert coroutine is not None
        if self._must_cancel or fault is None:
            self._must_cancel = False
            return coroutine.throw(asyncio.CancelledError())  # no name for it, which would be a cycle with its trace
        return coroutine.throw(fault)

    def _step(self, *, first: bool, fault: BaseException | None = None) -> None:
        try:
            if self._must_cancel or fault is not None:
                waits_for = self._thrown(fault)
            elif first:
                waits_for = self._context.run(_next, self._steps, _END)
            else:  # ``next``, not ``send``, whose end would be an exception with a trace
                waits_for = _next(self._steps, _END)  # what came of it, the future tells who awaits it
        except StopIteration:
            waits_for = _END
        except BaseException as error:  # noqa: BLE001 - nobody awaits this
            self._coroutine = None
            self._over(error)
            return
        if waits_for is _END:
            self._coroutine = None
            self._over(None)
        elif waits_for is None:
            self._loop.call_soon(self._go_on, context=self._context)
        else:
            try:
                waits_for._asyncio_future_blocking = False
            except AttributeError:
                fault = RuntimeError(f"expected to wait for a future, got {waits_for!r}")
                self._loop.call_soon(self._fail, fault, context=self._context)
                return
            self._waits_for = waits_for
            waits_for.add_done_callback(self._go_on, context=self._context)
            if self._must_cancel and waits_for.cancel():  # cancelled within this step
                self._must_cancel = False
