"""The demo's load generator against a small stub server on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from tidegate.cli.demo._load import Target, prepare, replay
from tidegate.cli.demo._plan import Question
from tidegate.cli.demo._record import Tally

pytestmark = pytest.mark.slow

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def questions(*times: float) -> tuple[Question, ...]:
    return tuple(Question(n, 0, at, 5, 1) for n, at in enumerate(times))


async def run(serve: Serve, plan: tuple[Question, ...], *, seconds: float) -> Tally:
    tally = Tally()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        target = Target(server.sockets[0].getsockname()[1], ("k0", "k1", "k2"))
        await replay(prepare(plan, target, seed=1), target.port, tally, seconds=seconds)
    return tally


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\ndata: [DONE]\n\n'
    writer.write(b"HTTP/1.1 200 OK\r\nx-tidegate-queue-ms: 7\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()


def test_every_question_is_asked_and_answered() -> None:
    tally = asyncio.run(run(answer, questions(0.0, 0.1, 0.1, 0.2), seconds=3.0))
    assert [record.question.number for record in tally.records] == [0, 1, 2, 3]
    for record in tally.records:
        assert record.refused is None
        assert record.queue_s == pytest.approx(0.007)
        assert record.first_s is not None
        assert record.done_s is not None


def test_a_silent_server_does_not_slow_the_sending_and_is_left_at_the_end() -> None:
    left: asyncio.Queue[int] = asyncio.Queue()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        left.put_nowait(1)
        writer.close()

    async def story() -> Tally:
        tally = await run(silent, questions(0.0, 0.1, 0.2, 0.3), seconds=0.5)
        for _ in range(4):
            await left.get()
        return tally

    tally = asyncio.run(asyncio.wait_for(story(), 40.0))
    assert len(tally.records) == 4
    assert all(record.sent_s is not None and record.sent_s < 10.0 for record in tally.records)
    assert all(record.refused is None and record.first_s is None for record in tally.records)


def test_nobody_at_the_port_is_a_failure_not_a_crash() -> None:
    async def story() -> Tally:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        tally = Tally()
        await replay(prepare(questions(0.0), Target(port, ("k",) * 3), seed=1), port, tally, seconds=0.2)
        return tally

    assert asyncio.run(story()).records[0].refused == "no_connection"
