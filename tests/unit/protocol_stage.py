"""A client connection of the gateway with a fake transport: no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from tidegate.gateway.limits import Limits
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
        protocol = self.config.http_protocol_class(self.config, self.state, {})  # type: ignore[call-arg]
        assert isinstance(protocol, ClientProtocol)
        transport = FakeTransport()
        transport.protocol = protocol
        protocol.connection_made(transport)
        return protocol, transport
