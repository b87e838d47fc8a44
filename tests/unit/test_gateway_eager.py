"""Tasks that begin within the callback that makes them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from tidegate.gateway.eager import EagerTask

pytestmark = pytest.mark.anyio

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="outside")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Begun:
    """A coroutine that has been begun, and how it ended."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        self.end: asyncio.Future[None] = loop.create_future()
        self.task = EagerTask(coroutine, loop, self._over)
        self.task.begin()

    def _over(self, error: BaseException | None) -> None:
        if error is None:
            self.end.set_result(None)
        else:
            self.end.set_exception(error)


class Work:
    """A coroutine that waits for a future, and what became of it."""

    def __init__(self) -> None:
        self.future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.steps: list[str] = []
        self.seen: set[object] = set()

    async def run(self) -> None:
        self.seen.add(asyncio.current_task())
        self.steps.append("begun")
        try:
            self.steps.append(await self.future)
        except asyncio.CancelledError:
            self.steps.append("cancelled")
            raise
        finally:
            self.seen.add(asyncio.current_task())


async def test_what_need_not_wait_ends_before_the_callback_does() -> None:
    steps: list[object] = []

    async def run() -> None:
        steps.append(asyncio.current_task())

    outer = asyncio.current_task()
    begun = Begun(run())
    assert steps == [begun.task]
    assert begun.task.done()
    assert asyncio.current_task() is outer
    for _ in range(2):
        await asyncio.sleep(0)
    assert len(steps) == 1


async def test_what_waits_goes_on_as_the_same_task() -> None:
    work = Work()
    begun = Begun(work.run())
    assert work.steps == ["begun"]
    work.future.set_result("went on")
    assert not begun.task.done()
    await begun.end
    assert begun.task.done()
    assert work.steps == ["begun", "went on"]
    assert work.seen == {begun.task}


async def test_it_hears_the_error_of_what_it_waits_for() -> None:
    work = Work()
    begun = Begun(work.run())
    work.future.set_exception(KeyError("of the future"))
    with pytest.raises(KeyError, match="of the future"):
        await begun.end


class Awaited:
    """Waits for what no loop can wait for."""

    def __init__(self, what: object) -> None:
        self.what = what

    def __await__(self) -> Generator[object, None, None]:
        yield self.what


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("what", [7, "text", object(), ()])
async def test_what_is_no_future_is_the_fault_of_who_waits_for_it(what: object, waits: bool) -> None:
    seen: list[object] = []

    async def run() -> None:
        if waits:
            await asyncio.sleep(0)
        NAME.set("inside")
        try:
            await Awaited(what)
        finally:
            seen.extend((asyncio.current_task(), NAME.get()))
            await asyncio.sleep(0)

    begun = Begun(run())
    with pytest.raises(RuntimeError, match="expected to wait for a future"):
        await begun.end
    assert seen == [begun.task, "inside"]


async def test_it_is_cancelled_where_it_waits_for_what_is_no_future() -> None:
    steps: list[str] = []

    async def run() -> None:
        try:
            await Awaited(7)
        except asyncio.CancelledError:
            steps.append("cancelled")
            await asyncio.sleep(0)

    begun = Begun(run())
    begun.task.cancel()
    await begun.end
    assert steps == ["cancelled"]


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_it_is_cancelled_where_it_waits(turns: int) -> None:
    work = Work()
    begun = Begun(work.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    assert begun.task.cancel()
    assert begun.task.cancelling() == 1
    with pytest.raises(asyncio.CancelledError):
        await begun.end
    assert work.steps == ["begun", "cancelled"]
    assert work.future.cancelled()


async def test_it_is_cancelled_where_what_it_waited_for_has_come() -> None:
    work = Work()
    begun = Begun(work.run())
    work.future.set_result("went on")
    begun.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun.end
    assert work.steps == ["begun", "cancelled"]


async def test_it_is_cancelled_at_its_next_wait_when_it_cancels_itself() -> None:
    steps: list[str] = []

    async def run() -> None:
        own: Any = asyncio.current_task()
        own.cancel("by itself")
        steps.append("goes on")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            steps.append("cancelled")
            await asyncio.sleep(0)  # only once
            steps.append("after it")
            raise

    begun = Begun(run())
    assert steps == ["goes on"]
    with pytest.raises(asyncio.CancelledError):
        await begun.end
    assert steps == ["goes on", "cancelled", "after it"]


async def test_it_is_cancelled_in_a_turn_that_it_gives_to_others() -> None:
    steps: list[str] = []

    async def run() -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            steps.append("cancelled")

    begun = Begun(run())
    begun.task.cancel()
    await begun.end
    assert steps == ["cancelled"]


async def test_one_that_has_ended_is_not_cancelled() -> None:
    async def run() -> None:
        pass

    begun = Begun(run())
    assert not begun.task.cancel()
    await begun.end


async def test_a_cancellation_can_be_taken_back() -> None:
    work = Work()
    begun = Begun(work.run())
    work.future.set_result("went on")
    begun.task.cancel()
    assert begun.task.uncancel() == 0
    assert begun.task.uncancel() == 0
    await begun.end
    assert work.steps == ["begun", "went on"]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("error", [KeyError("at fault"), asyncio.CancelledError(), SystemExit(3)])
async def test_its_error_is_told_within_its_last_step(waits: bool, error: BaseException) -> None:
    async def run() -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    seen: list[object] = []
    task = EagerTask(run(), asyncio.get_running_loop(), lambda end: seen.extend((end, asyncio.current_task())))
    task.begin()
    assert task.done() is not waits
    await asyncio.sleep(0)
    assert seen == [error, task]


async def test_it_has_a_context_of_its_own_in_all_its_steps() -> None:
    names = []

    async def run() -> None:
        NAME.set("inside")
        await asyncio.sleep(0)
        names.append(NAME.get())
        await asyncio.sleep(0.001)
        names.append(NAME.get())

    begun = Begun(run())
    assert NAME.get() == "outside"
    await begun.end
    assert names == ["inside", "inside"]


async def test_time_outs_work_from_the_first_step_on() -> None:
    async def run() -> None:
        async with asyncio.timeout(0):
            await asyncio.get_running_loop().create_future()

    begun = Begun(run())
    with pytest.raises(TimeoutError):
        await begun.end
    assert begun.task.cancelling() == 0


async def test_a_cancellation_is_not_taken_for_the_time_out_that_comes_with_it() -> None:
    async def run() -> None:
        async with asyncio.timeout(0):
            await asyncio.get_running_loop().create_future()

    begun = Begun(run())
    begun.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun.end


async def test_a_task_that_it_waits_for_is_cancelled_with_it() -> None:
    work = Work()

    async def run() -> None:
        await asyncio.ensure_future(work.run())

    begun = Begun(run())
    await asyncio.sleep(0)
    begun.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun.end
    assert work.steps == ["begun", "cancelled"]


async def test_nothing_is_left_to_the_collector() -> None:
    async def run(way: str) -> None:
        if way == "cancelled":
            await asyncio.get_running_loop().create_future()
        elif way != "at once":
            await asyncio.sleep(0)
        if way == "fails":
            raise KeyError(way)

    async def end(way: str) -> None:
        task = EagerTask(run(way), asyncio.get_running_loop(), lambda _error: None)
        task.begin()
        if way.startswith("cancelled"):
            task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert task.done()

    ways = ("at once", "waits", "fails", "cancelled", "cancelled in its turn")
    for way in ways:  # what is made once
        await end(way)
    gc.collect()
    gc.disable()
    try:
        for number in range(100):
            await end(ways[number % 5])
        assert gc.collect() < 20
    finally:
        gc.enable()
