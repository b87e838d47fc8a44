"""The routes beside chat: what is asked of the engine, and how its answers pass and end."""

from __future__ import annotations

import asyncio
import json

import pytest

from e2e.raw import Answer, Upstream, Visit, ask, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


def config(upstream: Upstream, *, policy: str = "", alias: str = "also") -> str:
    return f"""
gateway: {{max_body: 1MiB}}
models:
  - {{name: raw, aliases: [{alias}], backends: [{{name: b0, url: "{upstream.url}", engine: vllm, seats: 4}}]}}
  - {{name: second, backends: [{{name: b1, url: "{upstream.url}", engine: vllm, seats: 4}}]}}
policy: {{{policy}}}
"""


def events(*data: dict[str, object]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (str(d["type"]).encode(), json.dumps(d).encode()) for d in data)


RESPONSE: tuple[dict[str, object], ...] = (
    {"type": "response.created", "response": {"id": "r", "error": None, "usage": None, "output": []}},
    {"type": "response.output_text.delta", "delta": "tide"},
    {
        "type": "response.completed",
        "response": {"id": "r", "output": ["x" * 9000], "usage": {"input_tokens": 7, "output_tokens": 3}},
    },
)
MESSAGES: tuple[dict[str, object], ...] = (
    {"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 7, "output_tokens": 1}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "tide"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
)
OTHER: tuple[dict[str, object], ...] = (
    {"type": "transcript.text.delta", "delta": "tide"},
    {"type": "transcript.text.done", "text": "tide"},
)
STREAMS = {
    "/v1/responses": events(*RESPONSE),
    "/v1/messages": events(*MESSAGES),
    "/v1/audio/transcriptions": events(*OTHER),
}


@pytest.mark.parametrize("path", STREAMS)
async def test_streams_end_as_their_interface_ends_them(path: str) -> None:
    async def behave(visit: Visit) -> None:
        visit.start_stream()
        data = STREAMS[visit.path]
        for start in range(0, len(data), 100):
            visit.send(data[start : start + 100])
            await visit.writer.drain()
            await asyncio.sleep(0)

    async with Upstream(behave).running() as upstream, gateway(config(upstream)) as process:
        answer = await ask(process.url, {"model": "raw", "input": "hi", "stream": True}, path=path)
        assert (answer.status, answer.body, answer.broken) == (200, STREAMS[path], False)
        await until(lambda: bool(process.requests()), within_s=1)
        line = process.requests()[-1]
        assert (line["outcome"], line["band"]) == ("completed", "p1")
        if path != "/v1/audio/transcriptions":
            assert (line["input_tokens"], line["output_tokens"]) == (7, 3)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_a_stream_that_is_cut_ends_with_an_error_event_that_has_a_name(path: str) -> None:
    whole_stream = RESPONSE if path == "/v1/responses" else MESSAGES

    async def behave(visit: Visit) -> None:
        visit.start_stream()
        visit.send(events(*whole_stream[:-1]))

    async with Upstream(behave).running() as upstream, gateway(config(upstream)) as process:
        answer = await ask(process.url, {"model": "raw", "input": "hi", "stream": True}, path=path)
        last = answer.body.strip().split(b"\n\n")[-1]
        name, _, data = last.partition(b"\ndata: ")
        assert (name, answer.broken) == (b"event: error", False)
        told = json.loads(data)
        assert (told["type"], told["error"]["code"]) == ("error", "upstream_error")
        assert process.total("tidegate_requests_total", outcome="failed") == 1
        assert process.total("tidegate_running") == 0


async def test_sound_passes_in_pieces_and_is_cut_where_it_breaks() -> None:
    sound = bytes(range(256)) * 1000
    more = asyncio.Event()

    async def behave(visit: Visit) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\n" + CHUNKED)
        for start in range(0, len(sound), 64_000):
            piece = sound[start : start + 64_000]
            visit.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await visit.writer.drain()
        if b"break" in visit.body:
            await more.wait()
            visit.writer.transport.abort()
        else:
            visit.send(b"0\r\n\r\n")

    async with Upstream(behave).running() as upstream, gateway(config(upstream)) as process:
        answer = await ask(process.url, {"model": "raw", "input": "say it"}, path="/v1/audio/speech")
        assert (answer.headers["content-type"], answer.body, answer.broken) == ("audio/mpeg", sound, False)
        more.set()
        broken = await ask(process.url, {"model": "raw", "input": "break"}, path="/v1/audio/speech")
        assert (broken.status, broken.broken, b"error" in broken.body) == (200, True, False)
        assert process.total("tidegate_running") == 0
        assert process.total("tidegate_requests_total", outcome="failed") == 1


def form(model: str, content: bytes) -> tuple[bytes, dict[str, str]]:
    head = b'--aB3\r\nContent-Disposition: form-data; name="file"; filename="a"\r\nContent-Type: audio/wav\r\n\r\n'
    body = head + content + b'\r\n--aB3\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + model.encode()
    return body + b"\r\n--aB3--\r\n", {"content-type": "multipart/form-data; boundary=aB3"}


async def test_forms_go_where_their_model_is_with_their_bytes() -> None:
    async def behave(visit: Visit) -> None:
        visit.answer(b'{"text":"tide"}')

    content = bytes(range(256)) * 2000 + b'name="model"\r\n\r\nnone'
    async with Upstream(behave).running() as upstream, gateway(config(upstream)) as process:

        async def send(model: str, headers: dict[str, str] | None = None) -> Answer:
            body, more = form(model, content)
            return await ask(process.url, body, path="/v1/audio/transcriptions", headers={**more, **(headers or {})})

        assert (await send("second", {"x-tidegate-band": "p2"})).body == b'{"text":"tide"}'
        visit = upstream.visits[0]
        assert visit.body == form("second", content)[0]
        assert visit.headers["content-type"] == "multipart/form-data; boundary=aB3"
        assert (await send("also")).status == 200
        assert upstream.visits[1].body == form("raw", content)[0]
        assert (await send("nobody")).status == 404
        await until(lambda: len(process.requests()) == 3, within_s=1)
        assert [(line["model"], line["band"]) for line in process.requests()[:2]] == [("second", "p2"), ("raw", "p1")]


async def test_bodies_pass_unchanged_but_for_caps_and_priority() -> None:
    async def behave(visit: Visit) -> None:
        visit.answer(whole())

    policy = "bands: {p1: {max_output_tokens: 50}, p2: {max_output_tokens: 50}}"
    cases: list[tuple[str, bytes, object]] = [
        ("/v1/rerank", b'{"model": "raw",  "query":"q", "documents": [1.50]}', None),
        ("/v1/rerank", b'{"model":"raw","priority":-9}', {"model": "raw"}),
        ("/v1/score", b'{"model":"also","text_1":"a"}', {"model": "raw", "text_1": "a"}),
        ("/v1/messages", b'{"model":"raw","max_tokens":900}', {"model": "raw", "max_tokens": 50}),
        (
            "/v1/embeddings",
            b'{"model":"raw","input":[1,2]}',
            {"model": "raw", "input": [1, 2], "priority": 1},
        ),
        (
            "/v1/responses",
            b'{"model":"raw","input":"a"}',
            {"model": "raw", "input": "a", "priority": 1, "max_output_tokens": 50},
        ),
        (
            "/v1/responses",
            b'{"model":"raw","max_output_tokens":900,"service_tier":"flex"}',
            {"model": "raw", "max_output_tokens": 50, "service_tier": "flex", "priority": 2},
        ),
    ]
    async with Upstream(behave).running() as upstream, gateway(config(upstream, policy=policy)) as process:
        for path, body, expected in cases:
            answer = await ask(process.url, body, path=path + "?beta=true")
            assert answer.status == 200, answer.body
            visit = upstream.visits[-1]
            assert visit.path == path
            assert (visit.body if expected is None else json.loads(visit.body)) == (
                body if expected is None else expected
            )


ELSEWHERE = [
    (404, "POST", "/v1/load_lora_adapter"),
    (404, "POST", "/v1/fine_tuning/jobs"),
    (404, "POST", "/v1/responses/r-1/cancel"),
    (404, "POST", "/v1/messages/batches"),
    (404, "POST", "/v1/../health"),
    (404, "POST", "/v1/%2e%2e/health"),
    (404, "POST", "/v1//rerank"),
    (404, "POST", "/metrics"),
    (404, "GET", "/v1/rerank"),
    (404, "DELETE", "/v1/rerank"),
    (405, "GET", "/v1/embeddings"),
]


async def test_other_paths_reach_no_engine() -> None:
    async def behave(visit: Visit) -> None:
        visit.answer(whole())

    async with Upstream(behave).running() as upstream, gateway(config(upstream)) as process:
        for status, method, path in ELSEWHERE:
            answer = await ask(process.url, {"model": "raw"}, method=method, path=path)
            assert (answer.status, path) == (status, path)
        kinds = [{"content-type": "text/plain"}, {"content-encoding": "gzip"}]
        refused = [await ask(process.url, {"model": "raw"}, path="/v1/rerank", headers=kind) for kind in kinds]
        assert [answer.status for answer in refused] == [415, 415]
        assert upstream.visits == []
