"""What a client sees while it waits, and who answers what is shed: heartbeats, crowds of one tenant, another model."""

from __future__ import annotations

import asyncio
import json

import pytest

from e2e.raw import DONE, Client, Upstream, Visit, ask, chat, chunk, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

STREAM = chunk("tide", "stop") + DONE


def config(upstream: Upstream, settings: str, *, seats: int = 1) -> str:
    backend = f'url: "{upstream.url}", engine: vllm'
    return f"""
models:
  - {{name: raw, backends: [{{name: b0, {backend}, seats: {seats}}}]}}
  - {{name: small, aliases: [tiny], backends: [{{name: b1, {backend}, seats: 3}}]}}
{settings}
"""


class Gated:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.came: asyncio.Queue[None] = asyncio.Queue()
        self.upstream = Upstream(self.behave)

    async def behave(self, visit: Visit) -> None:
        self.came.put_nowait(None)
        await self.go.wait()
        if b"refuse" in visit.body:
            visit.answer(b'{"error":{"message":"no",\n"code":"x"}}', 422)
        elif json.loads(visit.body).get("stream"):
            visit.start_stream()
            visit.send(STREAM)
        else:
            visit.answer(whole())


HEARTBEAT = "gateway: {queue_heartbeat_after: 200ms}\npolicy: {bands: {p1: {shed_answer: fallback}}}"


async def test_a_stream_that_waits_gets_comments_and_then_its_answer_unchanged() -> None:
    gated = Gated()
    async with gated.upstream.running(), gateway(config(gated.upstream, HEARTBEAT)) as process:
        first = await Client.connect(process.url)
        first.send(chat())
        await until(lambda: len(gated.upstream.visits) == 1, within_s=5)
        streams = [await Client.connect(process.url) for _ in range(2)]
        streams[0].send(chat(stream=True))
        streams[1].send(chat(stream=True, user="refuse"))
        plain = await Client.connect(process.url)
        plain.send(chat())
        head = await streams[0].head()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        assert {"x-request-id", "x-tidegate-band", "x-accel-buffering"} <= head.headers.keys()
        pieces = streams[0].pieces(head.headers)
        assert [await anext(pieces) for _ in range(3)] == [b": waiting\n\n"] * 3
        gated.go.set()
        rest = b"".join([piece async for piece in pieces])
        assert rest.replace(b": waiting\n\n", b"") == STREAM
        refused = await streams[1].answer()
        assert (refused.status, refused.broken) == (200, False)
        assert json.loads(refused.body.split(b"data: ")[1])["error"]["message"] == "no"
        assert (await plain.answer()).body == whole()
        await until(lambda: process.total("tidegate_requests_total", outcome="completed") == 3, within_s=2)
        for client in (first, plain, *streams):
            client.leave()


async def test_a_refusal_after_comments_is_an_event_and_a_fallback_a_stream() -> None:
    gated = Gated()
    async with gated.upstream.running(), gateway(config(gated.upstream, HEARTBEAT)) as process:
        first = await Client.connect(process.url)
        first.send(chat(), headers={"x-tidegate-band": "p0"})
        await until(lambda: len(gated.upstream.visits) == 1, within_s=5)
        late = await Client.connect(process.url)
        late.send(chat(stream=True), headers={"x-tidegate-ttl": "700ms"})
        shed = await Client.connect(process.url)
        shed.send(chat(stream=True))
        answer = await late.answer()
        events = answer.body.strip().split(b"\n\n")
        assert events[0] == b": waiting"
        assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "queue_timeout"
        assert (answer.status, answer.broken) == (200, False)
        await ask(process.control, {"mode": "transactions_only"}, path="/admin/mode")
        fallback = await shed.answer()
        assert fallback.body.startswith(b": waiting\n\n")
        assert b"load_shedding_fallback" in fallback.body
        assert fallback.body.endswith(DONE)
        for client in (first, late, shed):
            client.leave()
        await until(lambda: process.total("tidegate_running") == 0, within_s=2)


async def test_one_tenant_has_so_many_requests_open_and_no_more() -> None:
    gated = Gated()
    settings = "gateway: {max_connections_per_tenant: 2}"
    async with gated.upstream.running(), gateway(config(gated.upstream, settings, seats=4)) as process:
        clients = [await Client.connect(process.url) for _ in range(2)]
        for client in clients:
            client.send(chat())
        await until(lambda: len(gated.upstream.visits) == 2, within_s=5)
        refused = await ask(process.url, chat())
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert "max_connections_per_tenant" in refused.error["message"]
        clients[0].leave()
        gated.go.set()
        assert (await clients[1].answer()).status == 200
        await until(lambda: process.total("tidegate_running") == 0, within_s=2)
        assert [(await ask(process.url, chat())).status for _ in range(4)] == [200] * 4
        clients[1].leave()


async def test_shed_work_goes_to_the_smaller_model_if_that_has_room() -> None:
    gated = Gated()
    p1 = "{ceiling: 0.3, when_saturated: shed, shed_answer: {model: tiny}}"
    settings = f"policy: {{bands: {{p0: {{reserve: 0}}, p1: {p1}}}}}"
    async with gated.upstream.running(), gateway(config(gated.upstream, settings, seats=3)) as process:
        clients = [await Client.connect(process.url) for _ in range(2)]
        for client, stream in zip(clients, (False, True), strict=True):
            client.send(chat(stream=stream))
            await asyncio.wait_for(gated.came.get(), 5)
        refused = await ask(process.url, chat())
        assert (refused.status, refused.error["code"]) == (429, "load_shed")
        gated.go.set()
        answers = [await client.answer() for client in clients]
        assert [answer.body for answer in answers] == [whole(), STREAM]
        assert [answer.headers.get("x-tidegate-model") for answer in answers] == [None, "small"]
        assert [json.loads(visit.body)["model"] for visit in gated.upstream.visits] == ["raw", "small"]
        await until(lambda: process.total("tidegate_running") == 0, within_s=2)
        await until(lambda: len(process.requests()) == 3, within_s=2)
        assert sorted(line["model"] for line in process.requests()) == ["raw", "small", "small"]
        for client in clients:
            client.leave()
