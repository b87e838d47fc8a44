"""How often one request may be tried again, each backend once, pauses without hope; and what its answer carries."""

from __future__ import annotations

from enum import Enum, auto

from tidegate.gateway.pools import Backend, Pools
from tidegate.gateway.resuming import Resuming

MOST_PAUSES = 32
"""Answers of 429 after which the last one goes to the client: who waits for hours behind a quota should know."""


class Cut(Enum):
    """The scheduler has had the request stopped; it waits for its next seat."""

    CUT = auto()


class Tries:
    """The tries of one request.

    Attributes:
        resuming: what its answer carries from one to the next; ``None``: it cannot go on once it has begun.
        begun: its client has a part of the answer, or the gateway has.
    """

    __slots__ = ("_failed", "_pauses", "begun", "resuming")

    def __init__(self, resuming: Resuming | None = None) -> None:
        self._failed: tuple[str, ...] = ()
        self._pauses = 0
        self.resuming = resuming
        self.begun = False

    def elsewhere(self, pools: Pools, backend: Backend) -> bool:
        """Note a failure of ``backend``; return whether another one is left to try."""
        self._failed += (backend.name,)
        return pools.has_another(backend, self._failed)

    def later(self) -> bool:
        """Note a 429; return whether to wait for the end of the pause."""
        self._pauses += 1
        return self._pauses <= MOST_PAUSES

    def may_stop(self) -> bool:
        """Say whether the request can be stopped just now without losing what its client has."""
        return not self.begun if self.resuming is None else self.resuming.may_stop()

    @property
    def carries(self) -> bool:
        """Whether a part of an answer is there that the next try goes on with."""
        return self.resuming is not None and self.resuming.carries
