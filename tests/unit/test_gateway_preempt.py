"""A request that is stopped: it gives its seat back when the engine has let go, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from tidegate.backends import Response
from tidegate.core import BackendSpec, Policy, PoolSpec, Reason, Release, Scheduler, Stoppable, Ticket
from tidegate.gateway.exchange import FAILED, Exchange
from tidegate.gateway.flow import Flow
from tidegate.gateway.link import ClientLink
from tidegate.runtime import Driver
from tidegate.telemetry import Recorder
from tidegate.testing import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.interpreted]  # its answers stand in place of a class that can be compiled

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 1),)),))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Wire(asyncio.Transport):
    """A client's connection that does nothing."""


class Leaving:
    """An upstream answer whose engine lets go when the test says so."""

    def __init__(self, *, over: bool = False) -> None:
        self.over = over
        self.aborted = 0
        self.let_go: Callable[[], None] | None = None

    def leave(self, left: Callable[[], None]) -> None:
        self.let_go = left

    def abort(self) -> None:
        self.aborted += 1


class Stage:
    def __init__(self) -> None:
        self.recorder = Recorder(POLICY)
        self.driver = Driver(Scheduler(POLICY), ManualClock(), self.recorder)

    @property
    def held(self) -> tuple[int, int]:
        return self.driver.running, self.driver.waiting

    def ended(self) -> dict[str, int]:
        return {
            outcome.value: count
            for account in self.recorder.accounts.values()
            for (_, outcome), count in account.requests.items()
            if count
        }


def link() -> ClientLink:
    return ClientLink(Wire(), Flow(Wire()), {})


async def seated(stage: Stage, exchange: Exchange, answer: Leaving, *, may: bool = True) -> None:
    await exchange.seat(Ticket("t", "m", 2, "tenant", stoppable=Stoppable.ALWAYS))
    exchange.may_stop = lambda: may
    exchange.sent(cast(Response, answer))


@pytest.mark.parametrize("why", ["cannot go on", "at its end", "ended by us", "old lease"])
async def test_what_cannot_be_stopped_just_now_says_so(why: str) -> None:
    stage = Stage()
    with Exchange(stage.driver, link()) as exchange:
        answer = Leaving(over=why == "at its end")
        await seated(stage, exchange, answer, may=why != "cannot go on")
        lease = exchange.lease
        assert lease is not None
        if why == "ended by us":
            exchange.stop(Reason.DRAINING)
        elif why == "old lease":
            exchange.finish(FAILED)
        assert not exchange.preempt(lease)
        assert (exchange.cut, answer.let_go) == (False, None)


async def test_the_seat_is_held_until_the_engine_lets_go_and_then_asked_for_again() -> None:
    stage = Stage()
    with Exchange(stage.driver, link()) as exchange:
        answer = Leaving()
        await seated(stage, exchange, answer)
        lease = exchange.lease
        assert lease is not None
        assert exchange.preempt(lease)
        assert not exchange.preempt(lease), "once"
        again = asyncio.ensure_future(exchange.regained())
        await asyncio.sleep(0)
        assert (stage.held, exchange.lease) == ((1, 0), lease)
        assert answer.let_go is not None
        answer.let_go()
        assert await again is exchange.lease is not None
        assert exchange.lease is not lease
        assert not exchange.cut
        exchange.finish(Release())
    assert (stage.held, stage.ended()) == ((0, 0), {"completed": 1})


@pytest.mark.parametrize("asked", [False, True], ids=["notices before it asks", "has begun to ask"])
async def test_what_has_not_been_asked_yet_is_stopped_too(asked: bool) -> None:
    """It costs least of all. Where the request was on its way to the engine, that lets go like any other."""
    stage = Stage()
    with Exchange(stage.driver, link()) as exchange:
        answer = Leaving()
        await seated(stage, exchange, answer)
        exchange.response = None
        lease = exchange.lease
        assert lease is not None
        assert exchange.preempt(lease)
        assert (stage.held, answer.let_go) == ((1, 0), None)
        if asked:
            exchange.sent(cast(Response, answer))
            again = asyncio.ensure_future(exchange.regained())
            await asyncio.sleep(0)
            assert exchange.lease is lease
            assert answer.let_go is not None
            answer.let_go()
            assert await again is not lease
        else:
            assert await exchange.regained() is not lease
        assert exchange.lease is not None
        assert not exchange.cut
        exchange.sent(cast(Response, later := Leaving()))
        assert later.let_go is None
        exchange.finish(Release())
    assert (stage.held, stage.ended()) == ((0, 0), {"completed": 1})


@pytest.mark.parametrize("way", ["client left", "we ended it", "it failed"])
async def test_a_request_that_ends_while_the_engine_lets_go_leaves_nothing(way: str) -> None:
    stage = Stage()
    answer, client = Leaving(), link()

    async def request() -> None:
        with Exchange(stage.driver, client) as exchange:
            await seated(stage, exchange, answer)
            assert exchange.lease is not None
            exchange.preempt(exchange.lease)
            if way == "we ended it":
                asyncio.get_running_loop().call_soon(exchange.stop, Reason.DRAINING)
            if way == "it failed":
                exchange.end(FAILED, Reason.PREEMPTED)
                return
            await exchange.regained()

    task = asyncio.ensure_future(request())
    await asyncio.sleep(0)
    if way == "client left":
        client.hang_up()
    await asyncio.gather(task, return_exceptions=True)
    assert stage.held == (0, 0)
    assert answer.let_go is not None
    answer.let_go()
    assert stage.held == (0, 0)
    assert stage.ended() == {"cancelled" if way == "client left" else "failed": 1}


async def test_a_backend_that_is_given_up_ends_the_answer_only() -> None:
    stage = Stage()
    with Exchange(stage.driver, link()) as exchange:
        answer = Leaving()
        await seated(stage, exchange, answer)
        exchange.lose(Reason.UPSTREAM_TIMEOUT)
        assert (answer.aborted, exchange.lost, exchange.stopped) == (1, Reason.UPSTREAM_TIMEOUT, None)
        exchange.asked()
        assert exchange.lost is None, "another backend is asked"
