"""When the garbage collector may stop the loop, and for how long.

Almost nothing here dies by the collector: per-request objects hold no cycles and go with their last reference. So
the collector mostly costs, and its full run (generation 2) stops everything. Measured with CPython 3.11 on a
2-core machine while 200,000 waiting tickets of six objects each are built:

==========================  ============  =====================  =====================
thresholds                  whole build   longest young run      longest full run
==========================  ============  =====================  =====================
700, 10, 10 (the default)   1217 ms       0.7 ms                 229 ms (9 runs)
10,000, 10, off             442 ms        23.4 ms                none
5,000, 5, off               362 ms        3.8 ms                 none
2,000, 10, off              379 ms        1.8 ms                 none
==========================  ============  =====================  =====================

and, on another machine of the kind, with the time of all runs in place of the whole build's:

==========================  ============  =====================
2,000, 10, off              115 ms        1.9 to 5.5 ms
**500, 1, off**             93 ms         0.19 ms
==========================  ============  =====================

So young runs stay, of some 1,000 objects (20,000 took up to 50 ms among cold caches). The threshold alone does not
bound them: it counts what was made less what has died, whatever its age. So beside 5,000 open streams, of which 41 a
second end, 3,000 to 5,800 young objects had gathered before each run, which took 1.5 to 9 ms. Therefore the young are
looked at every ``YOUNG_EVERY_S`` too: there 600 objects and 0.15 ms at a time, at most 0.4, half of the time in all.

The full run happens on a timer instead, between two callbacks, so that no scheduler call contains one. It is needed:
what little cyclic garbage there is (tracebacks, mostly) would otherwise pile up. A full run takes 0.2 µs per live
object and more where they lie apart: 5 ms for a calm gateway, 240 ms for the 200,000 tickets above, 370 ms beside 5,000
open streams. So it waits for a calm moment, when no more than ``CALM`` requests wait or run, for ``PATIENCE_S`` at
most. Connections without a request count too, ``IDLE`` of them as one: 5,000 are 110,000 objects and take 10 to 22 ms.
The pause to the next one is ``SHARE`` times the length of the last, at least ``PAUSE_S``, so the loop stands
still for at most one part in ``SHARE`` of the time however much is alive.

What exists after start (modules, configuration: tens of thousands of objects) is frozen, so that no run ever visits it
again.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from tidegate.runtime.clock import Clock

YOUNG = (500, 1, 1_000_000_000)  # the third is counted up fifty times a second
YOUNG_EVERY_S = 0.02
PAUSE_S = 60.0
SHARE = 5_000
CALM = 200
"""Requests in the house beside which a full run is short: about 70 µs each."""
IDLE = 5
PATIENCE_S = 4 * 3600.0


class GcPolicy:
    """Owns the settings of the process's garbage collector between ``start`` and ``stop``.

    Args:
        clock: for the length of a run.
        alive: how many requests wait or run.
        connected: how many clients are connected.
    """

    def __init__(
        self, clock: Clock, alive: Callable[[], int] = lambda: 0, connected: Callable[[], int] = lambda: 0
    ) -> None:
        self._clock = clock
        self._alive = alive
        self._connected = connected
        self._due = 0.0
        self._before = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None
        self._young: asyncio.TimerHandle | None = None
        self.last_s = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Freeze what is alive, set the thresholds, plan the first full run. Call when all is built."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*YOUNG)
        self._plan(loop, PAUSE_S)
        self._young = loop.call_later(YOUNG_EVERY_S, self._collect_young, loop)

    def stop(self) -> None:
        """Give the collector back as it was found."""
        if self._timer is not None and self._young is not None:
            self._timer.cancel()
            self._young.cancel()
            self._timer = self._young = None
            gc.set_threshold(*self._before)
            gc.unfreeze()

    def _plan(self, loop: asyncio.AbstractEventLoop, pause_s: float) -> None:
        self._due = loop.time() + pause_s
        self._timer = loop.call_later(pause_s, self._collect, loop)

    def _collect_young(self, loop: asyncio.AbstractEventLoop) -> None:
        gc.collect(1)
        self._young = loop.call_later(YOUNG_EVERY_S, self._collect_young, loop)

    def _collect(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._alive() + self._connected() // IDLE > CALM and loop.time() < self._due + PATIENCE_S:
            self._timer = loop.call_later(PAUSE_S, self._collect, loop)
            return
        began = self._clock.now()
        gc.collect()
        self.last_s = self._clock.now() - began
        self._plan(loop, max(PAUSE_S, self.last_s * SHARE))
