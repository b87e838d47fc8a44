"""Traces of a live gateway, received by a real OTLP/HTTP receiver on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from e2e.raw import Upstream, Visit, ask, chat, chunk, gateway, read_head, until, whole
from e2e.test_control import config

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]  # 1 to 9 s on a machine at rest

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "the-prompt-nobody-may-see"


class Receiver:
    """Takes what an OpenTelemetry collector takes on ``/v1/traces``."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.raw = b""
        self.url = ""
        self.status = 200

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, headers = await read_head(reader)
        body = await reader.readexactly(int(headers["content-length"]))
        assert (method, path, headers["content-type"]) == ("POST", "/v1/traces", "application/json")
        self.raw += body
        for resource in json.loads(body)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                self.spans += scope["spans"]
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}" % self.status)
        await writer.drain()
        writer.close()

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]


def traced(url: str, receiver: Receiver, *, seats: int = 1, sample: float = 1) -> str:
    return config(url, seats=seats, more=f'traces: {{endpoint: "{receiver.url}", sample: {sample}}}')


async def test_waits_seats_and_calls_reach_the_receiver_and_the_engine_continues_the_trace() -> None:
    async def slow(visit: Visit) -> None:
        await asyncio.sleep(0.2)
        if b'"stream":true' in visit.body.replace(b" ", b""):
            visit.start_stream()
            visit.send(chunk("hello", "stop") + b"data: [DONE]\n\n")
        else:
            visit.answer(whole())

    async with Upstream(slow).running() as upstream, Receiver().running() as receiver:
        async with gateway(traced(upstream.url, receiver)) as process:
            body = chat(messages=[{"role": "user", "content": SECRET}])
            headers = {"traceparent": PARENT, "authorization": "Bearer EMPTY"}
            both = [ask(process.url, body, headers=headers), ask(process.url, body | {"stream": True}, headers=headers)]
            assert [answer.status for answer in await asyncio.gather(*both)] == [200, 200]
            assert (await ask(process.url, {"model": "raw"}, headers={"content-type": "text/plain"})).status == 415
            process.signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
        requests = receiver.named("POST /v1/chat/completions")
        assert len(requests) == 3
        ours = [span for span in requests if span.get("parentSpanId") == PARENT[36:52]]
        assert len(ours) == 2
        calls = receiver.named("upstream")
        assert [visit.headers["traceparent"] for visit in upstream.visits] == [
            f"00-{PARENT[3:35]}-{span['spanId']}-01"
            for span in sorted(calls, key=lambda span: span["startTimeUnixNano"])
        ]
        waits = sorted(int(s["endTimeUnixNano"]) - int(s["startTimeUnixNano"]) for s in receiver.named("queue"))
        assert waits[0] < 150_000_000 < waits[1], "one had a seat at once, the other waited for it"
        assert {span["traceId"] for span in ours + calls + receiver.named("dispatch")} == {PARENT[3:35]}
        assert SECRET.encode() not in receiver.raw
        assert b"hello" not in receiver.raw


async def test_a_receiver_that_is_not_there_or_refuses_costs_a_line_in_the_log() -> None:
    async def quick(visit: Visit) -> None:
        visit.answer(whole())

    async with Upstream(quick).running() as upstream, Receiver().running() as receiver:
        receiver.status = 503
        async with gateway(traced(upstream.url, receiver, seats=4)) as process:
            for _ in range(5):
                assert (await ask(process.url, chat())).status == 200
            await until(lambda: "traces.lost" in process.log.read_text(), within_s=8)
            assert (await ask(process.url, chat())).status == 200
            assert "Traceback" not in process.log.read_text()


async def test_of_what_is_not_sampled_nothing_is_sent_and_a_context_goes_on_as_it_came() -> None:
    async def quick(visit: Visit) -> None:
        visit.answer(whole())

    async with Upstream(quick).running() as upstream, Receiver().running() as receiver:
        async with gateway(traced(upstream.url, receiver, sample=0)) as process:
            unsampled = PARENT[:-2] + "00"
            for headers in ({}, {"traceparent": unsampled, "tracestate": "a=1"}):
                assert (await ask(process.url, chat(), headers=headers)).status == 200
            process.signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, 30)
        assert receiver.spans == []
        one, two = (visit.headers for visit in upstream.visits)
        assert "traceparent" not in one
        assert (two["traceparent"], two["tracestate"]) == (unsampled, "a=1")
