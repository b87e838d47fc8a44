"""What belongs to which request on a connection of either port, and what is said of one that breaks off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from e2e.raw import Answer, Client, Upstream, Visit, chat, gateway, until
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CONFIG = """
models: [{name: raw, backends: [{name: b0, url: "http://127.0.0.1:9", engine: vllm, seats: 1}]}]
"""
OFFER = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAB"}


@pytest.fixture(scope="module")
def shared() -> Iterator[GatewayProcess]:
    with gateway_process(config=CONFIG) as process:
        yield process


async def split(url: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[Answer, bytes]:
    """Send a head, some time later its body, then another request; return the first answer and all that follows."""
    client = await Client.connect(url)
    client.send(path=path, headers={**headers, "content-length": str(len(body))})
    await asyncio.sleep(0.05)
    client.writer.write(body)
    first = await client.answer()
    client.send(method="GET", path="/livez", headers={"connection": "close", "content-length": ""})
    rest = await client.reader.read()
    client.leave()
    return first, rest


async def test_an_offered_protocol_does_not_part_a_request_from_its_body(shared: GatewayProcess) -> None:
    first, rest = await split(shared.url, "/v1/chat/completions", json.dumps(chat()).encode(), OFFER)
    assert (first.status, first.error["code"]) == (503, "no_backend")
    assert (rest.count(b"HTTP/1.1 "), rest[-3:]) == (1, b"ok\n")


async def test_a_body_that_is_a_request_is_not_run(shared: GatewayProcess) -> None:
    inner = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
    first, rest = await split(shared.url, "/v1/chat/completions", inner, OFFER)
    assert (first.status, first.error["code"]) == (400, "bad_request")
    assert (rest.count(b"HTTP/1.1 "), rest[-3:]) == (1, b"ok\n")


async def test_the_control_port_obeys_the_body_behind_an_offer(shared: GatewayProcess) -> None:
    first, rest = await split(shared.control, "/admin/mode", b'{"mode": "no such mode"}', OFFER)
    assert first.status == 400
    assert "no such mode" in first.body.decode()
    assert rest.count(b"HTTP/1.1 ") == 1


async def test_a_body_that_cannot_be_read_is_logged_with_what_the_client_got(shared: GatewayProcess) -> None:
    client = await Client.connect(shared.url)
    client.send(headers={"content-length": "", "transfer-encoding": "chunked"})
    await asyncio.sleep(0.05)
    client.writer.write(b"no length\r\n")
    answer = await client.answer()
    client.leave()
    assert (answer.status, answer.error["code"]) == (400, "bad_request")
    assert answer.headers["x-tidegate-reason"] == "bad_request"
    name = answer.headers["x-request-id"]

    def line() -> list[dict[str, object]]:
        return [line for line in shared.requests() if line["request_id"] == name]

    await until(lambda: bool(line()), within_s=3)
    assert [(row["status"], row["outcome"], row["reason"]) for row in line()] == [(400, "rejected", "bad_request")]


@pytest.mark.parametrize("port", ["url", "control"])
async def test_half_a_request_leaves_no_trace_in_the_log(shared: GatewayProcess, port: str) -> None:
    url = getattr(shared, port)
    path = "/admin/mode" if port == "control" else "/v1/chat/completions"
    for headers, body in (
        ({"content-length": "50"}, b"{"),
        ({"content-length": "", "transfer-encoding": "xchunked", "expect": "100-continue"}, b"0\r\n\r\n"),
        ({"content-length": "", "transfer-encoding": "xchunked"}, b"x" * 200_000),
    ):
        client = await Client.connect(url)
        client.send(path=path, headers=headers)
        client.writer.write(body)
        await asyncio.sleep(0.1)
        client.leave()
    await asyncio.sleep(0.3)
    assert "Traceback" not in shared.log.read_text()
    assert "Exception" not in shared.log.read_text()


async def test_a_client_that_closes_its_sending_half_counts_as_gone() -> None:
    async def hang(visit: Visit) -> None:
        await asyncio.sleep(60)

    async with (
        Upstream(hang).running() as upstream,
        gateway(CONFIG.replace("127.0.0.1:9", address(upstream))) as process,
    ):
        client = await Client.connect(process.url)
        client.send(chat())
        await until(lambda: len(upstream.visits) == 1, within_s=5)
        client.writer.write_eof()
        await until(upstream.visits[0].left.is_set, within_s=5)
        await until(lambda: [line["status"] for line in process.requests()] == [499], within_s=3)
        client.leave()


def address(upstream: Upstream) -> str:
    return upstream.url.removeprefix("http://")


REPEATED = [
    ("POST", "/v1/chat/completions", "x-tidegate-band", "p0"),
    ("POST", "/v1/rerank", "content-type", "text/plain"),
    ("GET", "/v1/models", "authorization", "Bearer EMPTY"),
    ("GET", "/v1/requests/NAME", "x-tidegate-band", "p0"),
    ("GET", "/v1/batches", "x-api-key", "EMPTY"),
]


@pytest.mark.parametrize(("method", "path", "name", "value"), REPEATED)
async def test_of_two_headers_none_wins_silently(
    shared: GatewayProcess, method: str, path: str, name: str, value: str
) -> None:
    client = await Client.connect(shared.url)
    twice = {name.upper(): value, name: value}
    answer = await client.ask(chat() if method == "POST" else b"", method=method, path=path, headers=twice)
    assert (answer.status, answer.error["param"]) == (400, name)


async def test_a_list_of_dependencies_is_read_whole_however_it_is_cut(shared: GatewayProcess) -> None:
    client = await Client.connect(shared.url)
    pieces = {"x-tidegate-depends-on": "not a name", "X-Tidegate-Depends-On": "name"}
    answer = await client.ask(chat(), headers=pieces)
    assert (answer.status, answer.error["param"]) == (400, "x-tidegate-depends-on")
    assert "not a name" in answer.error["message"]
