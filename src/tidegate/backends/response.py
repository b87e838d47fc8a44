"""One response as its consumer sees it: status, headers, and the body piece by piece.

Invariants: pieces come in order and unchanged; a clean end is ``b""`` and only a clean end is; after a fault the
pieces that had arrived are handed out first. One reader. No future is made while there is something to hand out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.backends.errors import BackendError, Broken
from tidegate.backends.ground import Ground
from tidegate.core.compiling import mypyc_attr

if TYPE_CHECKING:
    from tidegate.backends.connection import Connection


@mypyc_attr(allow_interpreted_subclasses=True)
class Sink:
    """Takes pieces of a body as they come, from within the connection's callback."""

    __slots__ = ()

    def take(self, piece: bytes, chunk: bytes | None) -> bool:
        """Take a piece, or leave it; whether it was taken. MUST NOT raise and MUST NOT block.

        Args:
            piece: of the body.
            chunk: where it came as exactly one chunk, that chunk with its framing (RFC 9112 §7.1).
        """
        raise NotImplementedError


class Response:
    """The response to one request. Call ``abort()`` when done with it early; after the end it does nothing.

    Attributes:
        status: three digits, 200 or more.
        headers: names in lower case, in the order in which they came, hop-by-hop ones included.
        reused: the connection had served an earlier request.
        sent_at, head_at, last_byte_at: the event loop's time in seconds; ``head_at`` is 0.0 before the head.
        sink: takes pieces as they come; set by ``read_past`` while its reader has taken all that came before.
    """

    __slots__ = (
        "_connection",
        "_ended",
        "_error",
        "_ground",
        "_pieces",
        "_waiter",
        "head_at",
        "headers",
        "last_byte_at",
        "reused",
        "sent_at",
        "sink",
        "status",
    )

    def __init__(self, ground: Ground, connection: Connection, *, reused: bool) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.reused = reused
        self.sent_at = self.last_byte_at = ground.time()
        self.head_at = 0.0
        self._ground = ground
        self._connection: Connection | None = connection
        self._pieces: list[bytes] = []
        self.sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: BackendError | None = None
        self._ended = False

    @property
    def at_end(self) -> bool:
        """Whether everything has been handed out and the end was clean: the next read gives ``b""``."""
        return self._ended and not self._pieces

    def header(self, name: bytes) -> bytes | None:
        """Give the first value of a header by its lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def try_read(self) -> bytes | None:
        """Give what has arrived, joined; ``b""`` at the clean end; None when there is nothing yet.

        A reader that has let much pile up must come back for more before more is read from the engine.

        Raises:
            BackendError: the response ended without reaching its end.
        """
        pieces = self._pieces
        if pieces:
            if len(pieces) == 1:
                data = pieces.pop()
            else:
                data = b"".join(pieces)
                pieces.clear()
            return data
        if self._connection is not None:  # only now, so that a slow reader has no second lot of bytes waiting here
            self._connection.drained()
        if self._ended:
            return b""
        if self._error is not None:
            raise self._error
        return None

    async def read(self) -> bytes:
        """Wait for the next bytes of the body; ``b""`` at the clean end. Cancelling it aborts the response.

        Raises:
            BackendError: as ``try_read``.
        """
        while (data := self.try_read()) is None:
            waiter = self.news()
            try:
                await waiter
            except BaseException:
                self.left()
                raise
        return data

    async def read_past(self, sink: Sink) -> bytes:
        """Wait like ``read``, but offer each piece to ``sink`` first, from within the connection's callback.

        A piece that it takes (it answers True) is gone and wakes no task, which is most of what a piece costs; the
        first one that it does not take is returned, as is the end.

        Raises:
            BackendError: as ``try_read``.
        """
        if not self._pieces:
            self.sink = sink
        try:
            while (data := self.try_read()) is None:  # as in ``read``, whose frame each open stream would keep
                waiter = self.news()
                try:
                    await waiter
                except BaseException:
                    self.left()
                    raise
            return data
        finally:
            self.sink = None

    def whole(self, limit: int) -> bytes | None:
        """Give a body of at most ``limit`` bytes that has come with its head, as short ones do; ``None``: read it."""
        pieces = self._pieces
        return pieces.pop() if self._ended and len(pieces) == 1 and len(pieces[0]) <= limit else None

    async def read_all(self, limit: int) -> bytes:
        """Read to the clean end.

        Raises:
            BackendError: the response broke, or is longer than ``limit`` bytes (it is then aborted).
        """
        if (content := self.whole(limit)) is not None:
            return content
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > limit:
                self.abort()
                raise Broken(f"expected a response body of at most {limit} bytes, came {size} and more")
        return b"".join(parts)

    def abort(self) -> None:
        """Close the connection at once, so that the engine stops its work. Idempotent, allowed in every state."""
        connection = self._connection
        if connection is not None:
            self.fail(Broken("the request was aborted on this side"))
            connection.abort()

    def leave(self, left: Callable[[], None]) -> None:
        """End the request as ``abort`` does, and call ``left`` once the engine has let go of it too.

        It has when it closes its side of the connection, which tells that it has seen the end of ours; at the latest
        after ``connection.LEAVE_S``. A response that is over already has been let go of.
        """
        connection = self._connection
        if connection is None:
            self._ground.loop.call_soon(left)
            return
        self.fail(Broken("the request was stopped on this side"))
        connection.leave(left)

    @property
    def over(self) -> bool:
        """Whether nothing more can come, though the reader may not have taken all of it."""
        return self._connection is None

    # Before the head: what whoever has sent the request calls until there is a status, see ``Upstream.send``.

    def awaited(self) -> asyncio.Future[None] | None:
        """Give what to wait for until there is a head; ``None``: it has come. Whoever waits in vain MUST call ``left``.

        Raises:
            BackendError: there will be none.
        """
        if self.status:
            return None
        if self._error is not None:
            raise self._error
        return self.news()

    def news(self) -> asyncio.Future[None]:
        """Give what to wait for until anything comes, of a response that is not over. See ``awaited``."""
        if self._waiter is not None:
            raise RuntimeError("a response has one reader")
        self._waiter = waiter = self._ground.create_future()
        return waiter

    def left(self) -> None:
        """Whoever waited was cancelled."""
        self._waiter = None
        self.abort()

    # What follows is called by the connection only.

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The head is complete."""
        self.status = status
        self.headers = headers
        self.head_at = self.last_byte_at
        self._wake()

    def feed(self, data: bytes) -> bool:
        """A piece of the body has come. Whether it has been passed on already, so that nothing waits here."""
        if self.sink is not None and self.sink.take(data, None):
            return True
        self.sink = None  # what comes after this piece must not go before it
        self._pieces.append(data)
        if self._waiter is not None:
            self._wake()
        return False

    def end(self) -> None:
        """The body is complete; the connection is no longer ours."""
        self._connection = None
        self._ended = True
        if self._waiter is not None:
            self._wake()

    def fail(self, error: BackendError) -> None:
        """The response will not get further; the connection is no longer ours."""
        self._connection = None
        self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            try:  # noqa: SIM105 - not ``suppress``, which costs as much as all of this
                waiter.set_result(None)
            except asyncio.InvalidStateError:
                pass  # its task has been cancelled and has not run yet
