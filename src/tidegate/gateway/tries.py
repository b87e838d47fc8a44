"""How often one request may be tried again, each backend once, pauses without hope; and what its answer carries."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from tidegate.core.compiling import mypyc_attr
from tidegate.gateway.pools import Backend, Pools
from tidegate.gateway.resuming import Resuming

MOST_PAUSES: Final = 32
"""Answers of 429 after which the last one goes to the client: who waits for hours behind a quota should know."""


class Cut(Enum):
    """The scheduler has had the request stopped; it waits for its next seat."""

    CUT = auto()


@mypyc_attr(acyclic=True)
class Tries:
    """The tries of one request.

    Attributes:
        resuming: what its answer carries from one to the next; ``None``: it cannot go on once it has begun.
        begun: its client has a part of the answer, or the gateway has.
        failed: names of the backends that have failed it.
        pauses: answers of 429 so far.
    """

    __slots__ = ("begun", "failed", "pauses", "resuming")

    def __init__(self, resuming: Resuming | None = None) -> None:
        self.resuming = resuming
        self.begun = False
        self.failed: tuple[str, ...] = ()
        self.pauses = 0

    def elsewhere(self, pools: Pools, backend: Backend) -> bool:
        """Note a failure of ``backend``; return whether another one is left to try."""
        self.failed += (backend.name,)
        return pools.has_another(backend, self.failed)

    def later(self) -> bool:
        """Note a 429; return whether to wait for the end of the pause."""
        self.pauses += 1
        return self.pauses <= MOST_PAUSES

    def may_stop(self) -> bool:
        """Say whether the request can be stopped just now without losing what its client has."""
        return not self.begun if self.resuming is None else self.resuming.may_stop()

    @property
    def carries(self) -> bool:
        """Whether a part of an answer is there that the next try goes on with."""
        return self.resuming is not None and self.resuming.carries
