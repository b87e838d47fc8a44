"""What runs in a task of our own sees, step by step and turn by turn, what it would see in one of asyncio's.

Coroutines are made at random of what asyncio has for its users, and are cancelled at random while they wait. Two
differences are meant: what has ended by itself is not cancelled any more, and a cancellation that is taken back before
it has been raised is not raised, as from Python 3.13 on (so none is taken back here before it was seen).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest

from tidegate.gateway.eager import EagerTask
from tidegate.testing import run_virtual

TURNS = 60
PLAIN = ("turn", "future", "done", "failed", "sleep", "cancel", "gather", "shield", "wait_for", "wait", "lock", "bare")
KINDS = (*PLAIN, "foreign", "timeout", "group", "try", "try")
HOLDS = ("timeout", "group", "try")

Part = Callable[[], Awaitable[None]]


class Awaited:
    """Yields something to the loop, as a future does."""

    def __init__(self, what: object) -> None:
        self.what = what

    def __await__(self) -> Generator[object, None, None]:
        yield self.what


class Play:
    """A coroutine made of a seed, and what it saw."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seen: list[object] = []
        self.futures = [asyncio.get_running_loop().create_future() for _ in range(4)]
        self.parts = [self.part(3) for _ in range(self.chance.randrange(1, 5))]

    async def run(self) -> None:
        for part in self.parts:
            await part()
        self.seen.append("end")

    async def child(self, name: str, turns: int, *, fails: bool) -> None:
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
        finally:
            self.seen.append(name)
        if fails:
            raise KeyError(name)

    def part(self, depth: int) -> Part:
        chance = self.chance
        kind, few, yes, fails = chance.choice(KINDS), chance.randrange(4), chance.random() < 0.5, chance.random() < 0.3
        within = [self.part(depth - 1) for _ in range(chance.randrange(1, 3))] if depth and kind in HOLDS else []

        async def go() -> None:
            task: Any = asyncio.current_task()
            self.seen.append((kind, few, task.cancelling()))
            await self.do(kind, few, yes=yes, fails=fails, within=within)

        return go

    async def do(self, kind: str, few: int, *, yes: bool, fails: bool, within: list[Part]) -> None:
        task: Any = asyncio.current_task()
        future = asyncio.get_running_loop().create_future()
        match kind:
            case "turn":
                await asyncio.sleep(0)
            case "future":
                self.seen.append(await self.futures[few])
            case "done":
                future.set_result(few)
                self.seen.append(await future)
            case "failed":
                future.set_exception(ValueError())
                await future
            case "sleep":
                await asyncio.sleep(0.001)
            case "cancel":
                task.cancel()
            case "timeout":
                async with asyncio.timeout(0.0004 * few):
                    for part in within:
                        await part()
                    await asyncio.sleep(0.001)
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.child("one", few, fails=fails))
                    group.create_task(self.child("other", few + 1, fails=fails and yes))
                    for part in within:
                        await part()
            case "gather":
                both = self.child("one", few, fails=fails), self.child("other", 1, fails=False)
                self.seen.append(repr(await asyncio.gather(*both, return_exceptions=yes)))
            case "shield":
                await asyncio.shield(asyncio.ensure_future(self.child("kept", few, fails=False)))
            case "wait_for":
                await asyncio.wait_for(self.child("waited", few, fails=fails), 0 if yes else 1)
            case "wait":
                await asyncio.wait([asyncio.ensure_future(self.child("one", few, fails=False))])
            case "lock":
                async with asyncio.Lock():
                    await asyncio.sleep(0)
            case "bare":
                await Awaited(None)
            case "foreign":
                await Awaited((7, "text", (), 0.5)[few])
            case _:
                await self.attempt(within, yes=yes, takes_back=fails)

    async def attempt(self, within: list[Part], *, yes: bool, takes_back: bool) -> None:
        task: Any = asyncio.current_task()
        try:
            for part in within:
                await part()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            if not yes:
                raise
            if takes_back and task.cancelling() > 1:
                task.uncancel()
        except Exception as error:  # noqa: BLE001 - whatever it is, both see it
            self.seen.append(type(error))
        finally:
            await asyncio.sleep(0)


async def played(seed: int, begin: Callable[[Coroutine[Any, Any, None]], Any], ends: list[object]) -> Play:
    """Play it, with a hand that cancels it and gives it what it waits for."""
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    play, chance = Play(seed), random.Random(~seed)
    task = begin(play.run())
    if isinstance(task, asyncio.Task):
        await asyncio.sleep(0)  # which is when it begins
    for turn in range(TURNS):
        does = chance.choice(("cancel", "twice", "give", "fail", "", "", "") if turn < TURNS / 2 else ("give", "sleep"))
        future = chance.choice(play.futures)
        if does in ("cancel", "twice"):
            task.cancel()
            if does == "twice":
                task.cancel()
        elif does == "give" and not future.done():
            future.set_result(turn)
        elif does == "fail" and not future.done():
            future.set_exception(OSError())
        elif does == "sleep":
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        play.seen.append("a turn")
    for future in play.futures:
        if not future.done():
            future.set_result("late")
    for _ in range(20):
        await asyncio.sleep(0.002)
    assert task.done()
    if isinstance(task, asyncio.Task):
        ends.append(asyncio.CancelledError if task.cancelled() else type(task.exception()))
    return play


def theirs(seed: int) -> tuple[object, list[object]]:
    ends: list[object] = []
    seen = run_virtual(played(seed, asyncio.ensure_future, ends)).seen
    return ends[0], seen


def ours(seed: int) -> tuple[object, list[object]]:
    ends: list[object] = []

    def begin(coroutine: Coroutine[Any, Any, None]) -> EagerTask:
        task = EagerTask(coroutine, asyncio.get_running_loop(), lambda end: ends.append(type(end)))
        task.begin()
        return task

    seen = run_virtual(played(seed, begin, ends)).seen
    assert len(ends) == 1
    return ends[0], seen


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_a_task_of_our_own_is_to_what_it_runs_as_one_of_asyncio_s(first: int) -> None:
    kinds: set[object] = set()
    for seed in range(first, first + 100):
        end, seen = ours(seed)
        other, also = theirs(seed)
        assert seen == also, seed
        assert end is other or (end is type(None) and other is asyncio.CancelledError and seen.count("end") == 1), seed
        kinds.update(each[0] for each in seen if isinstance(each, tuple))
    assert kinds == set(KINDS)
