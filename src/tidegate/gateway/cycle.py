"""One request and its answer on a client's connection: what an application may receive and send.

Whatever the application sends, the bytes are one well-framed answer or the connection ends (RFC 9112 §6, §7.1); clients
of HTTP/1.0, who know no chunks, get an answer without a length up to the end of the connection. The head waits for the
first piece of the body, so that both are one write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Literal

from uvicorn.server import ServerState

from tidegate.classify import RawHeaders, Shown
from tidegate.core.compiling import mypyc_attr
from tidegate.gateway.application import Application, Scope
from tidegate.gateway.bare import draining
from tidegate.gateway.eager import EagerTask
from tidegate.gateway.flow import Bell, Flow
from tidegate.gateway.head import Plan, plan_of, rendered
from tidegate.gateway.link import Answer, ClientLink
from tidegate.gateway.target import Target

HIGH_WATER: Final = 65_536
"""Bytes of a body that wait for the application; with more, nothing is read for now."""

_log = logging.getLogger("uvicorn.error")

_NOTHING: Final[Mapping[str, Any]] = {"type": "http.disconnect"}
_FAULT: Final = b"Internal Server Error"
_FAULT_HEADERS: Final = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"%d" % len(_FAULT)),
]
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


class Peer:
    """A client's connection, as far as its requests need it.

    Attributes:
        transport, flow: it, and what it wants.
        server, client: addresses of both ends, where they are known.
        scheme: ``https`` or ``http``.
        server_state: what all connections of a server have in common.
        tasks: those of requests in progress, of all connections.
        shown: the key that it showed last.
    """

    __slots__ = ("client", "flow", "scheme", "server", "server_state", "shown", "tasks", "transport")

    def __init__(self, server_state: ServerState) -> None:
        self.server_state = server_state
        self.tasks: set[Any] = server_state.tasks
        self.transport: asyncio.Transport
        self.flow: Flow
        self.server: tuple[str, int | None] | None = None
        self.client: tuple[str, int] | None = None
        self.scheme: Literal["http", "https"] = "http"
        self.shown: Final = Shown()

    def answered(self) -> None:
        """Note that all of an answer has been sent."""
        raise NotImplementedError


@mypyc_attr(free_list_len=1)
class Cycle(Answer):
    """See the module docstring.

    Attributes:
        link: what the request knows of its connection.
        method, version, path, raw_path, query, headers: its head.
        transport, flow: the client's connection.
        disconnected: the client left: what is sent goes nowhere.
        keep_alive: the connection can carry another request after this one.
        waiting_for_100_continue: the client wants leave to send the body.
        more_body: of the request, there is more to come.
        message_event: rung when there is something to receive.
        response_started: the application has sent a head, though it may still wait here for the first piece.
        response_complete: all of the answer has been sent.
        task: that of the request, until it ends.
    """

    __slots__ = (
        "_chunked",
        "_head",
        "_left",
        "_old",
        "_peer",
        "_pieces",
        "_waits",
        "disconnected",
        "flow",
        "headers",
        "keep_alive",
        "link",
        "message_event",
        "method",
        "more_body",
        "path",
        "query",
        "raw_path",
        "response_complete",
        "response_started",
        "task",
        "transport",
        "version",
        "waiting_for_100_continue",
    )

    def __init__(
        self,
        peer: Peer,
        link: ClientLink,
        *,
        method: str,
        version: str,
        target: Target,
        headers: RawHeaders,
        keep_alive: bool,
        expects_leave: bool,
    ) -> None:
        super().__init__()
        self._peer: Peer | None = peer
        self.transport = peer.transport
        self.flow = peer.flow
        self.link = link
        self.method = method
        self.version = version
        self.path, self.raw_path, self.query = target
        self.headers = headers
        self.task: EagerTask | None = None
        self._old = version == "1.0"
        self.keep_alive = keep_alive and not self._old
        self.waiting_for_100_continue = expects_leave and not self._old  # RFC 9110 §10.1.1
        self.disconnected = False
        self.more_body = True
        self.message_event = Bell()
        self._pieces: list[bytes] = []
        self._waits = 0  # bytes in these pieces
        self.response_started = False
        self.response_complete = False
        self._chunked = False
        self._head = b""  # until it is written
        self._left: int | None = 0  # bytes of the body that are still to be sent; None: as many as come

    def begin(self, app: Application, loop: asyncio.AbstractEventLoop) -> None:
        """Have the application answer, which begins at once."""
        self.task = task = EagerTask(app.answer(self), loop, self.over)
        task.begin()
        peer = self._peer
        if peer is not None:  # it goes on
            peer.tasks.add(task)

    def over(self, error: BaseException | None) -> None:
        """Note that the application has ended; where it failed, the client gets a 500 or the connection ends.

        What is cancelled has been overtaken by the server's end, and is refused as what comes then.
        """
        try:
            if error is None:
                if not self.response_complete and not self.disconnected:
                    _log.error("ASGI callable returned without completing its response.")
                    self._fail()
            elif isinstance(error, asyncio.CancelledError):
                refusal = draining(self.link.named, self.link.request_id)
                self._fail(refusal.status, refusal.headers, refusal.body)
            else:
                _log.error("Exception in ASGI application\n", exc_info=error)
                self._fail()
        finally:
            peer, self._peer = self._peer, None
            task, self.task = self.task, None
            if peer is not None:
                peer.tasks.discard(task)

    def _fail(self, status: int = 500, headers: RawHeaders = _FAULT_HEADERS, body: bytes = _FAULT) -> None:
        if self.disconnected or self.response_complete:
            return
        if self.response_started and not self._head:
            self.transport.close()
            return
        self.keep_alive = False
        self.response_started = True
        self._begin(status, headers)
        self._body(body, more=False)

    def feed(self, body: bytes) -> None:
        """Take a piece of the request's body."""
        self._pieces.append(body)
        self._waits += len(body)
        self.message_event.set()

    @property
    def full(self) -> bool:
        """Whether so much of the body waits for the application that no more should be read for now."""
        return self._waits > HIGH_WATER and not self.response_complete

    def scope(self) -> Scope:
        """Give the request as ASGI has it, before it is answered. A request's ``link`` stands in its ``state``."""
        peer = self._peer
        assert peer is not None
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": self.version,
            "server": peer.server,
            "client": peer.client,
            "scheme": peer.scheme,
            "root_path": "",
            "headers": self.headers,
            "state": {"link": self.link},
            "method": self.method,
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query,
        }

    async def receive(self) -> Mapping[str, Any]:
        """Give what has come of the body, or wait for more; see the ASGI specification."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            bell = self.message_event
            if not bell.rung:
                await bell.wait()
            bell.rung = False
        if self.disconnected or self.response_complete:
            return _NOTHING
        return {"type": "http.request", "body": self._taken(), "more_body": self.more_body}

    def body_at_hand(self, most: int) -> bytes | None:
        """Give the whole body where it has come, and nothing of it was received before; ``None``: see ``receive``.

        Args:
            most: bytes of the longest that is given.
        """
        if self.more_body or self._waits > most or self.waiting_for_100_continue or self.disconnected:
            return None
        self.message_event.rung = False
        return self._taken()

    def _taken(self) -> bytes:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._waits = 0
        return body

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send head or body; see the ASGI specification. An application MUST NOT wait between the two.

        Raises:
            RuntimeError: this is no answer of HTTP/1.1, or not what its head has announced.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if not self.response_started:
            if kind != "http.response.start":
                raise RuntimeError(f"expected http.response.start, came {kind}")
            self._begin(message["status"], message.get("headers", ()))
            self.response_started = True
            self.waiting_for_100_continue = False
        elif self.response_complete or kind != "http.response.body":
            raise RuntimeError(f"expected a piece of an answer that is not complete, came {kind}")
        else:
            self._body(message.get("body", b""), more=message.get("more_body", False))

    def whole(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        """Send a whole answer at once; whether it was sent: ``send`` may have to wait for a client.

        Raises:
            RuntimeError: as ``send``.
        """
        peer = self._peer
        if self.response_started or self.disconnected or self.flow.write_paused or peer is None:
            return False
        pairs = [*peer.server_state.default_headers, *headers, (b"content-length", b"%d" % len(body))]
        plan, values = plan_of(pairs)
        bodiless = status == 204 or status == 304 or self.method == "HEAD"
        if self.keep_alive and not bodiless and not plan.connections:
            out = rendered(status, plan, values, body)
            self.response_started = True
            self.waiting_for_100_continue = False
            self.transport.write(out)
            self._complete()
        else:
            self._frame(status, plan, values)
            self.response_started = True
            self.waiting_for_100_continue = False
            self._body(body, more=False)
        return True

    def _begin(self, status: int, headers: Any) -> None:
        """Render the head."""
        peer = self._peer
        defaults = () if peer is None else peer.server_state.default_headers
        plan, values = plan_of([*defaults, *headers])
        self._frame(status, plan, values)

    def _frame(self, status: int, plan: Plan, values: tuple[bytes, ...]) -> None:
        """Render the head, and say how the body is framed."""
        length: int | None = None
        if plan.length is not None:
            value = values[plan.length]
            if not value.isdigit():
                raise RuntimeError("expected one content-length, of digits")
            length = int(value)
        ends = False
        for place in plan.connections:
            ends = ends or b"close" in values[place].lower()
        without_body = status == 204 or status == 304 or self.method == "HEAD"
        self._chunked = length is None and not without_body and not self._old
        framing = b""
        if self._chunked:
            framing = b"transfer-encoding: chunked\r\n"
        elif length is None and not without_body:
            self.keep_alive = False
        self.keep_alive = self.keep_alive and not ends
        if not self.keep_alive and not ends:
            framing += b"connection: close\r\n"
        head = rendered(status, plan, values, b"")
        self._head = head[:-2] + framing + b"\r\n" if framing else head
        self._left = 0 if without_body else length

    def _body(self, body: bytes, *, more: bool) -> None:
        """Write a piece, and end the answer if it is the last."""
        out = self._head
        if self._chunked:
            if body:
                out += b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                out += b"0\r\n\r\n"
        elif self.method != "HEAD":
            if self._left is not None:
                self._left -= len(body)
                if self._left < 0 or (self._left and not more):
                    raise RuntimeError("expected a body of the length that its head announced")
            out = out + body if out else body
        self._head = b""
        if out:
            self.transport.write(out)
        self.flowing = more and self._chunked
        if not more:
            self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive and not self.more_body:
            self.transport.close()
        if self._peer is not None:
            self._peer.answered()
