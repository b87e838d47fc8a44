"""What answers requests: an ``Application``, or any of ASGI within ``Asgi``.

ASGI's dictionary of a request is made for those who want one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.gateway.cycle import Cycle

Scope = dict[str, Any]
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class Application:
    """Answers the requests of a server."""

    __slots__ = ()

    async def answer(self, cycle: Cycle) -> None:
        """Answer one."""
        raise NotImplementedError


class Asgi(Application):
    """An application of ASGI. One that needs a task of asyncio's is called by way of ``as_task``."""

    __slots__ = ("_app",)

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def answer(self, cycle: Cycle) -> None:
        """Have it answered."""
        await self._app(cycle.scope(), cycle.receive, cycle.send)


def as_task(app: AsgiApp) -> AsgiApp:
    """Have an application run as a task of asyncio's, which libraries as anyio ask for more than ``EagerTask`` has."""

    async def run(scope: Scope, receive: Any, send: Any) -> None:
        fault = await asyncio.ensure_future(_ended(app(scope, receive, send)))  # cancelled with whoever waits for it
        if fault is not None:
            raise fault

    return run


async def _ended(answering: Awaitable[None]) -> BaseException | None:
    """Wait for its end; give what a task of asyncio's would end the loop with, and so all other requests."""
    try:
        await answering
    except (SystemExit, KeyboardInterrupt) as fault:
        return fault
    return None
