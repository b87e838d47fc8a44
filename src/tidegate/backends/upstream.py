"""One upstream: its pool of connections, and the one retry that HTTP keep-alive makes necessary.

A server may close an idle connection in the moment in which we use it (RFC 9112 §9.3.1). So a request that was
sent on a pooled connection which then ended without a single byte of response is sent once more, on a new
connection. Nothing else is retried here: every other retry is the scheduler's business.

Invariants: each connection is idle, in flight, or gone; a request cancelled at any await leaves none behind.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from typing import Final, cast

from tidegate.backends.connection import Connection, Owner
from tidegate.backends.engines import Reuse
from tidegate.backends.errors import BackendError, Overloaded, TimedOut, Unavailable
from tidegate.backends.ground import Ground, Limits
from tidegate.backends.response import Response
from tidegate.backends.wire import Headers, Heads, parse_address

_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of ``connect`` that say something about this machine and nothing about the engine."""

_CLOSE_WAIT_S: Final = 1.0


class Counters:
    """Totals since the start. ``retries`` counts the keep-alive races that were lost and repaired."""

    __slots__ = ("connects", "retries", "reuses")

    def __init__(self) -> None:
        self.connects = 0
        self.reuses = 0
        self.retries = 0


class Upstream(Owner):
    """A client for one backend. Belongs to one event loop; the first request binds it."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        connect_timeout_s: float = 2.0,
        head_timeout_s: float | None = 600.0,
        silence_timeout_s: float | None = 600.0,
        max_idle: int = 256,
        idle_timeout_s: float = 4.0,
        max_open: int = 8192,
        max_head: int = 64 * 1024,
        high_water: int = 256 * 1024,
        reuse: Reuse = Reuse.ALWAYS,
        headers: Headers = (),
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Check the address and prepare what all requests share. Opens nothing.

        Args:
            url: ``http://host:port`` or ``https://…``; a path in it is put before every target.
            name: shown in error messages; the url's host and port if empty.
            connect_timeout_s: for resolving, connecting and the TLS handshake together.
            head_timeout_s: until the response head; an answer that is not streamed sends it only when generated.
            silence_timeout_s: longest silence within a body.
            max_idle: idle connections kept.
            idle_timeout_s: how long they are kept; below the 5 s after which uvicorn, hence vLLM, closes them.
            max_open: connections in all; a request beyond it raises ``Overloaded`` at once.
            max_head: largest response head (also chunk line, trailers) in bytes.
            high_water: bytes of an unread body at which reading from the engine pauses.
            reuse: when a connection may carry another request (see ``ENGINES``).
            headers: sent with every request, for example the upstream's credentials.
            ssl_context: instead of the default, which verifies the certificate and the host's name.

        Raises:
            ValueError: for a url or headers that cannot be used.
        """
        self._address = parse_address(url)
        self.name = name or self._address.authority.decode()
        self._heads = Heads(self._address.authority, self._address.path, headers)
        self._connect_timeout_s = connect_timeout_s
        self._limits = Limits(head_timeout_s, silence_timeout_s, max_head=max_head, high_water=high_water, reuse=reuse)
        self._max_idle = max_idle
        self._idle_timeout_s = idle_timeout_s
        self._max_open = max_open
        self._ssl = (ssl_context or _verifying_context()) if self._address.tls else None
        self._ground: Ground | None = None
        self._idle: list[Connection] = []  # newest at the end
        self._open: set[Connection] = set()
        self._connecting = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self._all_lost: asyncio.Future[None] | None = None
        self.counters = Counters()

    @property
    def open(self) -> int:
        """Connections established, idle ones included."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """Connections waiting for a request."""
        return len(self._idle)

    async def request(self, method: bytes, target: bytes, headers: Headers = (), body: bytes = b"") -> Response:
        """Send a request and wait for the response head. Cancelling it closes the connection.

        The caller must read the response to its end or call its ``abort()``.

        Args:
            method: as it goes on the wire.
            target: origin-form, begins with a slash.
            headers: without those that frame the message (``wire.FRAMING``).
            body: sent with its length; empty is no body.

        Raises:
            ValueError: what was passed would break the framing; nothing was sent.
            BackendError: one of its kinds; ``sent`` says whether the engine may have seen the request.
        """
        response = self.send(method, target, headers, body)
        return await self.head(response, method, target, headers, body)

    def send(self, method: bytes, target: bytes, headers: Headers = (), body: bytes = b"") -> Response | None:
        """Send a request on a connection that is kept; ``None``: there is none, ``head`` will open one.

        Whoever is given a response waits for its head, and hands it to ``head`` where there are news but no status.

        Raises:
            ValueError: what was passed would break the framing; nothing was sent.
        """
        head = self._heads.render(method, target, headers, body)
        connection = self._take()
        if connection is None:
            return None
        self.counters.reuses += 1
        return connection.send(method, head, body)

    async def head(
        self,
        response: Response | None,
        method: bytes,
        target: bytes,
        headers: Headers = (),
        body: bytes = b"",
        *,
        sent: Callable[[Response], None] | None = None,
    ) -> Response:
        """Wait for the head of what ``send`` gave, as ``request`` does; the request is sent (again) where it must be.

        It takes what ``send`` took, and raises what ``request`` raises. ``sent`` is given what is sent here as soon as
        it is on its way, so that it can be aborted before its head.
        """
        again = False
        while True:
            if response is None:
                head = self._heads.render(method, target, headers, body)
                connection = await self._connect(sent_before=again)
                response = connection.send(method, head, body)
                head = b""  # nothing keeps a copy of the body while the engine works
                if sent is not None:
                    sent(response)
            try:
                while (waiter := response.awaited()) is not None:
                    await waiter
            except Unavailable:
                if not response.reused:
                    raise
            except BaseException:
                response.left()
                raise
            else:
                return response
            response, again = None, True
            self.counters.retries += 1  # the keep-alive race: see the module's docstring

    async def close(self) -> None:
        """Close all connections, also those in flight, and wait (at most 1 s) until they are gone. Idempotent."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in list(self._open):
            connection.shut()
        if self._open:
            self._all_lost = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_lost], timeout=_CLOSE_WAIT_S)

    # The pool

    def _take(self) -> Connection | None:
        """Give the newest idle connection: the likeliest to be alive, and it lets the oldest ones run out."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, *, sent_before: bool) -> Connection:
        if self._closed:
            raise Unavailable(f"{self.name}: this client is closed", sent=sent_before)
        if len(self._open) + self._connecting >= self._max_open:
            raise Overloaded(f"{self.name}: all {self._max_open} connections (max_open) are in use", sent=sent_before)
        loop = asyncio.get_running_loop()
        if self._ground is None:
            self._ground = Ground(loop)
        address = self._address
        connection = Connection(self, self._ground, self._limits, self.name)
        self._connecting += 1
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(
                    lambda: cast(asyncio.Protocol, connection),  # all that a loop asks of one
                    address.host,
                    address.port,
                    ssl=self._ssl,
                    server_hostname=address.host if self._ssl else None,
                )
        except BaseException as error:
            connection.give_up()
            if isinstance(error, TimeoutError | OSError | ssl.SSLError):
                raise self._translated(error, sent=sent_before) from error
            raise
        finally:
            self._connecting -= 1
        if self._closed or not connection.usable:
            connection.abort()
            raise Unavailable(f"{self.name}: the connection ended as soon as it was made", sent=sent_before)
        self.counters.connects += 1
        return connection

    def _translated(self, error: OSError, *, sent: bool) -> BackendError:
        if isinstance(error, TimeoutError):
            limit = self._connect_timeout_s
            return TimedOut(f"{self.name}: not connected within {limit} s (connect_timeout)", sent=sent)
        kind = Overloaded if error.errno in _NO_ROOM else Unavailable
        return kind(f"{self.name}: cannot connect: {error}", sent=sent)

    # What connections report

    def connection_made(self, connection: Connection) -> None:
        """A connection is established."""
        self._open.add(connection)

    def connection_idle(self, connection: Connection, now: float) -> bool:
        """A connection is free again; False when it is not wanted."""
        idle = self._idle
        if len(idle) >= self._max_idle:
            return False
        connection.idle_since = now
        idle.append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_timeout_s, self._close_overdue)
        return True

    def connection_lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._open and self._all_lost is not None and not self._all_lost.done():
            self._all_lost.set_result(None)

    def _close_overdue(self) -> None:
        """Close what has been idle for too long; one timer per upstream, none per connection."""
        loop = asyncio.get_running_loop()
        self._sweep = None
        idle = self._idle
        while idle:
            left = idle[0].idle_since + self._idle_timeout_s - loop.time()
            if left > 0:
                self._sweep = loop.call_later(left, self._close_overdue)
                return
            idle.pop(0).abort()


def _verifying_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
