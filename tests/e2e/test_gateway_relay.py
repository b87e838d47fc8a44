"""The byte path on real sockets: what the upstream sends is what the client gets, and how it ends when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from e2e.raw import DONE, Client, Upstream, Visit, ask, chat, chunk, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio]


def gateway_for(*upstreams: Upstream, seats: int = 8, settings: str = "") -> str:
    """Give a settings file with all upstreams in one pool."""
    rows = "".join(
        f'\n      - {{name: b{number}, url: "{upstream.url}", engine: vllm, seats: {seats}}}'
        for number, upstream in enumerate(upstreams)
    )
    return f"models:\n  - name: raw\n    backends:{rows}\n{settings}"


TRICKY = (
    b": a comment\r\n\r\n"
    + chunk("\u6f6e")
    + 'data: {"choices":[{"index":0,"delta":{"content":"潮汐🌊"}}]}\r\n\r\n'.encode()
    + b"id: 7\nretry: 10\nevent: message\ndata: {\ndata: }\n\n"
    + b"\n\n\n: ping\n\n"
    + chunk("bye", "stop")
    + DONE
)


@pytest.mark.parametrize("step", [1, 5, 64, len(TRICKY)])
async def test_the_bytes_of_a_stream_pass_unchanged(step: int) -> None:
    async def behave(visit: Visit) -> None:
        visit.start_stream()
        for start in range(0, len(TRICKY), step):
            visit.send(TRICKY[start : start + step])
            await visit.writer.drain()
            await asyncio.sleep(0)

    async with Upstream(behave).running() as upstream, gateway(gateway_for(upstream)) as process:
        answer = await ask(process.url, chat(stream=True))
        assert (answer.body, answer.broken) == (TRICKY, False)
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-accel-buffering"] == "no"
        assert {"x-request-id", "x-tidegate-band", "x-tidegate-queue-ms"} <= answer.headers.keys()
        assert process.total("tidegate_requests_total", outcome="completed") == 1


async def test_no_piece_waits_for_the_next() -> None:
    more = asyncio.Event()

    async def behave(visit: Visit) -> None:
        visit.start_stream()
        for word in ("one", "two"):
            visit.send(chunk(word))
            await more.wait()
            more.clear()
        visit.send(DONE)

    async with Upstream(behave).running() as upstream, gateway(gateway_for(upstream)) as process:
        client = await Client.connect(process.url)
        client.send(chat(stream=True))
        head = await client.head()
        seen = b""
        async for piece in client.pieces(head.headers):
            seen += piece
            more.set()
        assert seen == chunk("one") + chunk("two") + DONE
        client.leave()


async def test_what_goes_upstream_is_what_the_engine_needs() -> None:
    async def behave(visit: Visit) -> None:
        visit.answer(whole(), more=b"set-cookie: a=b\r\nserver: engine\r\nx-request-id: other\r\nx-extra: yes\r\n")

    async with Upstream(behave).running() as upstream:
        config = gateway_for(upstream).replace("seats: 8", 'seats: 8, api_key: "${SECRET}"')
        async with gateway(config, environ={"SECRET": "upstream-secret"}) as process:
            body = b'{"model": "raw", "messages": [ 1.50 ],"priority":-9, "max_tokens": 7}'
            headers = {
                "authorization": "Bearer EMPTY",
                "x-vllm-priority": "-9",
                "x-tidegate-band": "p2",
                "x-request-id": "mine",
                "traceparent": "00-1-2-01",
                "connection": "keep-alive, x-hop",
                "x-hop": "1",
            }
            answer = await ask(process.url, body, headers=headers)
            sent = upstream.visits[0]
            assert json.loads(sent.body) == {"model": "raw", "messages": [1.5], "priority": 2, "max_tokens": 7}
            assert b"[ 1.50 ]" in sent.body
            assert sent.headers["authorization"] == "Bearer upstream-secret"
            assert sent.headers["traceparent"] == "00-1-2-01"
            assert not {"x-vllm-priority", "x-tidegate-band", "x-hop"} & sent.headers.keys()
            assert (answer.headers["x-request-id"], answer.headers["x-tidegate-band"]) == ("mine", "p2")
            assert answer.headers["x-extra"] == "yes"
            assert not {"set-cookie", "server"} & answer.headers.keys()
            assert answer.body == whole()
            assert "upstream-secret" not in process.log.read_text() + str(answer.headers)


async def test_an_engine_that_dies_midway_leaves_exactly_one_error_event() -> None:
    async def behave(visit: Visit) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        data = chunk("one") + chunk("two")[:20]
        visit.send(b"%x\r\n%b\r\n" % (len(data), data))
        await visit.writer.drain()
        await asyncio.sleep(0.02)
        visit.writer.transport.abort()

    async with Upstream(behave).running() as upstream, gateway(gateway_for(upstream)) as process:
        answer = await ask(process.url, chat(stream=True))
        events = [event for event in answer.body.split(b"\n\n") if event]
        assert events[0] + b"\n\n" == chunk("one")
        assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "upstream_error"
        assert answer.body.count(b'"error"') == 1
        assert (b"[DONE]" in answer.body, answer.broken) == (False, False)
        assert process.total("tidegate_running") == 0
        assert process.total("tidegate_requests_total", outcome="failed") == 1
        await until(lambda: bool(process.requests()), within_s=1)
        assert process.requests()[-1]["reason"] == "upstream_error"


async def test_a_clean_end_without_a_finish_is_an_error_too() -> None:
    async def behave(visit: Visit) -> None:
        visit.start_stream()
        visit.send(chunk("one"))

    async with Upstream(behave).running() as upstream, gateway(gateway_for(upstream)) as process:
        answer = await ask(process.url, chat(stream=True))
        assert answer.body.startswith(chunk("one"))
        assert answer.body.count(b'"code":"upstream_error"') == 1


async def test_an_answer_that_breaks_is_a_502_and_one_that_is_refused_passes() -> None:
    async def behave(visit: Visit) -> None:
        if b"refuse" in visit.body:
            visit.answer(b'{"error":{"message":"no"}}', 422, more=b"retry-after: 3\r\n")
        elif b"fail" in visit.body:
            visit.answer(b'{"error":{"message":"no memory"}}', 500, more=b"x-tidegate-reason: shed\r\n")
        else:
            visit.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")

    async with Upstream(behave).running() as upstream, gateway(gateway_for(upstream)) as process:
        broken = await ask(process.url, chat())
        assert (broken.status, broken.error["code"]) == (502, "upstream_error")
        refused = await ask(process.url, chat(user="refuse"))
        assert (refused.status, refused.error["message"], refused.headers["retry-after"]) == (422, "no", "3")
        assert "x-tidegate-reason" not in refused.headers  # the client's own mistake is no refusal
        failed = await ask(process.url, chat(user="fail"))
        assert (failed.status, failed.error["message"]) == (500, "no memory")
        assert failed.headers["x-tidegate-reason"] == "upstream_error"  # as it is counted


async def test_a_failure_before_the_first_byte_is_tried_on_another_backend() -> None:
    async def drop(visit: Visit) -> None:
        visit.writer.transport.abort()

    async def serve(visit: Visit) -> None:
        visit.answer(whole("second"))

    bad, good = Upstream(drop), Upstream(serve)
    async with bad.running(), good.running(), gateway(gateway_for(bad, good)) as process:
        answers = [await ask(process.url, chat()) for _ in range(4)]
        assert [answer.status for answer in answers] == [200] * 4
        assert bad.visits
        assert len(good.visits) == 4
        assert process.total("tidegate_running") == 0


async def test_a_backend_that_is_gone_is_down_until_it_comes_back() -> None:
    async def serve(visit: Visit) -> None:
        visit.answer(whole())

    upstream = Upstream(serve)
    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(upstream.running())
        port = int(upstream.url.rpartition(":")[2])
        async with gateway(gateway_for(upstream)) as process:
            assert (await ask(process.url, chat())).status == 200
            await first.aclose()
            failed = [await ask(process.url, chat()) for _ in range(2)]
            assert [answer.error["code"] for answer in failed] == ["upstream_error", "no_backend"]
            ready = await ask(process.url, method="GET", path="/readyz")
            assert (ready.status, ready.body) == (503, b"no backend is up\n")
            async with upstream.running(port):
                await until(lambda: process.total("tidegate_backend_up") == 1, within_s=3)
                assert (await ask(process.url, chat())).status == 200


async def test_silence_of_a_client_does_not_hold_a_seat() -> None:
    async def flood(visit: Visit) -> None:
        visit.start_stream()
        while True:
            visit.send(chunk("x" * 10_000))
            await visit.writer.drain()

    async with Upstream(flood).running() as upstream:
        settings = "gateway: {write_stall_timeout: 1s}\n"
        async with gateway(gateway_for(upstream, settings=settings)) as process:
            client = await Client.connect(process.url, limit=1024)
            client.send(chat(stream=True))
            await client.head()
            await until(lambda: upstream.visits[0].left.is_set(), within_s=6)
            # The seat returns when the upstream has closed its side too, and that lives in this loop.
            await until(lambda: process.total("tidegate_running") == 0, within_s=2)
            assert process.total("tidegate_requests_total", outcome="cancelled") == 1
            client.leave()
