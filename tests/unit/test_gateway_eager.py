"""Tasks that begin within the callback that makes them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from tidegate.gateway.eager import Early

pytestmark = pytest.mark.anyio

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="outside")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def begun(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    early, loop = Early(coroutine), asyncio.get_running_loop()
    task = early.task(loop)
    early.begin(loop, task)
    return task


class Work:
    """A coroutine that waits for a future, and what became of it."""

    def __init__(self) -> None:
        self.future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.steps: list[str] = []
        self.seen: set[asyncio.Task[Any] | None] = set()

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
    steps = []

    async def run() -> None:
        steps.append(asyncio.current_task())

    outer = asyncio.current_task()
    task = begun(run())
    assert steps == [task]
    assert asyncio.current_task() is outer
    await task
    assert len(steps) == 1


async def test_what_waits_goes_on_as_the_same_task() -> None:
    work = Work()
    task = begun(work.run())
    assert work.steps == ["begun"]
    work.future.set_result("went on")
    await task
    assert work.steps == ["begun", "went on"]
    assert work.seen == {task}


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_it_is_cancelled_where_it_waits_also_before_its_task_knows(turns: int) -> None:
    work = Work()
    task = begun(work.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.steps == ["begun", "cancelled"]
    assert work.future.cancelled()


async def test_one_that_has_ended_is_not_cancelled() -> None:
    async def run() -> None:
        pass

    task = begun(run())
    task.cancel()
    await task
    assert not task.cancelled()


@pytest.mark.parametrize("waits", [False, True])
async def test_its_error_is_the_task_s(waits: bool) -> None:
    async def run() -> None:
        if waits:
            await asyncio.sleep(0)
        raise KeyError("at fault")

    with pytest.raises(KeyError, match="at fault"):
        await begun(run())


async def test_it_has_a_context_of_its_own_in_all_its_steps() -> None:
    names = []

    async def run() -> None:
        NAME.set("inside")
        await asyncio.sleep(0)
        names.append(NAME.get())

    task = begun(run())
    assert NAME.get() == "outside"
    await task
    assert names == ["inside"]


async def test_time_outs_work_from_the_first_step_on() -> None:
    async def run() -> None:
        async with asyncio.timeout(0):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        await begun(run())


async def test_nothing_is_left_to_the_collector() -> None:
    async def run(waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)

    for waits in (False, True):  # what is made once
        await begun(run(waits))
    gc.collect()
    gc.disable()
    try:
        for number in range(100):
            await begun(run(number % 2 == 0))
        assert gc.collect() < 20
    finally:
        gc.enable()
