"""How long a replica waits for an answer of its ledger before it goes on without: as TCP judges (RFC 6298). Pure.

A fixed time is wrong either way: requests wait for nothing where the store is near and dead, or start beside the order
again and again where a crowded machine makes it slow. Times in seconds.
"""

from __future__ import annotations

from typing import Final

SILENT_S: Final = 0.25
"""Without an answer for so long the ledger counts as away, and nobody waits longer for it."""
SHORTEST_S: Final = 0.05
"""Nobody goes on alone sooner, however fast the ledger usually is."""
LIFT_S: Final = 0.08
"""Who goes on alone takes one seat more after so long, until the ledger counts as away."""


class Patience:
    """Of one replica with one ledger.

    Attributes:
        limit_s: how long an answer may take: the mean time of calls and four times its mean deviation, from
            ``SHORTEST_S`` to ``SILENT_S``; that as well before the first answer.
    """

    def __init__(self) -> None:
        self.limit_s = SILENT_S
        self._mean_s: float | None = None
        self._deviation_s = 0.0

    def learn(self, took_s: float) -> None:
        """Take in how long an answered call took; after ``SILENT_S`` it tells that the ledger was away, no more."""
        if took_s >= SILENT_S:
            return
        if self._mean_s is None:
            self._mean_s, self._deviation_s = took_s, took_s / 2
        else:
            self._deviation_s += (abs(took_s - self._mean_s) - self._deviation_s) / 4
            self._mean_s += (took_s - self._mean_s) / 8
        self.limit_s = min(SILENT_S, max(SHORTEST_S, self._mean_s + 4 * self._deviation_s))
