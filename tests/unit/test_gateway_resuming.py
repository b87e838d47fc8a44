"""One leg of an answer that can go on: when it may be stopped, and what had come by then."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tidegate.backends import BackendError, Broken, Response
from tidegate.core import Policy
from tidegate.gateway.resuming import Client, Resuming, run_leg
from tidegate.gateway.watch import StreamWatch
from tidegate.splice import Splice, read_wish
from tidegate.telemetry import Recorder
from tidegate.testing import ManualClock

pytestmark = pytest.mark.anyio

BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]}'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def event(text: str) -> bytes:
    return b'data: {"id":"i","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text.encode()


class Engine:
    """An answer that hands out pieces and then fails, as one does that was stopped on this side."""

    at_end = False

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def try_read(self) -> bytes:
        if not self._pieces:
            raise Broken("stopped")
        return self._pieces.pop(0)


def resuming() -> Resuming:
    wish, obstacle = read_wish(BODY, chat=True)
    assert obstacle is None
    return Resuming(Splice(wish), Recorder(Policy()), 2)


async def leg(carried: Resuming, engine: Engine, client: Client) -> BackendError | None:
    watch = StreamWatch()
    return await run_leg(cast(Response, engine), event("a"), carried, watch, client, ManualClock())


@pytest.mark.interpreted
async def test_what_had_come_before_a_stop_goes_out() -> None:
    sent: list[bytes] = []

    async def send(piece: bytes) -> None:
        sent.append(piece)

    carried = resuming()
    error = await leg(carried, Engine(event("b"), event("c")), Client(send, lambda _, __: False))
    assert isinstance(error, Broken)
    assert b"".join(sent) == event("a") + event("b") + event("c")
    assert carried.splice.text == "abc"


@pytest.mark.interpreted
async def test_an_answer_is_not_stopped_while_its_client_takes_nothing() -> None:
    """Its seat would be held until the client reads on, although the engine has let go."""
    taken = asyncio.Event()

    async def send(_: bytes) -> None:
        await taken.wait()

    carried = resuming()
    going = asyncio.ensure_future(leg(carried, Engine(), Client(send, lambda _, __: False)))
    assert carried.may_stop()
    await asyncio.sleep(0)
    assert not carried.may_stop()
    taken.set()
    await going
    assert carried.may_stop()
