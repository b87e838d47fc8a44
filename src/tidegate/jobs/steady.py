"""Wall-clock time that does not jump: for deadlines and leases, which are written down and outlive the process.

It goes on with the monotonic clock, and leans towards the wall clock: half as fast again, or half as fast, until they
agree. So it never goes backwards, a clock that is set ahead takes at most a third of a batch's window, and one that is
set back adds no more than it was set back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.runtime import Clock

LOOK_S: Final = 0.25
"""Time between two looks at the wall clock."""
LEAN: Final = 0.5


class SteadyClock:
    """Seconds since 1970 in UTC, steadily.

    Args:
        clock: the machine's.
        start_utc: what it says first; the reference's time if absent.
        reference: the time that it leans to, ``None`` when it cannot be read now; the machine's wall clock if absent.
    """

    def __init__(
        self, clock: Clock, *, start_utc: float | None = None, reference: Callable[[], float | None] | None = None
    ) -> None:
        self._clock = clock
        self._reference = reference or (lambda: clock.utc_now().timestamp())
        self._at = clock.now()
        start = self._reference() if start_utc is None else start_utc
        self._utc = clock.utc_now().timestamp() if start is None else start
        self._rate = 1.0

    def __call__(self) -> float:
        """Return the time."""
        now = self._clock.now()
        passed = now - self._at
        utc = self._utc + passed * self._rate
        if passed >= LOOK_S:
            wanted = self._reference()
            off = 0.0 if wanted is None else wanted - utc
            self._at, self._utc = now, utc
            self._rate = 1.0 + min(LEAN, max(-LEAN, off))
        return utc
