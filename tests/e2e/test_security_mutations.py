"""Ten thousand damaged requests on raw sockets: no answer of 500, no crash, no seat or place that stays taken."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from e2e.raw import ask, until
from tidegate.testing.gateway_process import GatewayProcess, gateway_process
from tidegate.testing.processes import engine_process

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

ROUNDS = 10
EACH = 1000
AT_A_TIME = 60
PATIENCE_S = 0.25
"""How long the answer of a damaged request is waited for; most that are unfinished get none. A gateway that is slow
gets the time of one more question and its answer: what came before that has been read then."""


def request(method: str, path: str, headers: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}"
    if body:
        head += f"Content-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


JSON = "Content-Type: application/json\r\n"
MESSAGES = [{"role": "user", "content": "潮 tide 🌊"}]
FORM = b'--aB\r\nContent-Disposition: form-data; name="model"\r\n\r\nsim\r\n--aB--\r\n'
OURS = (
    "X-Tidegate-Band: p2\r\nX-Tidegate-TTL: 250ms\r\nX-Request-Id: a.b\r\nX-Stainless-Read-Timeout: 600\r\n"
    "Authorization: Bearer EMPTY\r\nAccept-Language: zh-CN,zh;q=0.9,en;q=0.1\r\nIdempotency-Key: k\r\n"
)


def chat(**more: object) -> bytes:
    return json.dumps({"model": "sim", "messages": MESSAGES, "max_tokens": 2, **more}).encode()


CHUNKED = chat(stream=True, stream_options={"include_usage": True})
FAULTS = ("request.fault", "scheduler.fault", "waiter.failed", "Traceback")
VALID = [
    request("POST", "/v1/chat/completions", JSON, chat()),
    request("POST", "/v1/chat/completions", JSON + OURS, chat(stream=True, service_tier="flex", n=1)),
    request("POST", "/v1/chat/completions", JSON, chat(metadata={"a": "b"}, tools=[], priority=3, seed=1)),
    request("POST", "/v1/completions", JSON + OURS, b'{"model":"sim","prompt":"tide","max_tokens":2}'),
    request("POST", "/v1/responses", JSON, b'{"model":"sim","input":"tide","max_output_tokens":2}'),
    request("POST", "/v1/embeddings", JSON, b'{"model":"sim","input":["tide"]}'),
    request("POST", "/v1/rerank", JSON + "X-Request-Priority: bulk\r\n", b'{"model":"sim","query":"q"}'),
    request("POST", "/v1/audio/transcriptions", "Content-Type: multipart/form-data; boundary=aB\r\n", FORM),
    request("POST", "/v1/chat/completions", JSON + "X-Tidegate-Depends-On: a.b\r\n", chat()),
    request("GET", "/v1/models", OURS),
    request("GET", "/v1/requests/a.b?wait=1s", "X-Tidegate-Band: p0\r\n"),
    request("GET", "/livez", ""),
    request("POST", "/v1/chat/completions", JSON + "Transfer-Encoding: chunked\r\n")
    + b"10\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (CHUNKED[:16], len(CHUNKED) - 16, CHUNKED[16:]),
]
WORDS = [b"\r\n", b"\n", b"\r", b"\0", b":", b" ", b"\xff\xfe", b"{", b"}", b'"', b"\\u d800", b"\\ud800", b"[" * 3000]
WORDS += [
    b"chunked",
    b"-1",
    b"1e999",
    b"NaN",
    b"99999999999999999999",
    b"null",
    b"true",
    b"%00",
    b"..",
    b"/",
    b"?",
    b"#",
]
WORDS += [b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n"]
WORDS += [
    b"Connection: close, host\r\n",
    b"Host: localhost\r\n",
    b"X-Tidegate-TTL: -1\r\n",
    b"p0",
    b"HTTP/1.0",
    b"HEAD ",
]


def damaged(chance: random.Random) -> bytes:
    """Take a valid request and damage it in one to four ways."""
    data = chance.choice(VALID)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 1, 2, 8, 40)))
        kind = chance.randrange(7)
        if kind == 0:
            data = data[:at] + bytes(chance.randrange(256) for _ in range(end - at)) + data[end:]
        elif kind == 1:
            data = data[:at] + data[end:]
        elif kind == 2:
            data = data[:end] + data[at:]
        elif kind == 3:
            data = data[:at] + chance.choice(WORDS) + data[at:]
        elif kind == 4:
            data = data[:at] + chance.choice(WORDS) + data[end:]
        elif kind == 5:
            lines = data.split(b"\r\n")
            one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            data = b"\r\n".join(lines)
        else:
            data = data[:at] + chance.choice(VALID)[chance.randrange(60) :]
    return data


@pytest.fixture(scope="module")
def shared() -> Iterator[GatewayProcess]:
    with engine_process(speed=1000, noise=0) as url, gateway_process("--backend", url) as process:
        yield process


async def answer_to(url: str, data: bytes) -> str:
    """Send bytes; return the status of the answer, or that there was none in time."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        reading = asyncio.ensure_future(reader.read(65536))
        if not (await asyncio.wait((reading,), timeout=PATIENCE_S))[0]:
            await ask(url, method="GET", path="/livez")
        came = await asyncio.wait_for(reading, PATIENCE_S / 10)
        return came[9:12].decode("latin-1") if came.startswith(b"HTTP/1.1 ") else f"none {came[:20]!r}"
    except (TimeoutError, ConnectionError):
        return "none"
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_damaged_requests_leave_nothing_behind(shared: GatewayProcess, number: int) -> None:
    chance = random.Random(number)
    requests = iter([damaged(chance) for _ in range(EACH)])
    counts: Counter[str] = Counter()
    faults: list[bytes] = []

    async def send() -> None:
        for data in requests:
            status = await answer_to(shared.url, data)
            counts[status] += 1
            if status == "500":
                faults.append(data)

    await asyncio.gather(*(send() for _ in range(AT_A_TIME)))
    assert faults == []
    assert sum(counts.values()) == EACH
    assert counts.keys() <= {"none", "none b''"} | {status for status in counts if status.isdigit()}
    assert counts["200"] > EACH / 50
    assert counts["400"] > EACH / 10

    def free() -> bool:
        return shared.total("tidegate_running") == 0 == shared.total("tidegate_queue_depth")

    await until(free, within_s=5)
    valid = await ask(shared.url, chat())
    assert valid.status == 200
    lines = shared.log.read_text().splitlines()
    assert not [line for line in lines if any(word in line for word in FAULTS)]
