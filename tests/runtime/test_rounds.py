"""Everything is looked at once in a round, and never much of it at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from tidegate.runtime import Parted, Rounds
from tidegate.runtime.rounds import PARTS


class Timers:
    """As much of an event loop as there is to it: one timer, and a time that stands until it is turned."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: tuple[float, Callable[..., None], Any] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, call: Callable[..., None], argument: Any) -> Timers:
        assert self.due is None
        self.due = (self.now + delay_s, call, argument)
        return self

    def cancel(self) -> None:
        self.due = None

    def turn(self) -> None:
        assert self.due is not None
        (self.now, call, argument), self.due = self.due, None
        call(argument)


class Thing:
    """Something with an identity."""


def begun(things: Parted[Thing], looks: list[list[Thing]]) -> tuple[Rounds[Thing], Timers]:
    timers = Timers()

    def look(part: Sequence[Thing], now: float) -> None:
        assert now == timers.now
        looks.append(list(part))

    rounds = Rounds(1.0, things, look)
    rounds.start(cast(asyncio.AbstractEventLoop, timers))
    return rounds, timers


def parted(count: int) -> Parted[Thing]:
    things: Parted[Thing] = Parted()
    for _ in range(count):
        things.add(Thing())
    return things


@pytest.mark.parametrize("count", [0, 1, PARTS, 5_000])
def test_each_thing_is_looked_at_once_in_a_round(count: int) -> None:
    things, looks = parted(count), list[list[Thing]]()
    _, timers = begun(things, looks)
    for rounds in (1, 2, 3):
        for _ in range(PARTS - 1):
            timers.turn()
        assert Counter(thing for part in looks for thing in part) == dict.fromkeys(things, rounds)
        timers.turn()  # the next round begins
    assert timers.now == pytest.approx(3.0)


def test_no_part_is_much_larger_than_another() -> None:
    looks: list[list[Thing]] = []
    things = parted(5_000)
    _, timers = begun(things, looks)
    for _ in range(PARTS - 1):
        timers.turn()
    assert max(map(len, looks)) < 3 * 5_000 / PARTS


def test_things_may_go_while_they_are_looked_at_and_nothing_is_looked_at_after_the_end() -> None:
    things, timers, seen = parted(500), Timers(), 0

    def look(part: Sequence[Thing], _: float) -> None:
        nonlocal seen
        for thing in part:
            seen += 1
            things.discard(thing)

    rounds = Rounds(1.0, things, look)
    rounds.start(cast(asyncio.AbstractEventLoop, timers))
    for _ in range(2 * PARTS):
        timers.turn()
    assert (seen, len(things)) == (500, 0)
    rounds.stop()
    assert timers.due is None


def test_parts_are_one_set_together() -> None:
    things, one = parted(100), Thing()
    assert one not in things
    things.add(one)
    things.add(one)
    assert one in things
    assert len(things) == len(list(things)) == 101
    things.discard(one)
    things.discard(one)
    assert len(things) == 100


def test_a_look_that_fails_is_not_the_last() -> None:
    timers, looks = Timers(), 0

    def look(part: Sequence[Thing], now: float) -> None:
        nonlocal looks
        looks += 1
        raise ValueError("as never before")

    rounds = Rounds(1.0, parted(500), look)
    with pytest.raises(ValueError, match="never"):
        rounds.start(cast(asyncio.AbstractEventLoop, timers))
    for _ in range(PARTS):
        with pytest.raises(ValueError, match="never"):
            timers.turn()
    assert looks == PARTS + 1
