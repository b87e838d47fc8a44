"""Signs of life for a streaming client that waits for a seat: comment lines, which every reader of events passes over.

They commit a status of 200, so that a later refusal comes as an event. For that reason they are off by default.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from tidegate.gateway.call import Call, Send

COMMENT = b": waiting\n\n"


@contextlib.contextmanager
def beating(call: Call, send: Send, every_s: float | None) -> Iterator[None]:
    """Send comments for as long as the block waits, the first one after ``every_s`` seconds; ``None``: none."""
    if every_s is None:
        yield
        return
    task = asyncio.get_running_loop().create_task(_beat(call, send, every_s))
    try:
        yield
    finally:
        task.cancel()  # it stands between two messages, or before one that waits for a slow client: nothing is cut


async def _beat(call: Call, send: Send, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        if not call.started:
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
            headers += [*call.headers(call.arrived), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            call.status = 200
        await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
