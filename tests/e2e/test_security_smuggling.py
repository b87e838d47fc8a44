"""Requests that two parsers could read in two ways: the engine sees what was judged, once, or nothing."""

from __future__ import annotations

import asyncio
import json

import pytest

from e2e.raw import Client, Upstream, Visit, ask, chat, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

BODY = json.dumps(chat(user="first")).encode()
HIDDEN = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b'x-tidegate-band: p0\r\ncontent-length: 46\r\n\r\n{"model":"raw","messages":[1],"user":"hidden"}'
)
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
CODING = b"transfer-encoding: chunked\r\n"


def post(framing: bytes, body: bytes, *, line: bytes = b"POST /v1/chat/completions HTTP/1.1\r\n") -> bytes:
    head = b"host: localhost\r\ncontent-type: application/json\r\n"
    return line + head + framing + b"\r\n" + body


REFUSED = {
    "length and coding": post(LENGTH + CODING, CHUNKS),
    "coding and length": post(CODING + LENGTH, CHUNKS),
    "length 0 and coding": post(b"content-length: 0\r\n" + CODING, CHUNKS),
    "two lengths": post(LENGTH + b"content-length: 3\r\n", BODY),
    "length list": post(b"content-length: %d, 3\r\n" % len(BODY), BODY),
    "signed length": post(b"content-length: +%d\r\n" % len(BODY), BODY),
    "negative length": post(b"content-length: -1\r\n", BODY),
    "length in hexadecimal": post(b"content-length: 0x%x\r\n" % len(BODY), BODY),
    "two words of length": post(b"content-length: %d 3\r\n" % len(BODY), BODY),
    "huge length": post(b"content-length: 99999999999999999999999\r\n", BODY),
    "unknown coding": post(b"transfer-encoding: xchunked\r\n", CHUNKS),
    "two codings": post(b"transfer-encoding: chunked, identity\r\n", CHUNKS),
    "coding twice": post(CODING + b"transfer-encoding: cow\r\n", CHUNKS),
    "quoted coding": post(b'transfer-encoding: "chunked"\r\n', CHUNKS),
    "coding after a control byte": post(b"transfer-encoding: \x0bchunked\r\n", CHUNKS),
    "space before the colon": post(b"transfer-encoding : chunked\r\n", CHUNKS),
    "space before the name": post(b" transfer-encoding: chunked\r\n", CHUNKS),
    "folded line": post(LENGTH + b"x-a: b\r\n transfer-encoding: chunked\r\n", BODY),
    "folded coding": post(b"transfer-encoding:\r\n chunked\r\n", CHUNKS),
    "bare CR in a value": post(LENGTH + b"x-a: b\rtransfer-encoding: chunked\r\n", BODY),
    "NUL in a value": post(LENGTH + b"x-a: b\0c\r\n", BODY),
    "NUL in a name": post(LENGTH + b"x-\0a: b\r\n", BODY),
    "no name": post(LENGTH + b": b\r\n", BODY),
    "no colon": post(LENGTH + b"x-a\r\n", BODY),
    "two hosts": post(LENGTH + b"host: other\r\n", BODY),
    "chunk size with a sign": post(CODING, b"+" + CHUNKS),
    "chunk size in 0x": post(CODING, b"0x" + CHUNKS),
    "chunk longer than its size": post(CODING, b"3\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "huge chunk": post(CODING, b"ffffffffffffffffff\r\n" + BODY),
    "two spaces of line end": post(LENGTH, BODY, line=b"POST /v1/chat/completions HTTP/1.1\r\r\n"),
    "no version": post(LENGTH, BODY, line=b"POST /v1/chat/completions\r\n"),
    "other version": post(LENGTH, BODY, line=b"POST /v1/chat/completions HTTP/9.9\r\n"),
    "other protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "tunnel": b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "space in the path": post(LENGTH, BODY, line=b"POST /v1/chat /completions HTTP/1.1\r\n"),
    "NUL in the path": post(LENGTH, BODY, line=b"POST /v1/chat\0/completions HTTP/1.1\r\n"),
    "endless trailer": post(CODING, CHUNKS[:-2] + b"x-a: " + b"b" * 400_000),
    "endless chunk extension": post(CODING, b"1;" + b"b" * 400_000),
    "header too long": post(LENGTH + b"x-a: " + b"b" * 70_000 + b"\r\n", BODY),
    "path too long": post(LENGTH, BODY, line=b"POST /v1/" + b"a" * 70_000 + b" HTTP/1.1\r\n"),
    "too many headers": post(LENGTH + b"x-a: b\r\n" * 9000, BODY),
}


async def talk(url: str, data: bytes) -> tuple[int, bytes]:
    """Send bytes; return the first status (0: none, for very long) and all that came until silence."""
    client = await Client.connect(url)
    client.writer.write(data)
    came = b""
    try:
        while piece := await asyncio.wait_for(client.reader.read(65536), 0.4 if came else 20):
            came += piece
    except (TimeoutError, ConnectionError):
        pass
    client.leave()
    return int(came[9:12]) if came.startswith(b"HTTP/1.1 ") else 0, came


async def behave(visit: Visit) -> None:
    visit.answer(whole())


def config(upstream: Upstream) -> str:
    return (
        f'models: [{{name: raw, backends: [{{name: b0, url: "{upstream.url}", engine: vllm, seats: 4}}]}}]\n'
        "gateway: {max_body: 100kB}\n"
    )


async def test_what_can_be_read_in_two_ways_is_refused() -> None:
    async with Upstream(behave).running() as upstream, gateway(config(upstream)) as process:
        names = list(REFUSED)
        answers = await asyncio.gather(*(talk(process.url, REFUSED[name] + HIDDEN) for name in names))
        wrong = {name: came for name, (status, came) in zip(names, answers, strict=True) if not 400 <= status < 500}
        assert not wrong
        assert upstream.visits == []
        assert (await ask(process.url, chat())).status == 200
        assert process.total("tidegate_running") == 0


READ_ONCE = {
    "absolute form": post(LENGTH, BODY, line=b"POST http://evil.example/v1/chat/completions HTTP/1.1\r\n"),
    "the same length twice": post(LENGTH + LENGTH, BODY),
    "chunks": post(CODING, CHUNKS),
    "chunk extension": post(CODING, b"%x;a=b\r\n%b\r\n0\r\nx-tidegate-band: p0\r\n\r\n" % (len(BODY), BODY)),
    "length in a header named by connection": post(LENGTH + b"connection: content-length, close\r\n", BODY),
    "fragment": post(LENGTH, BODY, line=b"POST /v1/chat/completions#/v1/rerank HTTP/1.1\r\n"),
    "line ends without CR": post(LENGTH, BODY).replace(b"\r\n", b"\n"),
}


@pytest.mark.parametrize("name", READ_ONCE)
async def test_a_request_is_read_in_one_way_and_what_follows_is_not_part_of_it(name: str) -> None:
    """Either it is refused, or the engine gets exactly its body; what came behind it in one write is not run."""
    async with Upstream(behave).running() as upstream, gateway(config(upstream)) as process:
        status, _ = await talk(process.url, READ_ONCE[name] + HIDDEN)
        bodies = [json.loads(visit.body) for visit in upstream.visits]
        assert [body["user"] for body in bodies] == ["first"] * (status == 200)
        assert status in (200, 400)
        for visit in upstream.visits:
            assert visit.path == "/v1/chat/completions"
            assert visit.headers["host"] == upstream.url.removeprefix("http://")
            assert "transfer-encoding" not in visit.headers
            assert bodies[0]["priority"] == 1
        await until(lambda: process.total("tidegate_running") == 0, within_s=1)
