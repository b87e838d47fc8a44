"""A clock that stands still while an engine that is ready to compute gets no core, so that other work does not count.

Linux counts for each thread how long it was ready and had to wait (``/proc/PID/schedstat``). The time of vLLM's worker,
which computes the steps, less that wait is what has passed for the engine. On a machine of its own it is plain time.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from pathlib import Path

from tidegate.testing.engines import EngineServer

_LOOK_S = 0.01


class EngineClock:
    """Notes the wait of the thread that computes, every 10 ms while it is entered."""

    def __init__(self, engine: EngineServer) -> None:
        names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in engine.members()}
        worker = next((pid for pid, name in names.items() if b"Worker" in name), engine.pid)
        self._file = Path(f"/proc/{worker}/schedstat")
        self._stop = threading.Event()
        self._at = [time.monotonic()]
        self._lost = [self._read()]
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> EngineClock:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def at(self, moment: float) -> float:
        """Give the engine's time at a moment of ``time.monotonic``, between two looks or after the last, seconds."""
        after = bisect.bisect_left(self._at, moment)
        if after in (0, len(self._at)):
            return moment - self._lost[min(after, len(self._at) - 1)]
        span = self._at[after] - self._at[after - 1]
        part = (moment - self._at[after - 1]) / span
        return moment - (self._lost[after - 1] + part * (self._lost[after] - self._lost[after - 1]))

    def between(self, start: float, end: float) -> float:
        """Give the engine's seconds between two moments."""
        return self.at(end) - self.at(start)

    def lost(self) -> float:
        """Give the part of the time so far in which the engine had to wait for a core."""
        return (self._lost[-1] - self._lost[0]) / max(1e-9, self._at[-1] - self._at[0])

    def _read(self) -> float:
        return int(self._file.read_text().split()[1]) / 1e9

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # the engine has ended
            while not self._stop.wait(_LOOK_S):
                lost = self._read()
                self._lost.append(lost)
                self._at.append(time.monotonic())
