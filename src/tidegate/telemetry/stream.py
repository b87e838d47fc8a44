"""Standard error as a place for log lines that never makes its writer wait.

A pipe or a terminal whose reader stops reading blocks whoever writes more than it has room for. So it is asked first,
and gets no more at a time than it is sure to take: ``PIPE_BUF`` bytes where it is writable at all (pipe(7)), in whole
lines, which do not mix with those of other processes then. A file takes everything, or fails.
"""

from __future__ import annotations

import os
import select
import stat
import sys

_PIPE_BUF = 4096  # of Linux; POSIX grants 512


class Stream:
    """Writes to a file descriptor without waiting. It stays open.

    Args:
        descriptor: of a file, pipe, socket or terminal that is open for writing.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll: select.poll | None = None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLOUT)

    def write(self, data: bytes, /) -> int:
        """Write what can be written now; return how many bytes that was.

        Raises:
            OSError: it is full or broken, and nothing of ``data`` was written.
        """
        if self._poll is None:
            return os.write(self._descriptor, data)
        written = 0
        try:
            while written < len(data) and self._poll.poll(0):
                end = data.rfind(b"\n", written, written + _PIPE_BUF) + 1 or written + _PIPE_BUF
                written += os.write(self._descriptor, data[written:end])
        except OSError:  # BlockingIOError among them, where others have made it one that does not block
            if not written:
                raise
        return written

    def flush(self) -> None:
        """There is nothing to do: ``write`` keeps nothing back."""

    def wait(self, timeout_s: float) -> None:
        """Wait until it takes more, at most so many seconds."""
        if self._poll is not None:
            self._poll.poll(timeout_s * 1000.0)


class Nowhere:
    """Takes everything and keeps nothing: for a process that was started without standard error."""

    def write(self, data: bytes, /) -> int:
        """See ``Stream``."""
        return len(data)

    def flush(self) -> None:
        """See ``Stream``."""

    def wait(self, timeout_s: float) -> None:
        """See ``Stream``."""


def standard_error() -> Stream | Nowhere:
    """Return where standard error goes."""
    if sys.stderr is None:
        return Nowhere()
    try:
        return Stream(sys.stderr.fileno())
    except (OSError, ValueError):
        return Nowhere()
