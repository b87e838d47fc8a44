"""What a request knows of its client's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidegate.classify import Headers, RawHeaders, Shown
from tidegate.core.compiling import mypyc_attr
from tidegate.gateway.flow import Flow


class Answer:
    """An answer on its way to a client, as far as it goes past the application's ``send``; see ``Cycle``.

    Attributes:
        flowing: what has been sent is written, and more may follow as chunks.
    """

    __slots__ = ("flowing",)

    def __init__(self) -> None:
        self.flowing = False

    def whole(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        """Send all of it at once; whether it was sent."""
        raise NotImplementedError


@mypyc_attr(free_list_len=1)
class ClientLink:
    """One request's view of its connection: has the client left, whom to tell, and how to cut it.

    Attributes:
        gone: the client left.
        on_gone: called once when it does.
        last: end the connection after this answer, although the request has not been read to its end.
        named: the request's headers by name.
        request_id: what the application calls the request.
        cycle: the request's answer, from the end of its head to the end of its answer.
        shown: the key that its connection showed last.
        refused: status that the client got past the application, which is told that it left; 0: none.
    """

    __slots__ = ("_flow", "_transport", "cycle", "gone", "last", "named", "on_gone", "refused", "request_id", "shown")

    def __init__(self, transport: asyncio.Transport, flow: Flow, named: Headers, shown: Shown | None = None) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self._transport = transport
        self._flow = flow
        self.named = named
        self.shown: Final = shown
        self.cycle: Answer | None = None
        self.last = False
        self.request_id = ""
        self.refused = 0

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
        if cycle is None or not cycle.flowing or self._flow.write_paused:
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunk is None else chunk)
        return True

    def answer(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        """Send a whole answer past the application's ``send``; whether it was sent.

        Args:
            status: three digits.
            headers: everything but the length.
            body: all of it.
        """
        cycle = self.cycle
        return cycle is not None and cycle.whole(status, headers, body)

    def cut(self) -> None:
        """Close the connection without finishing the answer (the client sees a broken transfer)."""
        self._transport.abort()
