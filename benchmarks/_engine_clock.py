"""A clock that stands still while an engine that is ready to compute gets no core, so that other work does not count.

Linux counts for each thread how long it ran and how long it was ready and had to wait (``/proc/PID/schedstat``). What
has passed for vLLM is the time less the wait of its worker, which computes the steps, and less the wait of its core,
which lays them out, as far as the worker had nothing to do meanwhile. On a machine of its own it is plain time.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from pathlib import Path

from tidegate.testing.engines import EngineServer

PARTS = (b"Worker", b"EngineCore")
"""In the names of vLLM's two processes that matter."""
_LOOK_S = 0.01


class EngineClock:
    """Notes what was lost to others, every 10 ms while it is entered."""

    def __init__(self, engine: EngineServer) -> None:
        names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in engine.members()}
        pids = [next((pid for pid, name in names.items() if part in name), engine.pid) for part in PARTS]
        self._files = [Path(f"/proc/{pid}/schedstat") for pid in pids]
        self._stop = threading.Event()
        self._at, self._lost = [time.monotonic()], [0.0]
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

    def _read(self) -> list[tuple[float, float]]:
        """Seconds that worker and core ran, and that they waited, so far."""
        fields = [file.read_text().split() for file in self._files]
        return [(int(ran) / 1e9, int(waited) / 1e9) for ran, waited, *_ in fields]

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # the engine has ended
            before = self._read()
            while not self._stop.wait(_LOOK_S):
                found, now = self._read(), time.monotonic()
                spans = [(a[0] - b[0], a[1] - b[1]) for a, b in zip(found, before, strict=True)]
                self._lost.append(self._lost[-1] + lost_in(now - self._at[-1], *spans))
                self._at.append(now)
                before = found


def lost_in(span: float, worker: tuple[float, float], core: tuple[float, float]) -> float:
    """Give what was lost in a span, seconds, of which worker and core ran so long and waited so long."""
    idle = max(0.0, span - sum(worker))
    return min(span, worker[1] + min(core[1], idle))
