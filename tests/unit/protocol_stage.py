"""A client connection of the gateway with a fake transport: no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from tidegate.gateway.limits import Limits
from tidegate.gateway.link import ClientLink
from tidegate.gateway.protocol import ClientProtocol, client_protocol

App = Callable[[Any, Any, Any], Awaitable[None]]


class FakeTransport(asyncio.Transport):
    """Keeps what was written; closing tells the protocol at once, as a loop would a moment later."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.written = b""
        self.closed = False
        self.ended = False
        self.aborted = False
        self.reading = True
        self.pauses = 0
        self.protocol: ClientProtocol | None = None

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.ended:
            raise RuntimeError("write after write_eof")
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            assert self.protocol is not None
            self.protocol.connection_lost(None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def pause_reading(self) -> None:
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        self.reading = True


class Rig:
    """A server state shared by as many connections as a test opens."""

    def __init__(self, app: App, limits: Limits) -> None:
        self.config = uvicorn.Config(
            app, interface="asgi3", http=client_protocol(limits), ws="none", lifespan="off", log_config=None
        )
        self.config.load()
        self.state = ServerState()

    def connect(self) -> tuple[ClientProtocol, FakeTransport]:
        protocol: Any = self.config.http_protocol_class(self.config, self.state, {})  # type: ignore[call-arg]
        assert isinstance(protocol, ClientProtocol)
        transport = FakeTransport()
        transport.protocol = protocol
        protocol.connection_made(transport)
        return protocol, transport


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Read the whole body and answer its length."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    body = str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Held:
    """An application that never answers; it keeps the link of each request."""

    def __init__(self) -> None:
        self.links: list[ClientLink] = []
        self.left = 0

    def _count(self) -> None:
        self.left += 1

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        link: ClientLink = scope["state"]["link"]
        self.links.append(link)
        link.on_gone = self._count
        while not link.gone:  # noqa: ASYNC110  # the test turns the loop by hand
            await asyncio.sleep(0)


async def turn(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def answer(transport: FakeTransport) -> tuple[int, dict[str, Any]]:
    """Give status and error of an answer that the application has no part in; each carries what every answer does."""
    head, _, body = transport.written.partition(b"\r\n\r\n")
    headers = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert headers[b"x-request-id"].startswith(b"req-")
    assert (headers[b"x-tidegate-band"], headers[b"x-tidegate-queue-ms"]) == (b"none", b"0")
    assert headers[b"x-tidegate-reason"].decode() == json.loads(body)["error"]["code"]
    return int(head.split()[1]), json.loads(body)["error"]


GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
