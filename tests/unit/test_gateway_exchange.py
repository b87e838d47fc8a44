"""A request's hold on the scheduler: whatever way it ends, nothing stays behind and the seat goes back once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from tidegate.backends import Response
from tidegate.core import BackendSpec, Outcome, Policy, PoolSpec, Reason, Release, Scheduler, Ticket
from tidegate.gateway.exchange import Exchange
from tidegate.gateway.flow import Flow
from tidegate.gateway.link import ClientLink
from tidegate.gateway.watch import Used
from tidegate.runtime import Driver
from tidegate.telemetry import Recorder
from tidegate.testing import ManualClock

pytestmark = pytest.mark.anyio

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 1),)),))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Wire(asyncio.Transport):
    """A client's connection that does nothing."""


class FakeResponse:
    """An upstream answer that only notes its end."""

    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


class Stage:
    """One seat, a driver, and what was counted."""

    def __init__(self) -> None:
        self.recorder = Recorder(POLICY)
        self.driver = Driver(Scheduler(POLICY), ManualClock(), self.recorder)
        self.numbers = iter(range(1, 100))

    def ticket(self) -> Ticket:
        return Ticket(f"t{next(self.numbers)}", "m", 1, "tenant")

    @property
    def held(self) -> tuple[int, int]:
        return self.driver.running, self.driver.waiting

    def ended(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for account in self.recorder.accounts.values():
            for (_, outcome), count in account.requests.items():
                found[outcome.value] = found.get(outcome.value, 0) + count
        return found


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def response() -> tuple[FakeResponse, Response]:
    fake = FakeResponse()
    return fake, cast(Response, fake)


async def test_a_free_seat_is_taken_without_waiting() -> None:
    stage = Stage()
    with Exchange(stage.driver, ClientLink(Wire(), Flow(Wire()), {})) as exchange:
        lease = await exchange.seat(stage.ticket())
        assert lease is exchange.lease is not None
        exchange.finish(Release(Outcome.COMPLETED))
        exchange.finish(Release(Outcome.FAILED))
        assert stage.held == (0, 0)
    assert stage.ended() == {"completed": 1}


@pytest.mark.interpreted
async def test_a_seat_that_was_not_returned_counts_as_failed() -> None:
    stage = Stage()
    with pytest.raises(RuntimeError), Exchange(stage.driver, ClientLink(Wire(), Flow(Wire()), {})) as exchange:
        await exchange.seat(stage.ticket())
        fake, exchange.response = response()
        raise RuntimeError("a bug")
    assert (stage.held, stage.ended(), fake.aborted) == ((0, 0), {"failed": 1}, 1)


async def test_a_refusal_ends_the_wait() -> None:
    stage = Stage()
    await stage.driver.drain(0)
    with Exchange(stage.driver, ClientLink(Wire(), Flow(Wire()), {})) as exchange:
        assert await exchange.seat(stage.ticket()) is None
        assert exchange.refusal is not None
        assert exchange.refusal.reason is Reason.DRAINING
    assert stage.ended() == {"rejected": 1}


async def run_until(stage: Stage, link: ClientLink, act: Callable[[], None], *, first: Ticket | None = None) -> None:
    """Start a request on a task of its own, act when it stands where it stands, and see it end."""

    async def request() -> None:
        with Exchange(stage.driver, link) as exchange:
            await exchange.seat(stage.ticket())
            fake, exchange.response = response()
            try:
                await asyncio.Event().wait()
            finally:
                assert fake.aborted == 1

    task = asyncio.ensure_future(request())
    await turn()
    act()
    await turn()
    assert task.cancelled()


async def test_a_client_that_leaves_while_it_waits() -> None:
    stage, link = Stage(), ClientLink(Wire(), Flow(Wire()), {})
    with Exchange(stage.driver, ClientLink(Wire(), Flow(Wire()), {})) as other:
        await other.seat(stage.ticket())

        def act() -> None:
            assert stage.held == (1, 1)
            link.hang_up()
            assert stage.held == (1, 0), "at once, not when the task runs"

        await run_until(stage, link, act)
    assert stage.ended() == {"cancelled": 1, "failed": 1}


@pytest.mark.interpreted
async def test_a_client_that_leaves_while_it_runs() -> None:
    stage, link = Stage(), ClientLink(Wire(), Flow(Wire()), {})

    def act() -> None:
        assert stage.held == (1, 0)
        link.hang_up()
        assert stage.held == (0, 0)
        link.hang_up()

    await run_until(stage, link, act)
    assert stage.ended() == {"cancelled": 1}


async def test_what_was_written_for_a_client_that_leaves_counts_as_thrown_away() -> None:
    stage, link = Stage(), ClientLink(Wire(), Flow(Wire()), {})

    async def request() -> None:
        with Exchange(stage.driver, link) as exchange:
            await exchange.seat(stage.ticket())
            exchange.used = lambda: Used(30, 12)
            await asyncio.Event().wait()

    task = asyncio.ensure_future(request())
    await turn()
    link.hang_up()
    await turn()
    assert task.cancelled()
    assert (stage.held, stage.recorder.waste.by_cause) == ((0, 0), {"cancelled": 42})


async def test_a_client_that_left_before_it_was_seen() -> None:
    """The callback is set only then; the seat must not stay with nobody."""
    stage, link = Stage(), ClientLink(Wire(), Flow(Wire()), {})
    link.hang_up()
    with Exchange(stage.driver, link) as exchange:
        await exchange.seat(stage.ticket())
        assert exchange.gone
    assert (stage.held, stage.ended()) == ((0, 0), {"cancelled": 1})


async def test_a_seat_that_comes_in_the_moment_of_leaving_goes_back() -> None:
    stage, link = Stage(), ClientLink(Wire(), Flow(Wire()), {})
    with Exchange(stage.driver, ClientLink(Wire(), Flow(Wire()), {})) as other:
        await other.seat(stage.ticket())

        def act() -> None:
            other.finish(Release(Outcome.COMPLETED))  # the waiting one is dispatched in this call
            assert stage.held == (1, 0)
            link.hang_up()
            assert stage.held == (0, 0)

        task = asyncio.ensure_future(waiting(stage, link))
        await turn()
        act()
        await turn()
        assert task.cancelled()
    assert stage.ended() == {"completed": 1, "cancelled": 1}


async def waiting(stage: Stage, link: ClientLink) -> None:
    with Exchange(stage.driver, link) as exchange:
        await exchange.seat(stage.ticket())


@pytest.mark.interpreted
async def test_an_end_from_our_side_cancels_a_wait_and_aborts_an_answer() -> None:
    stage = Stage()
    seen: list[Reason | None] = []

    async def request() -> None:
        with Exchange(stage.driver, ClientLink(Wire(), Flow(Wire()), {})) as exchange:
            exchanges.append(exchange)
            try:
                await exchange.seat(stage.ticket())
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append(exchange.stopped)

    exchanges: list[Exchange] = []
    task = asyncio.ensure_future(request())
    await turn()
    exchanges[0].stop(Reason.DRAINING)
    exchanges[0].stop(Reason.UPSTREAM_TIMEOUT)
    await task
    assert (seen, stage.held) == ([Reason.DRAINING], (0, 0))

    with Exchange(stage.driver, ClientLink(Wire(), Flow(Wire()), {})) as exchange:
        await exchange.seat(stage.ticket())
        fake, exchange.response = response()
        exchange.stop(Reason.DRAINING)
        assert fake.aborted == 1


async def test_a_second_attempt_keeps_the_hold() -> None:
    stage = Stage()
    with Exchange(stage.driver, ClientLink(Wire(), Flow(Wire()), {})) as exchange:
        first = await exchange.seat(stage.ticket())
        exchange.finish(Release(Outcome.FAILED), reason=Reason.UPSTREAM_ERROR)
        second = await exchange.seat(stage.ticket())
        assert first is not second is not None
        exchange.finish(Release(Outcome.COMPLETED))
    assert stage.ended() == {"failed": 1, "completed": 1}
