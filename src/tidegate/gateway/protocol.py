"""The client's side of a connection: uvicorn's HTTP/1.1 protocol with bounds and with news of a client that leaves.

uvicorn tells an application about a disconnect only when it asks (``receive``), which would cost a task for each
request, and it puts no bound on headers, on slow senders or on readers that stop. This subclass adds:

* ``ClientLink``: one small object for each request, called from ``connection_lost`` whatever the request waits for;
* one ``deadline`` for each connection instead of timers, looked at once a second (``sweep``);
* OpenAI-shaped answers for what never becomes a request (not HTTP, head too large, too slow, too many connections);
* an offer to change the protocol (``Upgrade``) is ignored, as RFC 9110 §7.8 allows, and its body is read;
* a request begins as soon as its bytes are read, within the same callback (``eager``), not a turn of the loop later;
* its own state of a request (``Cycle``), which writes head and first piece together and knows clients of HTTP/1.0;
* no timer for a connection that is kept alive, but its ``deadline``;
* no pipelining: while a request runs, later bytes of its connection are dropped and the connection ends with the
  answer. Pausing the read side instead, as uvicorn does, would hide that the client left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from math import inf
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tidegate.classify import RawHeaders, by_name
from tidegate.gateway import target
from tidegate.gateway.bare import bare_answer, draining, rendered
from tidegate.gateway.cycle import Cycle
from tidegate.gateway.eager import begin
from tidegate.gateway.flow import Flow
from tidegate.gateway.limits import Limits
from tidegate.gateway.link import ClientLink

SPARE = 100
"""Connections beyond the limit that are still told why they are refused."""

LINGER_S = 2.0
"""How long a client may go on sending a request that has been refused."""

_VERSIONS = ("1.1", "1.0")
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class _HeadRefusedError(HttpParserError):
    """Raised inside the parser to stop it; ``_fault`` says why."""


class ClientProtocol(HttpToolsProtocol):
    """See the module docstring. ``limits`` is set on a subclass by ``client_protocol``.

    What it adds to uvicorn's thirty attributes stands in slots: a dictionary of more than thirty names is not shared
    between instances (CPython 3.11), which would be 1.3 KB for each connection.
    """

    __slots__ = (
        "_begins",
        "_beside",
        "_body_open",
        "_chunk",
        "_deaf",
        "_dropping",
        "_fault",
        "_fed",
        "_head_bytes",
        "_head_open",
        "_offer",
        "deadline",
        "link",
        "stalled_since",
    )

    limits = Limits()
    flow: Flow
    cycle: Cycle  # type: ignore[assignment]  # the last request's; None before the first and at the end

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
        self._begins: Coroutine[Any, Any, None] | None = None  # a request whose bytes are being read
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
        self.cycle = None  # type: ignore[assignment]  # which holds this object: the collector shall find nothing

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._dropping or self.transport.is_closing():
            return
        self._chunk = len(data)
        self._fed = False
        self._parse(data)
        if self._body_open:
            self._beside = 0 if self._fed else self._beside + len(data)
            if (self._fed or self._begins is not None) and not self._deaf:  # a piece of the body, or all of the head
                self.deadline = self.loop.time() + self.limits.body_stall_s
            if self._beside > self.limits.max_head:  # a chunk's extension or a trailer without end
                self._refuse(431, "too_large", self._head_message())
            elif self._fed and self.cycle is not None and self.cycle.full:
                self.flow.pause_reading()
        elif self._head_open:
            if not self._head_bytes:
                self.deadline = self.loop.time() + self.limits.head_timeout_s
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_head:
                self._refuse(431, "too_large", self._head_message())
        begins, self._begins = self._begins, None
        if begins is not None:
            cycle = self.cycle
            task = begin(self.loop, begins)
            if cycle.running:
                self.tasks.add(task)  # until it ends: a callback for that would be a turn of the loop
                cycle.ended = partial(self.tasks.discard, task)

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
        self.url = b""
        self.headers = []
        self._head_open = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        if not self._dropping:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_open:  # not those behind a body: what they say comes too late to be judged
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._dropping:
            return
        self._head_open = False
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
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
        self._open(version)

    def _open(self, version: str) -> None:
        """Have the request begin once all bytes that came with its head are read: it may find its body there."""
        parser, headers = self.parser, self.headers
        path, raw_path, query = target.known.get(self.url) or target.read_target(self.url)
        named = by_name(headers)
        self.link = link = ClientLink(self.transport, self.flow, named)
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "headers": headers,
            "state": {"link": link},
            "method": parser.get_method().decode("ascii"),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
        }
        leave = b"expect" in named and _wants_leave(headers)
        self.cycle = link.cycle = cycle = Cycle(
            scope, self.transport, self.flow, self.server_state,
            keep_alive=parser.should_keep_alive(), expects_leave=leave, on_response=self.on_response_complete,
        )  # fmt: skip
        self._begins = cycle.run(self.app)

    def _offered(self) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._fault = (400, "bad_request", "Expected a request of this server, got CONNECT: it is not a proxy.")
            raise _HeadRefusedError
        self._offer = method, self.parser.get_http_version()

    def on_body(self, body: bytes) -> None:
        if not self._dropping:
            self._fed = True
            if not self.cycle.response_complete:
                self.cycle.feed(body)

    def on_message_complete(self) -> None:
        if self._dropping or self._offer is not None:
            return
        self.deadline = inf
        self._body_open = False
        cycle = self.cycle
        if cycle.response_complete:
            self._idle()
        else:
            cycle.more_body = False
            cycle.message_event.set()
        if self.flow.read_paused:  # by an earlier part of the body; unpaused, a leaving client is seen
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        link, self.link = self.link, None
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if not self._body_open:
                self._idle()
        if link is not None:
            link.cycle = None  # whose scope holds the link: nothing may be left to the collector, see ``GcPolicy``
            if link.last or not self.cycle.keep_alive:
                self._linger()

    def _idle(self) -> None:
        """Wait for the next request."""
        self.deadline = self.loop.time() + self.limits.keep_alive_s

    def pause_writing(self) -> None:
        self.stalled_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stalled_since = inf
        super().resume_writing()

    def shutdown(self) -> None:
        """Accept nothing more: refuse a request that has not arrived to its end, let others end the connection."""
        cycle = self.cycle
        if self._deaf:  # has its answer, which closing could overtake, see ``_linger``
            return
        if self._head_open or (self._body_open and not cycle.response_started):
            self._end_with(503, lambda request_id: rendered(draining(by_name(self.headers), request_id)))
        elif self._body_open and cycle.response_complete:
            self._linger()
        else:
            super().shutdown()

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
        elif self.cycle is not None and self.cycle.response_complete and not self._body_open:
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


def client_protocol(limits: Limits) -> type[ClientProtocol]:
    """Give the protocol class for ``uvicorn.Config(http=...)`` that obeys ``limits``."""
    return type("BoundClientProtocol", (ClientProtocol,), {"limits": limits, "__slots__": ()})


def _wants_leave(headers: RawHeaders) -> bool:
    """Whether a client waits for leave to send its body."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


def sweep(connections: Iterable[object], now: float) -> None:
    """Check connections of a server. About 0.1 µs each, a microsecond among cold caches."""
    for connection in tuple(connections):
        if isinstance(connection, ClientProtocol):
            connection.check(now)
