"""What never reaches a model: limits, strangers, other routes. One gateway for all of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from e2e.raw import Client, ask, chat
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CONFIG = """
gateway: {max_body: 100kB, max_connections: 50}
models: [{name: raw, aliases: [also], backends: [{name: b0, url: "http://127.0.0.1:9", engine: vllm, seats: 1}]}]
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[GatewayProcess]:
    with gateway_process(config=CONFIG) as process:
        yield process


BIG = json.dumps(chat(user="x" * 150_000)).encode()


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (503, {"body": chat()}),
        (413, {"body": BIG}),
        (413, {"headers": {"content-length": "999999999999"}}),
        (415, {"headers": {"content-type": "text/plain"}, "body": chat()}),
        (415, {"headers": {"content-encoding": "gzip"}, "body": chat()}),
        (403, {"headers": {"host": "evil.example"}, "body": chat()}),
        (401, {"headers": {"origin": "https://evil.example"}, "body": chat()}),
        (401, {"headers": {"x-forwarded-for": "10.1.1.1"}, "body": chat()}),
        (401, {"headers": {"authorization": "Bearer sk-other"}, "body": chat()}),
        (400, {"body": b"{"}),
        (400, {"body": b""}),
        (404, {"body": {**chat(), "model": "other"}}),
        (404, {"path": "/v2/nothing"}),
        (404, {"path": "/v1/fine_tuning/jobs"}),
        (503, {"path": "/v1/rerank", "body": {"model": "raw"}}),
        (404, {"path": "/", "method": "GET"}),
        (405, {"method": "GET"}),
        (405, {"method": "OPTIONS", "path": "/v1/models"}),
        (405, {"method": "DELETE", "path": "/livez"}),
    ],
)
async def test_refusals_before_the_queue(shared: GatewayProcess, status: int, request_: dict[str, object]) -> None:
    arguments = dict(request_)
    body = arguments.pop("body", b"")
    answer = await ask(shared.url, body, **arguments)  # type: ignore[arg-type]
    assert answer.status == status
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert {"x-request-id", "x-tidegate-band", "x-tidegate-queue-ms"} <= answer.headers.keys()
    assert ("allow" in answer.headers) == (status == 405)


async def test_a_connection_goes_on_after_a_refusal(shared: GatewayProcess) -> None:
    client = await Client.connect(shared.url)
    for _ in range(3):
        client.send(BIG)
        assert (await client.answer()).status == 413
    client.send(method="GET", path="/livez")
    assert (await client.answer()).body == b"ok\n"
    client.leave()


async def test_a_chunked_body_is_counted_while_it_comes(shared: GatewayProcess) -> None:
    client = await Client.connect(shared.url)
    client.send(headers={"content-length": "", "transfer-encoding": "chunked"})
    for _ in range(15):
        client.writer.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
    answer = await client.answer()
    assert (answer.status, await client.reader.read()) == (413, b"")
    client.leave()


async def test_a_client_that_asks_before_it_sends_is_told_no(shared: GatewayProcess) -> None:
    client = await Client.connect(shared.url)
    client.send(headers={"content-length": "500000", "expect": "100-continue"})
    answer = await client.answer()
    assert (answer.status, await client.reader.read()) == (413, b"")
    client.leave()


async def test_heads_are_answered_without_a_body(shared: GatewayProcess) -> None:
    client = await Client.connect(shared.url)
    client.send(method="HEAD", path="/v1/models")
    head = await client.head()
    assert (head.status, int(head.headers["content-length"]) > 0) == (200, True)
    client.send(method="GET", path="/v1/models")
    answer = await client.answer()
    assert [row["id"] for row in json.loads(answer.body)["data"]] == ["raw", "also"]
    client.leave()


async def test_connections_are_bounded(shared: GatewayProcess) -> None:
    clients = [await Client.connect(shared.url) for _ in range(51)]
    answer = await clients[-1].answer()
    assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
    for client in clients:
        client.leave()
    async with asyncio.timeout(20):  # until the gateway has noticed that they left
        while (await ask(shared.url, method="GET", path="/livez")).status != 200:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.01)
