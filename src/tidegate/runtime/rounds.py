"""Look at everything of a kind again and again, a part at a time.

Among cold caches a look at one connection or request takes up to a microsecond, so one at 5,000 of them would keep the
event loop for some milliseconds, in which nothing else moves. Nor is there ever a list of them all, through which the
next two runs of the garbage collector over young objects would go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

PARTS: Final = 23
"""Of a round: at 5,000 things, some 220 at a time. A prime, since places in memory have common factors."""


class Parted(Collection[T]):
    """A set of things that are equal to nothing but themselves, kept in parts."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: tuple[set[T], ...] = tuple(set() for _ in range(PARTS))

    def add(self, thing: T) -> None:
        """Keep it."""
        self._parts[hash(thing) % PARTS].add(thing)

    def discard(self, thing: T) -> None:
        """Keep it no longer, if it is there."""
        self._parts[hash(thing) % PARTS].discard(thing)

    def part(self, number: int) -> Sequence[T]:
        """Give a part as it is now."""
        return tuple(self._parts[number % PARTS])

    def __contains__(self, thing: object) -> bool:
        return thing in self._parts[hash(thing) % PARTS]

    def __iter__(self) -> Iterator[T]:
        for part in self._parts:
            yield from part

    def __len__(self) -> int:
        return sum(map(len, self._parts))


class Rounds(Generic[T]):
    """Gives each thing to ``look`` once in a round.

    Args:
        every_s: length of a round.
        things: what there is.
        look: takes a part of it and the loop's time.
    """

    def __init__(self, every_s: float, things: Parted[T], look: Callable[[Sequence[T], float], None]) -> None:
        self._pause_s = every_s / PARTS
        self._things = things
        self._look = look
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the next part now, and the others as their time comes."""
        self._timer = loop.call_later(self._pause_s, self.start, loop)  # first: a look that fails is not the last
        part = self._things.part(self._number)
        self._number += 1
        if part:
            self._look(part, loop.time())

    def stop(self) -> None:
        """Look at nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
