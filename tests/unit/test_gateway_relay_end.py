"""How a stream ends that its backend breaks off: the client learns of the failure once, never twice."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidegate.backends import Broken, Response
from tidegate.backends.connection import Connection
from tidegate.classify import Route
from tidegate.gateway.beginning import read_beginning
from tidegate.gateway.call import Call
from tidegate.gateway.relay import Relayed, relay_stream
from tidegate.testing import ManualClock

pytestmark = pytest.mark.anyio

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
ERROR = b'data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Quiet:
    """A connection that does nothing."""

    def drained(self) -> None:
        pass

    def abort(self) -> None:
        pass


async def broken_off(*pieces: bytes) -> tuple[Relayed, list[dict[str, Any]]]:
    """Relay a stream that breaks behind these pieces; return how it ended and what the client was sent."""
    response = Response(asyncio.get_running_loop(), cast(Connection, Quiet()), reused=False)
    response.begin(200, [(b"content-type", b"text/event-stream")])
    for piece in pieces:
        response.feed(piece)
    clock, sent = ManualClock(), list[dict[str, Any]]()
    beginning = await read_beginning(response, clock, Route.CHAT)
    assert beginning.watch is not None
    response.fail(Broken("the connection broke"))

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    call = Call("id", 0.0)
    relayed = await relay_stream(call, response, send, clock=clock, first=beginning.start, watch=beginning.watch)
    return relayed, sent


async def test_a_stream_whose_backend_said_why_is_closed_without_another_word() -> None:
    relayed, sent = await broken_off(WORD + ERROR)
    assert relayed == Relayed(failed=True)
    assert b"".join(message.get("body", b"") for message in sent) == WORD + ERROR
    assert not sent[-1].get("more_body", False)


async def test_a_stream_that_broke_without_a_word_is_left_open_for_ours() -> None:
    relayed, sent = await broken_off(WORD)
    assert relayed.failed
    assert isinstance(relayed.error, Broken)
    assert sent[-1]["more_body"]
