"""Short real-socket companions of the claims that virtual time proves: who goes first, and how a gateway ends."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket

import pytest

from e2e.raw import DONE, Answer, Client, Upstream, Visit, ask, chat, chunk, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CONFIG = """
models: [{{name: raw, backends: [{{name: b0, url: "{url}", engine: vllm, seats: {seats}}}]}}]
{settings}
"""


def config(upstream: Upstream, *, seats: int, settings: str = "") -> str:
    return CONFIG.format(url=upstream.url, seats=seats, settings=settings)


async def test_urgent_work_passes_a_backlog() -> None:
    """8 p0 come while 60 p2 wait for 4 seats: theirs are the next seats, but for an overtake; everybody is answered."""
    free = asyncio.Event()
    free.set()

    async def serve(visit: Visit) -> None:
        await asyncio.sleep(0.1)
        await free.wait()
        visit.answer(whole())

    async def one(url: str, band: str) -> Answer:
        return await ask(url, chat(user=band), headers={"x-tidegate-band": band})

    settings = "policy: {bands: {p0: {reserve: 0}}}"
    upstream = Upstream(serve)
    async with upstream.running(), gateway(config(upstream, seats=4, settings=settings)) as process:
        low = [asyncio.ensure_future(one(process.url, "p2")) for _ in range(60)]
        await until(lambda: len(upstream.visits) >= 8, within_s=5)
        free.clear()
        high = [asyncio.ensure_future(one(process.url, "p0")) for _ in range(8)]
        await until(lambda: process.total("tidegate_queue_depth", band="p0") == 8, within_s=5)
        before = len(upstream.visits)
        free.set()
        answers = [*await asyncio.gather(*high), *await asyncio.gather(*low)]
        assert {answer.status for answer in answers} == {200}
        assert upstream.most == 4
        order = [json.loads(visit.body)["user"] for visit in upstream.visits]
        assert len(order) == 68
        assert order[before : before + 9].count("p0") == 8


async def test_an_automatic_reserve_keeps_p0_from_waiting() -> None:
    """24 seats of half a second that endless p2 would fill: 80 of 100 p0 find a free one (virtual time has the 99).

    Without a reserve p0 waits some 20 ms for the next seat; fewer than one in four gets one within 5.
    """
    draw = random.Random(1)

    async def serve(visit: Visit) -> None:
        await asyncio.sleep(draw.expovariate(2.0))
        visit.answer(whole())

    async def flood(url: str) -> None:
        while True:
            await ask(url, chat(), headers={"x-tidegate-band": "p2"})

    settings = "policy: {preempt_rate: 0, bands: {p0: {reserve: auto}}}"
    upstream = Upstream(serve)
    async with upstream.running(), gateway(config(upstream, seats=24, settings=settings)) as process:
        low = [asyncio.ensure_future(flood(process.url)) for _ in range(40)]
        high = []
        for _ in range(50):
            await asyncio.sleep(draw.expovariate(12.0))
            high.append(asyncio.ensure_future(ask(process.url, chat(), headers={"x-tidegate-band": "p0"})))
        answers = await asyncio.gather(*high)
        assert upstream.most >= 20, "the rest works"
        for task in low:
            task.cancel()
        await asyncio.gather(*low, return_exceptions=True)
        assert {answer.status for answer in answers} == {200}
        waits = [float(answer.headers["x-tidegate-queue-ms"]) for answer in answers[10:]]
        assert sum(wait <= 5.0 for wait in waits) >= 0.8 * len(waits), waits


async def test_a_full_queue_refuses_quickly_and_says_when_to_come_back() -> None:
    async def hang(visit: Visit) -> None:
        await asyncio.sleep(60)

    settings = "policy: {bands: {p1: {capacity: 1}, p2: {capacity: 1}}}"
    upstream = Upstream(hang)
    async with upstream.running(), gateway(config(upstream, seats=1, settings=settings)) as process:
        clients = [await Client.connect(process.url) for _ in range(2)]
        for client in clients:
            client.send(chat())
        await until(lambda: process.total("tidegate_queue_depth") == 1, within_s=5)
        refused = await ask(process.url, chat(), headers={"accept-language": "zh-CN,zh;q=0.9"})
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        assert (refused.error["type"], refused.headers["x-tidegate-reason"]) == ("rate_limit_error", "queue_full")
        assert "排队" in refused.error["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert {"x-request-id", "x-tidegate-band", "x-tidegate-queue-ms"} <= refused.headers.keys()
        for client in clients:
            client.leave()


async def test_a_request_that_waits_too_long_is_answered_at_its_time() -> None:
    async def hang(visit: Visit) -> None:
        await asyncio.sleep(60)

    async with Upstream(hang).running() as upstream, gateway(config(upstream, seats=1)) as process:
        first = await Client.connect(process.url)
        first.send(chat())
        await until(lambda: len(upstream.visits) == 1, within_s=5)
        answer = await ask(process.url, chat(), headers={"x-tidegate-ttl": "300ms"})
        assert (answer.status, answer.error["code"]) == (429, "queue_timeout")
        assert 295 <= int(answer.headers["x-tidegate-queue-ms"]) < 10_000
        first.leave()


async def test_sigterm_finishes_what_runs_and_answers_what_waits() -> None:
    go = asyncio.Event()

    async def serve(visit: Visit) -> None:
        visit.start_stream()
        visit.send(chunk("one"))
        await go.wait()
        visit.send(DONE)

    async with Upstream(serve).running() as upstream, gateway(config(upstream, seats=1)) as process:
        running = asyncio.ensure_future(ask(process.url, chat(stream=True)))
        await until(lambda: upstream.open == 1, within_s=5)
        waiting = asyncio.ensure_future(ask(process.url, chat()))
        idle = await Client.connect(process.url)
        await until(lambda: process.total("tidegate_queue_depth") == 1, within_s=5)
        process.signal(signal.SIGTERM)
        refused = await waiting
        assert (refused.status, refused.error["code"]) == (503, "draining")
        with pytest.raises(OSError):
            await ask(process.url, chat())
        assert await idle.reader.read() == b""
        idle.leave()
        assert (await asyncio.to_thread(process._get, "/livez")) == b"alive\n"
        go.set()
        finished = await running
        assert (finished.body, finished.broken) == (chunk("one") + DONE, False)
        assert await asyncio.to_thread(process.wait, 30) == 0


@pytest.mark.parametrize("hurry", ["second signal", "drain_timeout"])
async def test_a_stream_that_does_not_end_in_time_is_ended_with_an_error(hurry: str) -> None:
    async def endless(visit: Visit) -> None:
        visit.start_stream()
        while True:
            visit.send(chunk("more"))
            await asyncio.sleep(0.05)

    settings = "gateway: {drain_timeout: 500ms}" if hurry == "drain_timeout" else ""
    upstream = Upstream(endless)
    async with upstream.running(), gateway(config(upstream, seats=1, settings=settings)) as process:
        running = asyncio.ensure_future(ask(process.url, chat(stream=True)))
        await until(lambda: upstream.open == 1, within_s=5)
        process.signal(signal.SIGTERM)
        if hurry == "second signal":
            await until(lambda: deaf(process.url), within_s=5)
            process.signal(signal.SIGTERM)
        answer = await running
        assert answer.body.count(b'"code":"draining"') == 1
        assert (b"[DONE]" in answer.body, answer.broken) == (False, False)
        assert await asyncio.to_thread(process.wait, 30) == 0
        await until(lambda: upstream.open == 0, within_s=1)


def deaf(url: str) -> bool:
    """Whether nobody listens there any more."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0
