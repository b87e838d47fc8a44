"""Send at the due moments, and ask on a fresh connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TypeVar

from tidegate.cli.load._client import Answer, Exchange

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Target:
    """Where requests go; ``tls`` is ``None`` for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


async def in_time(
    due: Iterable[tuple[float, T]], send: Callable[[T], Coroutine[None, None, None]], *, start: float, until: float
) -> None:
    """Start ``send`` for each item when it is due, stop ``until`` seconds after ``start``, abort what is open then.

    Args:
        due: seconds after ``start``, in order, and what is sent.
        send: runs until the answer is there; must not raise.
        start: a time of the loop.
        until: seconds after ``start``.
    """
    loop = asyncio.get_running_loop()
    open_: set[asyncio.Task[None]] = set()
    try:
        for at, item in due:
            if at >= until:
                break
            await asyncio.sleep(start + at - loop.time())
            task = asyncio.create_task(send(item))
            open_.add(task)
            task.add_done_callback(open_.discard)
        await asyncio.sleep(start + until - loop.time())
    finally:
        pending = list(open_)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def ask(target: Target, request: bytes, answer: Answer, *, due: float) -> None:
    """Send one request and write what comes back into ``answer``; ``due`` is a time of the loop."""
    loop = asyncio.get_running_loop()
    try:
        _, exchange = await loop.create_connection(
            lambda: Exchange(request, answer, lambda: loop.time() - due), target.host, target.port, ssl=target.tls
        )
    except OSError:
        answer.refused = "no_connection"
        return
    try:
        await exchange.done.wait()
    finally:
        exchange.leave()
