"""The server in a loop that is not its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidegate.config import Address
from tidegate.gateway.limits import Limits
from tidegate.gateway.server import ClientServer

pytestmark = pytest.mark.anyio

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("waits", [False, True])
async def test_what_would_end_a_process_ends_one_request(error: BaseException, waits: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    server = ClientServer(app, address=Address("127.0.0.1", 0), limits=Limits())
    await server.start()
    host, port = server.url.removeprefix("http://").split(":")
    for _ in range(2):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(GET)
        assert (await reader.readline()).startswith(b"HTTP/1.1 500 ")
        writer.close()
    await server.stop()


async def test_its_end_waits_for_requests_that_it_cancels() -> None:
    ends: list[object] = []
    begun = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ends.append(asyncio.current_task())
            raise

    server = ClientServer(app, address=Address("127.0.0.1", 0), limits=Limits())
    await server.start()
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(GET)
    await begun.wait()
    await server.stop()
    assert [type(end) for end in ends] == [asyncio.Task]  # of asyncio's, for what is ASGI's
    assert not server.server_state.tasks
    assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
    writer.close()
