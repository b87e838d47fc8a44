"""The client's side of a connection: HTTP/1.1 with bounds and with news of a client that leaves.

uvicorn's server makes one for each connection and asks it to end (``shutdown``); httptools reads what comes. It has:

* ``ClientLink``: one small object for each request, called from ``connection_lost`` whatever the request waits for;
* one ``deadline`` for each connection instead of timers, looked at once a second (``sweep``);
* OpenAI-shaped answers for what never becomes a request (not HTTP, head too large, too slow, too many connections);
* an offer to change the protocol (``Upgrade``) is ignored, as RFC 9110 §7.8 allows, and its body is read;
* a request begins as soon as its bytes are read, within the same callback (``eager``), not a turn of the loop later;
* its state of a request (``Cycle``) writes head and first piece together and knows clients of HTTP/1.0;
* no pipelining: while a request runs, later bytes of its connection are dropped and the connection ends with the
  answer. Pausing the read side instead would hide that the client left.

It derives from nothing of asyncio's, so that it can be compiled: loops ask for the methods only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from tidegate.backends.names import known as lower
from tidegate.backends.names import remember
from tidegate.classify import RawHeaders, by_name
from tidegate.gateway.application import Application, Asgi
from tidegate.gateway.bare import bare_answer, draining, rendered
from tidegate.gateway.cycle import Cycle, Peer
from tidegate.gateway.flow import Flow
from tidegate.gateway.limits import Limits
from tidegate.gateway.link import ClientLink
from tidegate.gateway.target import known, read_target, wants_leave

SPARE: Final = 100
"""Connections beyond the limit that are still told why they are refused."""

LINGER_S: Final = 2.0
"""How long a client may go on sending a request that has been refused."""

_FIRST_LINE_ENDS: Final = b" HTTP/1.1\r"
_FAULT: Final = (400, "bad_request", "Expected an HTTP/1.1 request; these bytes are not one.")


class ClientProtocol(Peer):
    """See the module docstring. One for each connection."""

    __slots__ = (
        "_app", "_begins", "_beside", "_body_open", "_chunk", "_connections", "_deaf", "_dropping", "_fault", "_fed",
        "_fresh", "_head_bytes", "_head_open", "_headers", "_limits", "_offer", "_parser", "_url", "cycle",
        "deadline", "link", "loop", "stalled_since",
    )  # fmt: skip

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - of a lifespan, which is off
        _loop: asyncio.AbstractEventLoop | None = None,
        limits: Limits | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        super().__init__(server_state)
        app = config.loaded_app
        self._app: Application = app if isinstance(app, Application) else Asgi(app)
        self.loop = _loop or asyncio.get_event_loop()
        self._limits = limits or Limits()
        self._connections: Any = getattr(server_state, "connections")  # noqa: B009 - not uvicorn's set, as it says
        self._parser: Any = _parser(self)  # None once the connection is lost
        self._url = b""
        self._headers: RawHeaders = []
        self.cycle: Cycle | None = None  # the last request's; None before the first and at the end
        self.link: ClientLink | None = None
        self.deadline = self.stalled_since = inf
        self._begins: Cycle | None = None  # a request whose bytes are being read
        self._head_open = self._body_open = False
        self._head_bytes = self._beside = 0
        self._fed = self._dropping = self._deaf = False
        self._chunk, self._fresh = b"", False  # while it is read; no request was being read when it came
        self._fault: tuple[int, str, str] = _FAULT
        self._offer: tuple[bytes, str] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._connections.add(self)
        self.transport = transport
        self.flow = Flow(transport)
        self.server = get_local_addr(transport)
        self.client = get_remote_addr(transport)
        self.scheme = "https" if is_ssl(transport) else "http"
        self.deadline = self.loop.time() + self._limits.keep_alive_s
        most = self._limits.max_connections
        if len(self._connections) > most + SPARE:
            transport.abort()
        elif len(self._connections) > most:
            self._refuse(503, "too_many_connections", f"All {most} connections (gateway.max_connections) are taken.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        cycle, self.cycle = self.cycle, None  # which holds this object
        if cycle is not None:
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self._parser = None
        self.deadline = self.stalled_since = inf
        link, self.link = self.link, None
        if link is not None:
            link.hang_up()

    def eof_received(self) -> None:
        """Have the transport close itself."""

    def data_received(self, data: bytes) -> None:
        """Read what has come, and begin the request whose head it has brought."""
        if self._deaf or self._dropping or self.transport.is_closing():
            return
        self._fed = False
        self._fresh = not (self._head_open or self._body_open)
        self._parse(data)
        if self._body_open:
            self._beside = 0 if self._fed else self._beside + len(data)
            if (self._fed or self._begins is not None) and not self._deaf:  # a piece of the body, or all of the head
                self.deadline = self.loop.time() + self._limits.body_stall_s
            if self._beside > self._limits.max_head:  # a chunk's extension or a trailer without end
                self._refuse(431, "too_large", self._head_message())
            elif self._fed and self.cycle is not None and self.cycle.full:
                self.flow.pause_reading()
        elif self._head_open:
            if not self._head_bytes:
                self.deadline = self.loop.time() + self._limits.head_timeout_s
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_head:
                self._refuse(431, "too_large", self._head_message())
        cycle, self._begins = self._begins, None
        if cycle is not None:
            cycle.begin(self._app, self.loop)

    def _parse(self, data: bytes) -> None:
        self._chunk = data
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as stop:
            if not self._dropping:
                self._ignore_offer(data[stop.args[0] :])
        except HttpParserError:
            self._not_http()
        self._chunk = b""

    def _ignore_offer(self, rest: bytes) -> None:
        """Read a request that offers another protocol once more, without the offer.

        The parser holds that the other protocol begins behind the head, and cannot be told otherwise: it would take
        the body for the next request. ``rest`` is what came behind the head.
        """
        assert self._offer is not None
        (method, version), self._offer = self._offer, None
        headers = [(name, value) for name, value in self._headers if name != b"upgrade"]
        lines = [b"%b %b HTTP/%b" % (method, self._url, version.encode()), *(b"%b: %b" % pair for pair in headers)]
        if any(b"\r" in line or b"\n" in line for line in lines):
            self._not_http()
            return
        self._parser = _parser(self)
        self._fresh = True
        self._parse(b"\r\n".join([*lines, b"", b""]) + rest)

    # HTTPProtocol, whose methods the parser calls

    def on_message_begin(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            self._dropping = True
            return
        self._url, self._headers, self._head_open, self._head_bytes = b"", [], True, 0

    def on_url(self, url: bytes) -> None:
        if not self._dropping:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_open:  # not those behind a body: what they say comes too late to be judged
            self._headers.append((lower.get(name) or remember(name), value))

    def on_headers_complete(self) -> None:
        if self._dropping:
            return
        self._head_open = False
        parser = self._parser
        method: bytes = parser.get_method()
        version = self._version(len(method))
        if version not in ("1.1", "1.0"):
            self._fault = (400, "bad_request", "Expected HTTP/1.1 or HTTP/1.0, got another version.")
            raise HttpParserError  # which stops the parser
        if self._head_bytes + len(self._chunk) > self._limits.max_head and self._head_size() > self._limits.max_head:
            self._fault = (431, "too_large", self._head_message())
            raise HttpParserError
        if parser.should_upgrade():
            if method == b"CONNECT":
                self._fault = (400, "bad_request", "Expected a request of this server, got CONNECT: it is not a proxy.")
                raise HttpParserError
            self._offer = method, version
            return
        self._body_open, self._beside = True, 0
        self._open(method, version, keep_alive=parser.should_keep_alive())

    def _version(self, method_size: int) -> str:
        """Give the request's version, from where the bytes with which it began have it: the parser is slow to.

        Where empty lines precede them, these are other bytes of the line or its end, and none looks like a version's.
        """
        if self._fresh:
            at = method_size + 1 + len(self._url)
            if self._chunk[at : at + len(_FIRST_LINE_ENDS)] == _FIRST_LINE_ENDS:
                return "1.1"
        version: str = self._parser.get_http_version()
        return version

    def _open(self, method: bytes, version: str, *, keep_alive: bool) -> None:
        """Have the request begin once all bytes that came with its head are read: it may find its body there."""
        headers = self._headers
        target = known.get(self._url) or read_target(self._url)
        named = by_name(headers)
        self.link = link = ClientLink(self.transport, self.flow, named, self.shown)
        leave = b"expect" in named and wants_leave(headers)
        self.cycle = self._begins = link.cycle = Cycle(
            self, link, method=method.decode("ascii"), version=version, target=target, headers=headers,
            keep_alive=keep_alive, expects_leave=leave,
        )  # fmt: skip

    def on_body(self, body: bytes) -> None:
        if not self._dropping:
            self._fed = True
            cycle = self.cycle
            if cycle is not None and not cycle.response_complete:
                cycle.feed(body)

    def on_message_complete(self) -> None:
        if self._dropping or self._offer is not None:
            return
        self.deadline = inf
        self._body_open = False
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._idle()
        else:
            cycle.more_body = False
            cycle.message_event.set()
        self.flow.resume_reading()  # paused by an earlier part of the body; unpaused, a leaving client is seen

    def answered(self) -> None:
        """Wait for the next request, or end the connection."""
        link, self.link = self.link, None
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if not self._body_open:
                self._idle()
        if link is not None:
            link.cycle = None  # which holds the link: nothing may be left to the collector, see ``GcPolicy``
            cycle = self.cycle
            if link.last or cycle is None or not cycle.keep_alive:
                self._linger()

    def _idle(self) -> None:
        """Wait for the next request."""
        self.deadline = self.loop.time() + self._limits.keep_alive_s

    def pause_writing(self) -> None:
        self.stalled_since = self.loop.time()
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.stalled_since = inf
        self.flow.resume_writing()

    def shutdown(self) -> None:
        """Accept nothing more: refuse a request that has not arrived to its end, let others end the connection."""
        cycle = self.cycle
        if self._deaf:  # has its answer, which closing could overtake, see ``_linger``
            return
        if self._head_open or (self._body_open and cycle is not None and not cycle.response_started):
            self._end_with(503, lambda request_id: rendered(draining(by_name(self._headers), request_id)))
        elif self._body_open and cycle is not None and cycle.response_complete:
            self._linger()
        elif cycle is None or cycle.response_complete:
            self.transport.close()
        else:
            cycle.keep_alive = False

    def check(self, now: float) -> None:
        """Cut the connection when its client is too slow. ``now`` is the event loop's time, seconds."""
        if now - self.stalled_since > self._limits.write_stall_s:
            self.transport.abort()
        elif now > self.deadline:
            self._too_slow()

    def _not_http(self) -> None:
        """Answer bytes that are no HTTP request."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False  # garbage behind a request in progress: its answer goes on, then the end
            self._deaf = True
            return
        self._refuse(*self._fault)

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
        cycle = self.cycle
        if self._deaf:
            self.transport.abort()
        elif self._head_open or (cycle is not None and not cycle.response_started):
            self._refuse(408, "bad_request", "The request did not arrive in time.")
        elif cycle is not None and cycle.response_complete and not self._body_open:
            self.transport.close()
        else:
            self.transport.abort()

    def _in_progress(self, status: int) -> bool:
        """Hang up on a request whose answer is still to come; return whether a part of it has gone out already.

        If none has, the client gets ``status``.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        cycle.disconnected = True  # it drops what the application still sends
        cycle.waiting_for_100_continue = False  # nor may it write that behind the refusal
        cycle.message_event.set()
        link, self.link = self.link, None
        if link is not None:
            link.refused = 0 if cycle.response_started else status
            link.hang_up()
        return cycle.response_started

    def _head_size(self) -> int:
        return len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._headers])

    def _head_message(self) -> str:
        return f"The request line and headers are longer than {self._limits.max_head} bytes."

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._end_with(status, lambda request_id: bare_answer(status, code, message, request_id=request_id))

    def _end_with(self, status: int, answer: Callable[[str], bytes]) -> None:
        """Write a whole answer past the application and close. A request in progress learns it as a hang-up."""
        if self._deaf or self.transport.is_closing():  # deaf: it has been refused already
            return
        request_id = "" if self.link is None else self.link.request_id
        if self._in_progress(status):
            self.transport.abort()
            return
        self.transport.write(answer(request_id))
        self._linger()


def client_protocol(limits: Limits) -> Any:
    """Give what ``uvicorn.Config(http=...)`` takes for connections that obey ``limits``."""
    return partial(ClientProtocol, limits=limits)


def _parser(protocol: ClientProtocol) -> Any:
    parser = HttpRequestParser(protocol)
    # Bytes behind a request that ends its connection are no error of that request: they are dropped with the others.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def sweep(connections: Iterable[object], now: float) -> None:
    """Check connections of a server. About 0.1 µs each, a microsecond among cold caches."""
    for connection in tuple(connections):
        if isinstance(connection, ClientProtocol):
            connection.check(now)
