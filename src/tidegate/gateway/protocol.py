"""The client's side of a connection: uvicorn's HTTP/1.1 protocol with bounds and with news of a client that leaves.

uvicorn tells an application about a disconnect only when it asks (``receive``), which would cost a task for each
request, and it puts no bound on headers, on slow senders or on readers that stop. This subclass adds:

* ``ClientLink``: one small object for each request, called from ``connection_lost`` whatever the request waits for;
* one ``deadline`` for each connection instead of timers, looked at by one sweep a second for all (``sweep``);
* OpenAI-shaped answers for what never becomes a request (not HTTP, head too large, too slow, too many connections);
* an offer to change the protocol (``Upgrade``) is ignored, as RFC 9110 §7.8 allows, and its body is read;
* no chunks for clients of HTTP/1.0, who do not know them: an answer without a length ends with the connection;
* head and first piece of an answer in one write: a system call less, which is a tenth of a short answer's cost;
* no pipelining: while a request runs, later bytes of its connection are dropped and the connection ends with the
  answer. Pausing the read side instead, as uvicorn does, would hide that the client left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tidegate.gateway.bare import bare_answer
from tidegate.gateway.flow import Bell, Flow
from tidegate.gateway.link import ClientLink, HeadJoiner, OldClientSender

SPARE = 100
"""Connections beyond the limit that are still told why they are refused."""

LINGER_S = 2.0
"""How long a client may go on sending a request that has been refused."""


@dataclass(slots=True, frozen=True)
class Limits:
    """Bounds of one client connection. Times in seconds, sizes in bytes.

    Attributes:
        max_connections: connections of all clients; the next one is told so and closed.
        max_head: request line and headers.
        head_timeout_s: from a request's first byte to the end of its headers.
        body_stall_s: longest gap between two pieces of a request body.
        write_stall_s: how long a client may leave its answer unread before its connection is cut.
        keep_alive_s: idle time between two requests. Longer than the 5 s after which common clients stop reusing a
            connection, so that they never send into one that is being closed.
    """

    max_connections: int = 20_000
    max_head: int = 65_536
    head_timeout_s: float = 10.0
    body_stall_s: float = 30.0
    write_stall_s: float = 30.0
    keep_alive_s: float = 75.0


_VERSIONS = ("1.1", "1.0")


class _HeadRefusedError(HttpParserError):
    """Raised inside the parser to stop it; ``_fault`` says why."""


class ClientProtocol(HttpToolsProtocol):
    """See the module docstring. ``limits`` is set on a subclass by ``client_protocol``.

    What it adds to uvicorn's thirty attributes stands in slots: a dictionary of more than thirty names is not shared
    between instances (CPython 3.11), which would be 1.3 KB for each connection.
    """

    __slots__ = (
        "_beside",
        "_body_open",
        "_chunk",
        "_deaf",
        "_dropping",
        "_fault",
        "_fed",
        "_head_bytes",
        "_head_open",
        "_joiner",
        "_offer",
        "deadline",
        "link",
        "stalled_since",
    )

    limits = Limits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.pipeline = ()  # type: ignore[assignment]  # nothing is ever put there, see above
        self.deadline = inf
        self.stalled_since = inf
        self.link: ClientLink | None = None
        self._joiner: HeadJoiner | None = None
        self._head_open = False
        self._head_bytes = 0
        self._body_open = False
        self._beside = 0
        self._fed = False
        self._chunk = 0
        self._dropping = False
        self._deaf = False
        self._fault = (400, "bad_request", "")
        self._offer: tuple[bytes, str] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        self.deadline = self.loop.time() + self.limits.keep_alive_s
        most = self.limits.max_connections
        if len(self.connections) > most + SPARE:
            transport.abort()
        elif len(self.connections) > most:
            self._refuse(503, "too_many_connections", f"All {most} connections (gateway.max_connections) are taken.")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.deadline = self.stalled_since = inf
        link, self.link = self.link, None
        if link is not None:
            link.hang_up()
        self._let_go()

    def _let_go(self) -> None:
        """Leave nothing to the garbage collector, which would stop 5,000 streams for a tenth of a second.

        uvicorn's state of the request holds this object, and the joiner holds that state.
        """
        if self._joiner is not None:
            self.cycle.transport = self.transport
            self._joiner = None
        self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._dropping or self.transport.is_closing():
            return
        self._chunk = len(data)
        self._fed = False
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._body_open:
            self._beside = 0 if self._fed else self._beside + len(data)
            if self._beside > self.limits.max_head:  # a chunk's extension or a trailer without end
                self._refuse(431, "too_large", self._head_message())
        elif self._head_open:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_head:
                self._refuse(431, "too_large", self._head_message())

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as stop:
            if not self._dropping:
                self._ignore_offer(data[stop.args[0] :])
        except HttpParserError:
            self.send_400_response("")

    def _ignore_offer(self, rest: bytes) -> None:
        """Read a request that offers another protocol once more, without the offer.

        The parser holds that the other protocol begins behind the head, and cannot be told otherwise: it would take
        the body for the next request. ``rest`` is what came behind the head.
        """
        assert self._offer is not None
        (method, version), self._offer = self._offer, None
        headers = [(name, value) for name, value in self.headers if name != b"upgrade"]
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode()), *(b"%b: %b" % pair for pair in headers)]
        if any(b"\r" in line or b"\n" in line for line in lines):
            self.send_400_response("")
            return
        head = b"\r\n".join((*lines, b"", b""))
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._chunk = len(head) + len(rest)
        self._parse(head + rest)

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            self._dropping = True
            return
        super().on_message_begin()
        self._head_open = True
        self._head_bytes = 0
        self.deadline = self.loop.time() + self.limits.head_timeout_s
        self.link = ClientLink(self.transport, self.flow)
        self.scope["state"]["link"] = self.link

    def on_url(self, url: bytes) -> None:
        if not self._dropping:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_open:  # not those behind a body: what they say comes too late to be judged
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._dropping:
            return
        self._head_open = False
        if self.parser.get_http_version() not in _VERSIONS:
            self._fault = (400, "bad_request", "Expected HTTP/1.1 or HTTP/1.0, got another version.")
            raise _HeadRefusedError
        if self._head_bytes + self._chunk > self.limits.max_head and self._head_size() > self.limits.max_head:
            self._fault = (431, "too_large", self._head_message())
            raise _HeadRefusedError
        if self.parser.should_upgrade():
            self._offered()
            return
        self._body_open = True
        self._beside = 0
        self.deadline = self.loop.time() + self.limits.body_stall_s
        super().on_headers_complete()
        self.cycle.message_event = Bell()  # type: ignore[assignment]
        if self.link is not None:
            self.link.cycle = self.cycle
        self._joiner = HeadJoiner(self.transport, self.cycle)
        self.cycle.transport = self._joiner  # type: ignore[assignment]
        if self.parser.get_http_version() == "1.0":
            self.cycle.send = OldClientSender(self.cycle, self._joiner)  # type: ignore[method-assign]

    def _offered(self) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._fault = (400, "bad_request", "Expected a request of this server, got CONNECT: it is not a proxy.")
            raise _HeadRefusedError
        self._offer = method, self.parser.get_http_version()

    def on_body(self, body: bytes) -> None:
        if self._dropping:
            return
        self._fed = True
        self.deadline = self.loop.time() + self.limits.body_stall_s
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._dropping or self._offer is not None:
            return
        self.deadline = inf
        self._body_open = False
        super().on_message_complete()
        # A body that ended above the high-water mark has paused the read side; unpaused, a leaving client is seen.
        self.flow.resume_reading()

    def on_response_complete(self) -> None:
        link, self.link = self.link, None
        if self._joiner is not None:
            self._joiner.flush()
            self._joiner = None
        super().on_response_complete()
        if link is not None:
            link.cycle = None  # whose scope holds the link: nothing may be left to the collector, see ``GcPolicy``
            if link.last:
                self._linger()

    def pause_writing(self) -> None:
        self.stalled_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stalled_since = inf
        super().resume_writing()

    def check(self, now: float) -> None:
        """Cut the connection when its client is too slow. ``now`` is the event loop's time, seconds."""
        if now - self.stalled_since > self.limits.write_stall_s:
            self.transport.abort()
        elif now > self.deadline:
            self._too_slow()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's sentence is not for clients
        """Answer bytes that are no HTTP request; uvicorn calls this when its parser stops."""
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self.cycle.keep_alive = False  # garbage behind a request in progress: its answer goes on, then the end
            self._deaf = True
            return
        status, code, message = self._fault
        self._refuse(status, code, message or "Expected an HTTP/1.1 request; these bytes are not one.")

    def _linger(self) -> None:
        """End our side and throw away what the client still sends.

        Closing both sides while it sends would make the kernel reset the connection, and the reset may overtake the
        answer in the client's buffers.
        """
        if self.transport.is_closing():
            return
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self._deaf = True
        self.deadline = self.loop.time() + LINGER_S
        self.transport.write_eof()

    def _too_slow(self) -> None:
        self.deadline = inf
        if self._deaf:
            self.transport.abort()
        elif self._head_open or (self.cycle is not None and not self.cycle.response_started):
            self._refuse(408, "bad_request", "The request did not arrive in time.")
        else:
            self.transport.abort()

    def _in_progress(self, status: int) -> bool:
        """Hang up on a request whose answer is still to come; return whether a part of it has gone out already.

        If none has, the client gets ``status``.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        cycle.disconnected = True  # uvicorn drops what the application still sends
        cycle.waiting_for_100_continue = False  # nor may it write that behind the refusal
        cycle.message_event.set()
        link, self.link = self.link, None
        if link is not None:
            link.refused = 0 if cycle.response_started else status
            link.hang_up()
        return cycle.response_started

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _head_message(self) -> str:
        return f"The request line and headers are longer than {self.limits.max_head} bytes."

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Write a whole answer past the application and close. A request in progress learns it as a hang-up."""
        if self._deaf or self.transport.is_closing():  # deaf: it has been refused already
            return
        request_id = "" if self.link is None else self.link.request_id
        if self._in_progress(status):
            self.transport.abort()
            return
        self.transport.write(bare_answer(status, code, message, request_id=request_id))
        self._linger()


def client_protocol(limits: Limits) -> type[ClientProtocol]:
    """Give the protocol class for ``uvicorn.Config(http=...)`` that obeys ``limits``."""
    return type("BoundClientProtocol", (ClientProtocol,), {"limits": limits, "__slots__": ()})


def sweep(connections: Iterable[object], now: float) -> None:
    """Check every connection of a server once. About 0.1 µs each: 2 ms with 20,000 connections."""
    for connection in tuple(connections):
        if isinstance(connection, ClientProtocol):
            connection.check(now)
