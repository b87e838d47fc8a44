"""A gateway that ends while requests still arrive: each is refused as draining, at once, in every way it may arrive."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from e2e.raw import DONE, Answer, Client, Upstream, Visit, ask, chat, chunk, gateway, until
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

UPLOAD = "multipart/form-data; boundary=x"
HALF_UPLOAD = b'--x\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{"custom_id"'
MEGABYTES = 4 * 1024 * 1024


def config(folder: Path, upstream: Upstream) -> str:
    return f"""
gateway: {{drain_timeout: 60s}}
models: [{{name: raw, backends: [{{name: b0, url: "{upstream.url}", engine: vllm, seats: 1}}]}}]
jobs: {{store: "sqlite:///{folder}/jobs.db", files: "{folder}/files"}}
"""


async def begin(url: str, *, headers: dict[str, str], body: bytes = b"", path: str = "/v1/chat/completions") -> Client:
    client = await Client.connect(url)
    client.send(body, path=path, headers={"x-request-id": f"late{path}", **headers})
    return client


async def half_sent(url: str) -> dict[str, Client]:
    """Give connections on which a request has begun to arrive."""
    length, chunked = {"content-length": "100"}, {"content-length": "", "transfer-encoding": "chunked"}
    large = {"content-length": str(MEGABYTES)}
    upload = {"content-type": UPLOAD, "content-length": str(MEGABYTES)}
    return {
        "a byte": await begin(url, headers=length, body=b"{"),
        "nothing": await begin(url, headers=length),
        "a chunk": await begin(url, headers=chunked, body=b"1\r\n{\r\n"),
        "half of it": await begin(url, headers=large, body=b'{"model": "' + b"x" * (MEGABYTES // 2)),
        "waits for leave": await begin(url, headers={**length, "expect": "100-continue"}),
        "a form": await begin(url, headers=length, body=b"{", path="/v1/audio/transcriptions"),
        "a file": await begin(url, headers=upload, body=HALF_UPLOAD, path="/v1/files"),
        "a batch": await begin(url, headers=length, body=b"{", path="/v1/batches"),
    }


async def ended_with(process: GatewayProcess) -> tuple[int, str]:
    status = await asyncio.to_thread(process.wait, 15)
    return status, process.log.read_text()


async def test_what_is_still_arriving_is_refused_at_once(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def serve(visit: Visit) -> None:
        visit.start_stream()
        visit.send(chunk("one"))
        await go.wait()
        visit.send(DONE)

    async with Upstream(serve).running() as upstream, gateway(config(tmp_path, upstream)) as process:
        running = asyncio.ensure_future(ask(process.url, chat(stream=True)))
        await until(lambda: upstream.open == 1, within_s=10)
        filed = asyncio.ensure_future(ask(process.url, chat(user="x" * (MEGABYTES // 2))))
        await until(lambda: process.total("tidegate_queue_depth") == 1, within_s=10)
        late = await half_sent(process.url)
        assert (await late["waits for leave"].head()).status == 100
        head = await Client.connect(process.url)
        head.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n")
        assert (await ask(process.url, method="GET", path="/livez")).status == 200, "what came before has been read"
        process.signal(signal.SIGTERM)
        answers: dict[str, Answer] = {}
        for name, client in {**late, "a head": head}.items():
            async with asyncio.timeout(10):  # a sixth of the time that the running stream may keep the gateway
                answers[name] = await client.answer()
                assert await client.reader.read() == b"", "each was the last on its connection"
            client.leave()
        answers["in a file"] = await filed
        found = {name: (answer.status, answer.error["code"]) for name, answer in answers.items()}
        assert found == dict.fromkeys(answers, (503, "draining"))
        assert {answer.headers["x-tidegate-reason"] for answer in answers.values()} == {"draining"}
        assert {answer.headers["x-should-retry"] for answer in answers.values()} == {"true"}
        assert all(int(answer.headers["retry-after"]) > 0 for answer in answers.values())
        assert not running.done()
        go.set()
        assert (await running).body == chunk("one") + DONE
        status, log = await ended_with(process)
        assert (status, "Traceback" in log, "Exception" in log) == (0, False, False)
        assert not [*(tmp_path / "files").rglob("file-*")], "nothing of the half file is left"
        lines = [(line["status"], line["outcome"], line.get("reason")) for line in process.requests()]
        assert sorted(lines, key=str) == [
            (200, "completed", None), *[(503, "evicted", "draining")], *[(503, "rejected", "draining")] * len(late),
        ]  # fmt: skip


async def test_a_question_that_waits_is_answered_when_its_gateway_ends(tmp_path: Path) -> None:
    """Nothing runs, so that the gateway ends ahead of the wait for a name that has not come."""

    async def never(visit: Visit) -> None:
        visit.answer(b"{}")

    async with Upstream(never).running() as upstream, gateway(config(tmp_path, upstream)) as process:
        client = await Client.connect(process.url)
        client.send(method="GET", path="/v1/requests/unknown?wait=30s", headers={"content-length": ""})
        assert (await ask(process.url, method="GET", path="/livez")).status == 200, "what came before has been read"
        process.signal(signal.SIGTERM)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (503, "draining")
        client.leave()
        status, log = await ended_with(process)
        assert (status, "Traceback" in log) == (0, False)
        assert [(line["status"], line.get("reason")) for line in process.requests()] == [(503, "draining")]
