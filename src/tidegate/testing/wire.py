"""A wire without sockets: an event loop whose connections are fake transports, with the peer's side in the test's hand.

Every byte, every end and every pause happens exactly when the test says so; time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast

from tidegate.testing.clock import VirtualLoop

T = TypeVar("T")


class Wire(asyncio.Transport):
    """One connection. Methods of the first group are the peer's; the rest is what ``asyncio.Transport`` promises.

    Attributes:
        sent: every byte that our side has written.
        writes: in how many calls, each of which may be one of the system.
        ended: our side has closed or aborted, or the peer has ended it.
        reading: our side is willing to read.
        pauses: how often it was not.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self.sent = bytearray()
        self.writes = 0
        self.ended = False
        self.reading = True
        self.pauses = 0
        self.full_after: int | None = None
        loop.call_soon(protocol.connection_made, self)

    def deliver(self, *pieces: bytes) -> None:
        """Let bytes of the peer arrive, one read for each piece; a closed connection drops them."""
        for piece in pieces:
            if not self.ended:
                self._protocol.data_received(piece)

    def end(self) -> None:
        """Let the peer's clean end arrive."""
        if not self.ended and not self._protocol.eof_received():
            self.close()

    def reset(self) -> None:
        """Let the peer's reset arrive."""
        self._end(ConnectionResetError(104, "Connection reset by peer"))

    def empty(self) -> None:
        """Let the peer take what has been written, so that writing may go on."""
        self._protocol.resume_writing()

    # asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "written after the end"
        self.sent += data
        self.writes += 1
        if self.full_after is not None and len(self.sent) > self.full_after:
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(None)

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        assert not self.reading
        assert not self.ended
        self.reading = True

    def _end(self, cause: Exception | None) -> None:
        if not self.ended:
            self.ended = True
            self._loop.call_soon(self._protocol.connection_lost, cause)


class WireLoop(VirtualLoop):
    """A virtual loop whose ``create_connection`` makes wires and, when it fails, leaves them open.

    Attributes:
        wires: every connection so far, in order.
        on_connect: called with each new wire before our side can use it; may raise what a connect would raise.
        connect_s: how long connecting takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wires: list[Wire] = []
        self.on_connect: Callable[[Wire], None] = lambda _wire: None
        self.connect_s = 0.0

    async def create_connection(self, protocol_factory: Callable[[], Any], *_: Any, **__: Any) -> Any:
        await asyncio.sleep(self.connect_s)
        protocol = protocol_factory()
        wire = Wire(self, protocol)
        self.wires.append(wire)
        await asyncio.sleep(0)
        self.on_connect(wire)
        return wire, protocol


def run_wire(story: Callable[[WireLoop], Coroutine[Any, Any, T]]) -> T:
    """Run ``story`` on a fresh ``WireLoop`` and return its result."""
    with asyncio.Runner(loop_factory=WireLoop) as runner:
        return runner.run(story(cast(WireLoop, runner.get_loop())))


async def settle() -> None:
    """Let everything that can happen without new events happen."""
    for _ in range(8):
        await asyncio.sleep(0)
