"""What is done while a request waits for a seat: a large body goes to a file, a streaming client gets signs of life."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tidegate.gateway.asked import Asked
from tidegate.gateway.call import Call, Send
from tidegate.gateway.heartbeat import beating
from tidegate.gateway.spill import LARGE, Spill


async def waited(
    call: Call,
    asked: Asked,
    seat: Coroutine[Any, Any, object],
    every_s: float | None,
    send: Send,
    *,
    spilling: bool = True,
) -> None:
    """Wait for a seat; with ``spilling`` a large body waits in a file meanwhile."""
    if every_s is None and (not spilling or len(asked.raw) <= LARGE):
        await seat
        return
    spill = Spill(asked)
    try:
        with beating(call, send, every_s):
            if spilling:
                spill.begin()
            await seat
        await spill.restore()
    finally:
        spill.close()
