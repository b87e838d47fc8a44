"""The gateway before the simulated engine: death in the middle, faults, fallback answers, silence."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Iterator

import pytest
import structlog

from e2e.raw import Client, Upstream, Visit, ask, chat, chunk, gateway, until, whole
from tidegate.assembly import Options, build
from tidegate.config import parse_settings
from tidegate.testing.processes import running, wait_for_line

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CONFIG = """
models: [{{name: {model}, backends: [{{name: b0, url: "{url}", engine: tidegate, seats: {seats}}}]}}]
{more}
"""


async def test_an_engine_killed_midway_leaves_exactly_one_error_event() -> None:
    command = [sys.executable, "-m", "tidegate", "engine", "--listen", "127.0.0.1:0"]
    with running(command) as engine:
        url = await asyncio.to_thread(wait_for_line, engine, "listening on ")
        async with gateway(CONFIG.format(model="sim", url=url, seats=4, more="")) as process:
            body = {**chat(stream=True, max_tokens=3000, ignore_eos=True), "model": "sim"}
            clients = [await Client.connect(process.url) for _ in range(4)]
            for client in clients:
                client.send(body)
            heads = [await client.head() for client in clients]
            assert [head.status for head in heads] == [200] * 4
            streams = [client.pieces(head.headers) for client, head in zip(clients, heads, strict=True)]
            begun = [await anext(stream) for stream in streams]
            engine.send_signal(signal.SIGKILL)
            for client, begin, stream in zip(clients, begun, streams, strict=True):
                rest = b"".join([begin, *[piece async for piece in stream]])
                client.leave()
                assert rest.count(b'"error"') == 1
                assert rest.count(b'"code":"upstream_error"') == 1
                assert b"[DONE]" not in rest
            assert process.total("tidegate_running") == 0
            assert process.total("tidegate_requests_total", outcome="failed") == 4
            refused = await ask(process.url, {**chat(), "model": "sim"})
            assert refused.status in (502, 503)


async def test_shed_work_gets_its_fallback_and_structured_callers_the_error() -> None:
    """One seat of 0.4 s and a target of 1 s: whoever would wait longer than half of it is shed on arrival."""
    go = asyncio.Event()

    async def serve(visit: Visit) -> None:
        await asyncio.sleep(0.4)
        if len(upstream.visits) > 3:
            await go.wait()
        visit.answer(whole())

    shed = "{shed_hopeless: true, ttft_slo: 1s, shed_answer: fallback, message: {en: Too busy now.}}"
    more = f"policy: {{bands: {{p0: {{reserve: 0}}, p1: {shed}}}}}"
    upstream = Upstream(serve)
    async with upstream.running(), gateway(CONFIG.format(model="raw", url=upstream.url, seats=1, more=more)) as process:
        for _ in range(3):  # so that the gateway knows how fast seats come free
            assert (await ask(process.url, chat())).status == 200
        busy = [asyncio.ensure_future(ask(process.url, chat())) for _ in range(6)]
        await until(lambda: process.total("tidegate_queue_depth") >= 1, within_s=2)
        plain = await ask(process.url, chat())
        stream = await ask(process.url, chat(stream=True, stream_options={"include_usage": True}))
        tools = await ask(process.url, chat(tools=[{"type": "function", "function": {"name": "f"}}]))
        choice = json.loads(plain.body)["choices"][0]
        assert (plain.status, plain.headers["x-tidegate-reason"]) == (200, "shed")
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Too busy now.", "load_shedding_fallback")
        assert b"Too busy now." in stream.body
        assert stream.body.endswith(b"data: [DONE]\n\n")
        assert (tools.status, tools.error["code"]) == (429, "load_shed")
        go.set()
        await asyncio.gather(*busy)
        assert process.total("tidegate_refusals_total", reason="shed") >= 3


@pytest.fixture
def own_log() -> Iterator[None]:
    """Keep what a service in this process does to logging from the tests after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("own_log")
async def test_a_silent_stream_keeps_its_seat_until_its_backend_is_gone() -> None:
    """The service runs in this process, so that the minute of silence can be said instead of waited for."""
    deaf = False

    async def hang(visit: Visit) -> None:
        visit.start_stream()
        visit.send(chunk("one"))
        await asyncio.sleep(60)

    class Deaf(Upstream):
        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if deaf:
                writer.transport.abort()
            else:
                await super()._serve(reader, writer)

    async with Deaf(hang).running() as upstream:
        text = CONFIG.format(model="raw", url=upstream.url, seats=1, more="control: {listen: '127.0.0.1:0'}")
        settings = parse_settings(text + "gateway: {listen: '127.0.0.1:0'}\n")
        service = build(settings, Options(log_level="critical"))
        await service.start()
        try:
            later = asyncio.get_running_loop().time() + 61
            stream = asyncio.ensure_future(ask(service.gateway_url, chat(stream=True)))
            await until(lambda: len(upstream.visits) == 1, within_s=5)
            for _ in range(3):
                service.check_silence(later)
                await asyncio.sleep(0.1)
            assert not stream.done()
            deaf = True
            service.check_silence(later)
            await until(lambda: not service.driver.ready, within_s=3)
            service.check_silence(later)
            answer = await stream
            assert answer.body.count(b'"code":"upstream_timeout"') == 1
            assert service.driver.running == 0
        finally:
            service.hurry()
            await service.stop()
