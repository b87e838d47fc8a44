"""What a connection leaves behind that was given up while it was made, on both event loops: nothing."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from tidegate.backends import Unavailable, Upstream
from tidegate.backends.connection import Connection

TURNS = 12
"""Of the loop; a connection on the loopback address is made in fewer."""

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])


def run(new_loop: Any, story: Coroutine[Any, Any, None], *, collects: bool = False) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        gc.collect()
        before = _connections()
        gc.disable()
        try:
            runner.run(story)
            if collects:
                gc.collect()
            assert _connections() <= before
        finally:
            gc.enable()


def _connections() -> set[int]:
    return {id(held) for held in gc.get_objects() if isinstance(held, Connection)}


@LOOPS
def test_a_request_cancelled_at_any_turn_of_the_loop_leaves_no_connection(new_loop: Any) -> None:
    async def story() -> None:
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", max_open=2)
        for turns in [*range(TURNS)] * 3:
            asking = asyncio.ensure_future(upstream.request(b"POST", b"/v1/x"))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError, Unavailable):  # the engine answers nothing
                await asking
            asking = None  # type: ignore[assignment]
            await asyncio.sleep(0.01)
            assert upstream.open == 0, turns
        await upstream.close()
        server.close()
        await server.wait_closed()

    run(new_loop, story(), collects=True)  # a cancelled task's traces hold their frames


@LOOPS
def test_a_connection_that_is_refused_leaves_nothing_to_the_collector(new_loop: Any) -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        upstream = Upstream(f"http://127.0.0.1:{port}")
        for _ in range(3):
            with suppress(Unavailable):
                await upstream.request(b"POST", b"/v1/x")
        await upstream.close()

    run(new_loop, story())
