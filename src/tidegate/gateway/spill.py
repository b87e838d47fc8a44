"""Large bodies wait in a file instead of in memory (SPEC §10).

The file has no name, so that nothing is left behind however the process ends. It is written and read by threads, off
the event loop. What cannot be written (a full disk) stays in memory, where ``queue_bytes`` bounds it as before.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import IO, Final

import structlog

from tidegate.classify import Refused, fallback_allowed, parse_body
from tidegate.gateway.asked import Asked

LARGE: Final = 1024 * 1024
"""Bytes above which a body that waits goes to a file."""

log = structlog.get_logger("tidegate.gateway")


class Spill:
    """The body of one request while that waits. Whoever calls ``begin`` must call ``restore`` or ``close``."""

    __slots__ = ("_asked", "_file", "_writing")

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._file: IO[bytes] | None = None
        self._writing: asyncio.Future[IO[bytes]] | None = None

    def begin(self) -> None:
        """Start to write a body that is large; once it is written, the copy in memory goes."""
        if len(self._asked.raw) <= LARGE or self._writing is not None:
            return
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(None, write_out, self._asked.raw)
        self._writing.add_done_callback(self._written)

    async def restore(self) -> None:
        """Have the body back in memory."""
        self._writing = None  # what is still being written is not wanted any more
        file, self._file = self._file, None
        if file is None:
            return
        asked = self._asked
        asked.raw = await asyncio.get_running_loop().run_in_executor(None, read_back, file)
        if not asked.form:
            body = parse_body(asked.raw, asked.route)
            assert not isinstance(body, Refused)  # it has been parsed before
            asked.body = body

    def close(self) -> None:
        """Forget the body."""
        self._writing = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _written(self, writing: asyncio.Future[IO[bytes]]) -> None:
        if writing.cancelled():
            return
        error = writing.exception()
        if error is not None:
            log.warning("spill.failed", why=str(error))
        elif writing is not self._writing:
            writing.result().close()
        else:
            self._file = writing.result()
            asked = self._asked
            asked.plain = fallback_allowed(asked.body, asked.route)
            asked.size = len(asked.raw)
            asked.let_go()


def write_out(raw: bytes) -> IO[bytes]:
    """Write a body to a file without a name. Raises ``OSError``."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it outlives this function
    try:
        left = memoryview(raw)
        while left:
            left = left[file.write(left) :]
    except BaseException:
        file.close()
        raise
    return file


def read_back(file: IO[bytes]) -> bytes:
    """Read a body and close its file."""
    with file:
        file.seek(0)
        return file.read()
