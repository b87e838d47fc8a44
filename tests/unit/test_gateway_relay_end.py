"""How a stream ends that its backend breaks off: the client learns of the failure once, never twice."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidegate.backends import Broken
from tidegate.classify import Route
from tidegate.gateway.beginning import read_beginning
from tidegate.gateway.call import Call
from tidegate.gateway.flow import Flow
from tidegate.gateway.link import Answer, ClientLink
from tidegate.gateway.relay import Relayed, relay_stream
from tidegate.testing import ManualClock
from unit.response_stage import response_of_test

pytestmark = pytest.mark.anyio

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Prompt:
    """A client that takes all at once, until it is told otherwise; pieces are kept without their framing."""

    def __init__(self, sent: list[bytes] | None = None) -> None:
        self.sent: list[bytes] = [] if sent is None else sent
        wire = cast(asyncio.Transport, self)
        self.flow = Flow(wire)
        self.link = ClientLink(wire, self.flow, {})
        self.link.cycle = Answer()
        self.link.cycle.flowing = True

    def write(self, data: bytes) -> None:
        size, _, rest = data.partition(b"\r\n")
        assert rest == rest[: int(size, 16)] + b"\r\n"
        self.sent.append(rest[:-2])


async def broken_off(*pieces: bytes) -> tuple[Relayed, list[dict[str, Any]]]:
    """Relay a stream that breaks behind these pieces; return how it ended and what the client was sent."""
    response = response_of_test()
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
    relayed = await relay_stream(
        call, response, send, client=Prompt().link, clock=clock, first=beginning.start, watch=beginning.watch
    )
    return relayed, sent


async def test_a_stream_whose_backend_said_why_is_closed_without_another_word() -> None:
    relayed, sent = await broken_off(WORD + ERROR)
    assert (relayed.failed, relayed.error) == (True, None)
    assert b"".join(message.get("body", b"") for message in sent) == WORD + ERROR
    assert not sent[-1].get("more_body", False)


async def test_a_stream_that_broke_without_a_word_is_left_open_for_ours() -> None:
    relayed, sent = await broken_off(WORD)
    assert relayed.failed
    assert isinstance(relayed.error, Broken)
    assert sent[-1]["more_body"]


async def relayed_while_it_comes(client: Prompt) -> tuple[list[bytes], list[int], Relayed]:
    """Relay pieces that come while the relay waits; return them, how many had gone out after each, and the end."""
    response = response_of_test()
    response.begin(200, [(b"content-type", b"text/event-stream")])
    response.feed(WORD)
    clock, sent, gone = ManualClock(), client.sent, list[int]()
    beginning = await read_beginning(response, clock, Route.CHAT)
    assert beginning.watch is not None

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            sent.append(message["body"])

    relay = asyncio.ensure_future(
        relay_stream(
            Call("id", 0.0),
            response,
            send,
            client=client.link,
            clock=clock,
            first=beginning.start,
            watch=beginning.watch,
        )
    )
    await asyncio.sleep(0)
    for piece in (WORD.replace(b"word", b"%d" % number) for number in range(5)):
        response.feed(piece)
        gone.append(len(sent))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    response.feed(DONE)
    response.end()
    return sent, gone, await relay


async def test_pieces_go_out_as_they_come_to_a_client_that_keeps_up() -> None:
    sent, gone, relayed = await relayed_while_it_comes(Prompt())
    assert gone == [2, 3, 4, 5, 6]
    assert len(sent) == 7
    assert (relayed.failed, relayed.error) == (False, None)


async def test_pieces_wait_in_order_for_a_client_that_does_not() -> None:
    client = Prompt()
    client.flow.pause_writing()
    sent, gone, relayed = await relayed_while_it_comes(client)
    assert gone == [1] * 5
    assert b"".join(sent) == WORD + b"".join(WORD.replace(b"word", b"%d" % number) for number in range(5)) + DONE
    assert (relayed.failed, relayed.error) == (False, None)
