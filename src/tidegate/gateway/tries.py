"""How often one request may be tried again while its client has nothing: each backend once, and pauses without hope."""

from __future__ import annotations

from tidegate.gateway.pools import Backend, Pools

MOST_PAUSES = 32
"""Answers of 429 after which the last one goes to the client: who waits for hours behind a quota should know."""


class Tries:
    """The tries of one request."""

    __slots__ = ("_failed", "_pauses")

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self._pauses = 0

    def elsewhere(self, pools: Pools, backend: Backend) -> bool:
        """Note a failure of ``backend``; return whether another one is left to try."""
        self._failed.add(backend.name)
        return pools.has_another(backend, self._failed)

    def later(self) -> bool:
        """Note a 429; return whether to wait for the end of the pause."""
        self._pauses += 1
        return self._pauses <= MOST_PAUSES
