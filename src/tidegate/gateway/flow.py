"""Flow control in a tenth of uvicorn's memory: what waits is made when somebody waits.

An ``asyncio.Event`` holds a deque, hence 760 bytes, and uvicorn makes two for each connection, which hardly anybody
ever waits for. With 5,000 open streams that is 7 MB.
"""

from __future__ import annotations

import asyncio

from tidegate.core.compiling import mypyc_attr


@mypyc_attr(free_list_len=1)
class Bell:
    """An ``asyncio.Event`` that is small while nobody waits for it.

    Attributes:
        rung: ``wait`` returns at once; whoever sets it to false has those wait who come from then on.
    """

    __slots__ = ("_event", "rung")

    def __init__(self) -> None:
        self.rung = False
        self._event: asyncio.Event | None = None

    def set(self) -> None:
        """Wake everybody who waits."""
        self.rung = True
        if self._event is not None:
            event, self._event = self._event, None
            event.set()

    async def wait(self) -> bool:
        """Wait until it is set; whoever was woken goes on even if it has been cleared since."""
        if self.rung:
            return True
        if self._event is None:
            self._event = asyncio.Event()
        return await self._event.wait()


class Flow:
    """Whether a client's connection wants more, and whether we want more of it.

    Attributes:
        read_paused: nothing is read from it for now.
        write_paused: it has enough of what was sent.
    """

    __slots__ = ("_transport", "_writable", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._writable = Bell()
        self._writable.set()

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was sent."""
        await self._writable.wait()

    def pause_reading(self) -> None:
        """Read nothing more, until ``resume_reading``."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, if it was paused."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The transport has enough."""
        self.write_paused = True
        self._writable.rung = False

    def resume_writing(self) -> None:
        """The transport wants more."""
        self.write_paused = False
        self._writable.set()
