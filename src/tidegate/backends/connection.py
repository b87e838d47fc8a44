"""One HTTP/1.1 connection to an upstream: what asyncio calls a protocol, around the httptools parser.

Invariants: at most one request is in flight; whatever arrives without one closes the connection; every path out of
a request goes through ``_finish`` or ``_fail``, which detach the response and give the connection
back to its owner or close it. Message framing follows RFC 9112 §6; httptools never sees the end of the connection,
so bodies delimited by it are recognised here.

Cost: nothing per chunk but the parser's call, an append, and at most one future's wake-up. A reader that takes pieces
as they come (``Response.sink``) pays less: bytes that are exactly one chunk, which is how engines send a token, pass by
the parser with their framing on. Anything else, and whatever follows half a chunk, is parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from tidegate.backends.errors import BackendError, Broken, ProtocolError, TimedOut, Unavailable
from tidegate.backends.framing import framed, has_length, head_size, start_of_only_chunk
from tidegate.backends.ground import Ground, Limits, probe_when_silent
from tidegate.backends.names import known, remember
from tidegate.backends.response import Response
from tidegate.backends.wire import SHORT

LEAVE_S: Final = 0.5
"""How long an engine may take to close a connection whose request was ended from here."""

SLICE: Final = 262144
"""Bytes of a request body handed to the transport at once, so that pausing can take effect in between."""

_SPACE: Final = 0x20


class Owner:
    """What a connection tells the pool that it belongs to: this one does not want any."""

    def connection_made(self, connection: Connection) -> None:
        """It is established."""

    def connection_idle(self, connection: Connection, now: float) -> bool:  # noqa: ARG002
        """It can carry another request; False: it is not wanted and must close."""
        return False

    def connection_lost(self, connection: Connection) -> None:
        """It is gone. Called once for each ``connection_made``."""


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """Raised inside a parser callback to stop the parser."""


class Connection:
    """Carries one request at a time; see the module's invariants.

    It does not derive from ``asyncio.Protocol``: that adds nothing, and a dictionary to each where this is compiled.
    """

    __slots__ = (
        "_between",
        "_body",
        "_complete",
        "_dry",
        "_gone",
        "_ground",
        "_head_request",
        "_headers",
        "_in_head",
        "_informational",
        "_keep",
        "_leaving",
        "_limits",
        "_name",
        "_owner",
        "_parser",
        "_read_paused",
        "_response",
        "_timer",
        "_transport",
        "_unread",
        "_until_close",
        "_write_paused",
        "idle_since",
        "served",
    )

    def __init__(self, owner: Owner, ground: Ground, limits: Limits, name: str) -> None:
        self._owner = owner
        self._ground = ground
        self._limits = limits
        self._name = name
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._body: memoryview | None = None  # what is left of the request body
        self._write_paused = self._read_paused = self._gone = False
        self._leaving: Callable[[], None] | None = None  # told when the peer has closed its side
        self.served = 0
        self.idle_since = 0.0
        self._reset(head_request=False)

    def _reset(self, *, head_request: bool) -> None:
        self._head_request = head_request
        self._headers: list[tuple[bytes, bytes]] = []
        self._informational = self._complete = self._until_close = False
        self._keep = self._in_head = True
        self._between = False  # the parser stands where a chunk begins
        self._unread = 0  # bytes of body that the consumer has not taken
        self._dry = 0  # bytes since the request or since the last piece of body: heads, chunk lines, trailers

    # The request

    @property
    def usable(self) -> bool:
        """Whether a request can be sent as far as is known."""
        return self._transport is not None and self._response is None and not self._transport.is_closing()

    def send(self, method: bytes, head: bytes, body: bytes) -> Response:
        """Start a request on a usable connection; ``head`` comes from ``Heads.render``, a short body in it."""
        transport = self._transport
        assert transport is not None
        assert self._response is None
        self._reset(head_request=method == b"HEAD")
        response = self._response = Response(self._ground, self, reused=self.served > 0)
        self.served += 1
        if self._timer is None and self._limits.shortest_s is not None:
            self._timer = self._ground.loop.call_later(self._limits.shortest_s, self._check_time)
        if len(body) <= SHORT:
            transport.write(head)
        else:  # uvloop sends both by one call of the system, and nobody is woken for a head alone
            view = memoryview(body)
            self._body = view[SLICE:] if len(body) > SLICE else None
            transport.writelines((head, view[:SLICE]))
            self._pump()
        return response

    def _pump(self) -> None:
        """Hand the body to the transport until it says that it has enough."""
        while self._body is not None and not self._write_paused and self._transport is not None:
            piece, rest = self._body[:SLICE], self._body[SLICE:]
            self._body = rest if len(rest) else None
            self._transport.write(piece)

    def abort(self) -> None:
        """Close at once, without sending what is buffered. Idempotent."""
        self._detach()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    def leave(self, left: Callable[[], None]) -> None:
        """Close our side, and call ``left`` when the peer has closed its own; what it still sends is dropped."""
        transport = self._transport
        half_sent = self._body is not None
        self._detach()
        if transport is None:
            self._ground.loop.call_soon(left)
            return
        self._leaving = left
        if half_sent or transport.is_closing() or not transport.can_write_eof():  # TLS has no half-closed connection
            self.abort()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._ground.loop.call_later(LEAVE_S, transport.abort)
        self.drained()
        transport.write_eof()

    def give_up(self) -> None:
        """Close it, whether it was made or not: uvloop says nothing more of one that is cancelled as it is made."""
        self.abort()
        self.connection_lost(None)

    def shut(self) -> None:
        """Close at once and tell whoever waits for the response."""
        self._ended("this client was closed")
        self.abort()

    def drained(self) -> None:
        """The consumer has taken everything that had arrived."""
        self._unread = 0
        if self._read_paused:
            self._read_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and let the kernel watch for a dead peer."""
        self._transport = cast(asyncio.Transport, transport)
        if self._gone:  # it was given up
            self._transport.abort()
            return
        probe_when_silent(transport.get_extra_info("socket"))
        self._owner.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """Parse what has come; pause the upstream when the consumer is far behind and more is to come."""
        response = self._response
        if response is None:
            if self._leaving is not None:
                return
            self.abort()  # nothing was asked: leftovers of the last response, or a farewell such as 408
            return
        response.last_byte_at = self._ground.time()
        if self._between and (sink := response.sink) is not None:
            start = start_of_only_chunk(data)
            if start and sink.take(data[start:-2], data):
                return
        self._dry += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._parser_stopped(error)
            return
        if self._dry > self._limits.max_head:
            self._fail(ProtocolError(f"{self._name}: head, chunk line or trailers over {self._limits.max_head} bytes"))
        elif self._complete:
            self._finish()
        else:
            if self._between and not data.endswith(b"\r\n"):
                self._between = False  # the next chunk's first line has begun
            if self._unread > self._limits.high_water and not self._read_paused and self._transport is not None:
                self._read_paused = True
                self._transport.pause_reading()

    def eof_received(self) -> None:
        """The peer will send no more: the end of some bodies, a fault in all others. The transport then closes."""
        if self._response is not None and self._until_close:
            self._finish()
        self._ended("the connection was closed")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._gone:  # it was given up
            return
        self._gone = True
        self._ended("the connection was lost" if exc is None else f"the connection was lost: {exc}")
        self._transport = None
        self._parser = None  # type: ignore[assignment]  # it holds our methods: nothing is left to the collector
        left, self._leaving = self._leaving, None
        if left is not None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            left()
        self._owner.connection_lost(self)

    def pause_writing(self) -> None:
        """The transport has enough."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """The transport wants more."""
        self._write_paused = False
        self._pump()

    # httptools

    def on_message_begin(self) -> None:
        """A status line begins: ours, or one that nobody asked for behind the complete response."""
        if self._complete:
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; those after the head are trailers and are dropped."""
        if self._in_head:
            if value and value[-1] <= _SPACE:
                value = value.rstrip()
            self._headers.append((known.get(name) or remember(name), value))

    def on_headers_complete(self) -> None:
        """Decide how the body ends, and wake whoever waits for the head."""
        response = self._response
        assert response is not None
        status = self._parser.get_status_code()
        headers = self._headers
        if self._dry > self._limits.max_head and head_size(headers) > self._limits.max_head:
            raise _Refused(f"a response head over {self._limits.max_head} bytes")
        self._in_head = status < 200  # else what comes now are trailers
        if status > 599:  # RFC 9110 §15: invalid
            raise _Refused(f"a response with status {status}, which does not exist")
        if status < 200:
            if status < 100 or status == 101:
                raise _Refused(f"a response with status {status}, which was not asked for")
            self._informational = True
            self._headers = []
            return
        keep = self._parser.should_keep_alive()
        # The parser says no to keep-alive wherever the end of the connection ends the body, so look only then.
        self._until_close = not keep and not framed(headers)
        self._keep = keep and (self._limits.always or has_length(headers))
        response.begin(status, headers)
        if self._head_request:
            self._complete = True  # whatever length the head announces: no body follows
            self._keep = False  # and the parser waits for one, so it cannot be used again

    def on_chunk_header(self) -> None:
        """A chunk's first line has been read."""
        self._between = False

    def on_chunk_complete(self) -> None:
        """A chunk has been read to its end."""
        self._between = True

    def on_body(self, data: bytes) -> None:
        """Pass a piece of the body on."""
        response = self._response
        if response is None or self._complete:
            raise _Refused("a body where there is none")
        self._dry = 0
        if not response.feed(data):
            self._unread += len(data)

    def on_message_complete(self) -> None:
        """The response is complete, or only an informational one."""
        if self._informational:
            self._informational = False
        else:
            self._complete = True

    # Ways out

    def _parser_stopped(self, error: Exception) -> None:
        if self._complete:
            self._keep = False  # bytes behind a complete response: it is good, the connection is not
            self._finish()
            return
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
        self._fail(ProtocolError(f"{self._name}: expected an HTTP/1.1 response, came something else: {cause}"))

    def _finish(self) -> None:
        """The response is complete."""
        response = self._response
        assert response is not None
        reusable = self._keep and self._body is None and self._transport is not None
        if self._read_paused:
            self.drained()  # the response holds all of it; this connection may read again
        self._response = None
        self._body = None
        response.end()
        if not (reusable and self._owner.connection_idle(self, response.last_byte_at)):
            self.abort()

    def _ended(self, how: str) -> None:
        """The peer has left in the middle, if there is a middle."""
        response = self._response
        if response is None:
            return
        if response.status:
            self._fail(Broken(f"{self._name}: {how} before the end of the response"))
        elif self._dry:
            self._fail(Broken(f"{self._name}: {how} within the response head"))
        else:
            self._fail(Unavailable(f"{self._name}: {how} before the first byte of the response"))

    def _fail(self, error: BackendError) -> None:
        response = self._response
        self.abort()
        if response is not None:
            response.fail(error)

    def _detach(self) -> None:
        self._response = None
        self._body = None

    # Time-outs

    def _check_time(self) -> None:
        """Look whether a limit has passed, and set the timer again.

        One timer goes on for as long as the connection has requests; each byte only leaves its time. It never waits
        longer than the shortest limit, so no limit that begins in between can pass unseen.
        """
        self._timer = None
        response, shortest_s = self._response, self._limits.shortest_s
        if response is None or shortest_s is None:
            return  # idle: the next request sets it
        now = self._ground.time()
        if response.status:
            limit, what = self._limits.silence_timeout_s, "no byte of the response"
            # While we ourselves do not read, nothing can arrive: that silence is not the engine's.
            since = now if self._read_paused else response.last_byte_at
        else:
            limit, what = self._limits.head_timeout_s, "no response head"
            since = response.sent_at
        left = shortest_s if limit is None else since + limit - now
        if left > 0:
            self._timer = self._ground.loop.call_later(min(left, shortest_s), self._check_time)
        else:
            self._fail(TimedOut(f"{self._name}: {what} within {limit} s"))
