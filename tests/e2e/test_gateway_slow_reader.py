"""A client that stops reading, and a crowd that is refused at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from e2e.raw import DONE, Answer, Client, Upstream, Visit, ask, chat, chunk, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

PIECE = chunk("x" * 10_000)
PIECES = 5000
READERS = 8  # so that what the process does besides is divided by them, and what one costs is not
MIB = 1024 * 1024


def config(upstream: Upstream, settings: str) -> str:
    return (
        f'models: [{{name: raw, backends: [{{name: b0, url: "{upstream.url}", engine: vllm, '
        f"seats: {READERS + 1}}}]}}]\n{settings}\n"
    )


def memory_of(pid: int) -> int:
    """Bytes of memory that a process uses."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


async def read_all(url: str) -> int:
    """Read a flood as fast as it comes; return its length."""
    client = await Client.connect(url)
    client.send(chat(stream=True, user="flood"))
    head = await client.head()
    length = 0
    async for piece in client.pieces(head.headers):
        length += len(piece)
    client.leave()
    return length


async def test_who_stops_reading_costs_little_memory_and_loses_the_seat_in_time() -> None:
    async def serve(visit: Visit) -> None:
        if b"flood" not in visit.body:
            visit.answer(whole())
            return
        visit.start_stream()
        for _ in range(PIECES):
            visit.send(PIECE)
            await visit.writer.drain()
        visit.send(DONE)

    settings = "gateway: {write_stall_timeout: 3s}"
    upstream = Upstream(serve)
    async with upstream.running(), gateway(config(upstream, settings)) as process:
        assert await read_all(process.url) > 50_000_000
        for _ in range(20):  # so that what is set up at first use is there
            await ask(process.url, chat())
        before = memory_of(process.pid)
        async with contextlib.AsyncExitStack() as leaving:
            loop = asyncio.get_running_loop()
            for _ in range(READERS):
                began = loop.time()
                client = await Client.connect(process.url, limit=1024)
                leaving.callback(client.leave)
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.send(chat(stream=True, user="flood"))
                await client.head()
            most = 0
            stalled = [visit for visit in upstream.visits if b"flood" in visit.body][-READERS:]
            while not all(visit.left.is_set() for visit in stalled):
                assert loop.time() - began < 40
                asked = loop.time()
                assert (await ask(process.url, chat())).status == 200
                assert loop.time() - asked < 5
                most = max(most, memory_of(process.pid))
                await asyncio.sleep(0.1)
            assert 2 < loop.time() - began < 3 + 1 + 16, "the sweep's second, and time for a busy machine"
            assert most - before <= READERS * MIB
            await until(lambda: process.total("tidegate_running") == 0, within_s=2)
            assert process.total("tidegate_requests_total", outcome="cancelled") == READERS


async def test_a_crowd_that_is_shed_at_once_comes_back_at_many_times() -> None:
    async def hang(visit: Visit) -> None:
        await asyncio.sleep(60)

    settings = "policy: {bands: {p2: {shed_answer: error}}}"
    upstream = Upstream(hang)
    async with upstream.running(), gateway(config(upstream, settings)) as process:
        switched = await ask(process.control, {"mode": "transactions_only"}, path="/admin/mode")
        assert switched.status == 200

        async def refused() -> Answer:
            return await ask(process.url, chat(), headers={"x-tidegate-band": "p2"})

        answers = await asyncio.gather(*(refused() for _ in range(200)))
        assert {(answer.status, answer.error["code"]) for answer in answers} == {(429, "load_shed")}
        seconds = [int(answer.headers["retry-after"]) for answer in answers]
        assert len(set(seconds)) >= 20
        assert min(seconds) >= 1
        assert max(seconds) <= 60
        assert len({answer.headers["retry-after-ms"] for answer in answers}) > 150
