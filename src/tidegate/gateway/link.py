"""What a request knows of its client's connection, and how its answer gets there.

``Link`` is what the rest of the gateway asks of it; rows of batch jobs have one too, with no connection behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_CONTINUE = b"HTTP/1.1 100 "
_CHUNKED = b"transfer-encoding: chunked\r\n"


class Link(Protocol):
    """One request's hold on its client.

    Attributes:
        gone: the client left.
        on_gone: called once when it does.
    """

    gone: bool
    on_gone: Callable[[], None] | None

    def pass_on(self, piece: bytes, chunk: bytes | None) -> bool:
        """Send a piece of a body now, if the client keeps up; whether it was sent. See ``ClientLink.pass_on``."""
        ...


class ClientLink:
    """One request's view of its connection: has the client left, whom to tell, and how to cut it.

    Attributes:
        gone: the client left.
        on_gone: called once when it does.
        last: end the connection after this answer, although the request has not been read to its end.
        request_id: what the application calls the request.
        cycle: uvicorn's state of the request, from the end of its head to the end of its answer.
        refused: status that the client got past the application, which is told that it left; 0: none.
    """

    __slots__ = ("_flow", "_transport", "cycle", "gone", "last", "on_gone", "refused", "request_id")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow
        self.cycle: RequestResponseCycle | None = None
        self.gone = False
        self.last = False
        self.request_id = ""
        self.refused = 0
        self.on_gone: Callable[[], None] | None = None

    def hang_up(self) -> None:
        """Note that the client left; tell the request once."""
        self.gone = True
        self.cycle = None
        callback, self.on_gone = self.on_gone, None
        if callback is not None:
            callback()

    def pass_on(self, piece: bytes, chunk: bytes | None) -> bool:
        """Send a piece of an answer that has begun, past the application's ``send``; whether it was sent.

        It is not where the client has yet to take what was sent, or where it gets no chunks (HTTP/1.0).

        Args:
            piece: content.
            chunk: the same with a chunk's framing, where that is at hand.
        """
        cycle = self.cycle
        if cycle is None or self._flow.write_paused or not cycle.chunked_encoding or cycle.disconnected:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunk is None else chunk)
        return True

    def cut(self) -> None:
        """Close the connection without finishing the answer (the client sees a broken transfer)."""
        self._transport.abort()


class HeadJoiner:
    """Stands in for the transport until an answer's head and first piece are there, and writes them together.

    An application MUST NOT wait between the two; ours and Starlette's plain answers do not. The head of an answer that
    has neither a length nor chunks (``unchunked``) loses what uvicorn says of chunks.
    """

    __slots__ = ("_cycle", "_head", "_transport", "unchunked")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle: RequestResponseCycle | None = cycle
        self._head = b""
        self.unchunked = False

    def write(self, data: bytes) -> None:
        """Keep the head; write it with what follows and step aside."""
        if not self._head and not data.startswith(_CONTINUE):
            self._head = data.replace(_CHUNKED, b"", 1) if self.unchunked else data
            return
        self._transport.write(self._head + data)
        self._head = b""
        if self._cycle is not None and not data.startswith(_CONTINUE):
            self._cycle.transport = self._transport
            self._cycle = None

    def flush(self) -> None:
        """Write a head without a body (HEAD, 204)."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Write what is kept, then close."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection ends."""
        return self._transport.is_closing()


class OldClientSender:
    """The ``send`` of a request of HTTP/1.0, whose client knows no chunks (RFC 9112 §7.1).

    An answer without a length ends with the connection; uvicorn would cut it into chunks all the same.
    """

    __slots__ = ("_cycle", "_joiner", "_uvicorn")

    def __init__(self, cycle: RequestResponseCycle, joiner: HeadJoiner) -> None:
        self._cycle = cycle
        self._joiner = joiner
        self._uvicorn = cycle.send

    async def __call__(self, message: Any) -> None:
        """See the ASGI specification."""
        cycle, joiner = self._cycle, self._joiner
        if message["type"] == "http.response.start" and cycle.scope["method"] != "HEAD":
            joiner.unchunked = all(name != b"content-length" for name, _ in message["headers"])
            if joiner.unchunked:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await self._uvicorn(message)
            if joiner.unchunked:
                cycle.chunked_encoding = False
        else:
            if joiner.unchunked:
                cycle.expected_content_length = len(message.get("body", b""))  # uvicorn counts it down to the end
            await self._uvicorn(message)
