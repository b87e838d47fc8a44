"""The other ends of ``benchmarks.speed_goals``, each a process of its own that prints lines of JSON or words.

``engine SECONDS`` streams for ever, or for so long, a chunk a second to each of its clients, spread over the second.
What it could not write in time it leaves out, as an engine does that was held up; how late it was at most it says when
its input ends.
``streams FULL COUNT RUNNING URL`` holds COUNT streams open and FULL of the model ``busy``, says when RUNNING are,
asks again for those that end, and says how often when its input ends.
``refused RATE SECONDS URL`` sends requests on time whatever the answers take, and times the refusals.
``pace RATE SECONDS URL URL`` sends to two urls in turn, on time, and times the answers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, deque
from typing import cast
from urllib.parse import urlsplit

import httptools
import uvloop

from benchmarks.load import request_bytes

GROUPS = 64
BEAT_S = 1.0
CONNECTIONS = 400
BENCH, BUSY = b'"model": "bench"', b'"model": "busy"'

_EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def _chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


_CHUNK = _chunk(_EVENT)
_LAST = _chunk(_EVENT.replace(b"null}]", b'"stop"}]')) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Engine(asyncio.Protocol):
    """A connection that streams."""

    groups: list[dict[asyncio.Transport, float]] = [{} for _ in range(GROUPS)]  # noqa: RUF012 - shared on purpose
    count = 0
    lasts_s = float("inf")

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.url = self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        for group in self.groups:
            group.pop(self.transport, None)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url, self.body = url, b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.url.endswith(b"/models"):
            body = b'{"object":"list","data":[]}'
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return
        self.transport.write(_HEAD + _CHUNK)
        Engine.count += 1
        # Ends are spread over a whole life, as if the streams had been begun one after the other.
        life_s = self.lasts_s * (0.5 + (Engine.count * 7919 % 1000) / 1000) if BUSY not in self.body else float("inf")
        self.groups[Engine.count % GROUPS][self.transport] = asyncio.get_running_loop().time() + life_s


async def engine(lasts_s: str = "inf") -> None:
    """Serve for ever."""
    Engine.lasts_s = float(lasts_s)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Engine, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    began, number, late_s = loop.time(), 0, 0.0
    while not ended.is_set():
        group, now = Engine.groups[number % GROUPS], loop.time()
        for transport, until in list(group.items()):
            transport.write(_CHUNK if now < until else _LAST)
            if now >= until:
                del group[transport]
        number += 1
        passed_s = loop.time() - began
        late_s = max(late_s, passed_s - number * BEAT_S / GROUPS)
        number = max(number, int(passed_s * GROUPS / BEAT_S))
        await asyncio.sleep(max(0.0, number * BEAT_S / GROUPS - passed_s))
    print(json.dumps({"late_ms": late_s * 1e3}), flush=True)


class Reader(asyncio.Protocol):
    """A client of streams: asks again when one ends."""

    begun = ended = 0
    statuses: Counter[bytes] = Counter()  # noqa: RUF012 - shared on purpose
    ready = asyncio.Event()
    wanted = 0
    request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1"):
            self.statuses[data[9:12]] += 1
            Reader.begun += data.startswith(b"HTTP/1.1 200")
            if Reader.begun == Reader.wanted:
                self.ready.set()
        if data.endswith(b"0\r\n\r\n"):
            Reader.ended += 1
            self.transport.write(self.request)


async def streams(full: str, count: str, running: str, url: str) -> None:
    """Open streams, ``full`` of the other model first; say so once ``running`` have begun; go on, and count."""
    loop = asyncio.get_running_loop()
    Reader.request, Reader.wanted = request_bytes(urlsplit(url).netloc, stream=True), int(running)
    for number in range(int(full) + int(count)):
        transport, _ = await loop.create_connection(Reader, *_address(url))
        transport.write(Reader.request if number >= int(full) else _busy(Reader.request))
        if number % 20 == 0:
            await asyncio.sleep(0.01)
    await Reader.ready.wait()
    print("ready", flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    statuses = {status.decode(): number for status, number in Reader.statuses.items()}
    print(json.dumps({"begun": Reader.begun, "ended": Reader.ended, **statuses}))


def _busy(request: bytes) -> bytes:
    """The same for the model that is full."""
    head, _, body = request.partition(b"\r\n\r\n")
    body = body.replace(BENCH, BUSY)
    return head[: head.rindex(b":") + 1] + b" %d\r\n\r\n" % len(body) + body


class Asker(asyncio.Protocol):
    """Sends a request and keeps how long its answer took."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.busy = False
        self.sent = 0.0
        self.times: list[float] = []
        self.statuses: Counter[int] = Counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes) -> None:
        self.busy = True
        self.transport.write(request)
        self.sent = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.times.append(time.perf_counter() - self.sent)
        self.statuses[self.parser.get_status_code()] += 1
        self.busy = False


async def _askers(url: str, count: int) -> deque[Asker]:
    loop = asyncio.get_running_loop()
    made: deque[Asker] = deque()
    for _ in range(count):
        made.append((await loop.create_connection(Asker, *_address(url)))[1])
        await asyncio.sleep(0.005)
    return made


async def refused(rate: str, seconds: str, url: str) -> None:
    """Send on time, and tell how long the answers took."""
    askers, late = await _askers(url, CONNECTIONS), 0
    request = _busy(request_bytes(urlsplit(url).netloc, stream=True))
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    began, behind_s = loop.time(), 0.0
    for number in range(round(float(rate) * float(seconds))):
        if (wait_s := began + number / float(rate) - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        behind_s = max(behind_s, -wait_s)
        if askers[0].busy:
            late += 1
            continue
        askers[0].ask(request)
        askers.rotate(-1)
    await asyncio.sleep(0.5)
    statuses: Counter[int] = sum((asker.statuses for asker in askers), Counter())
    times = sorted(took for asker in askers for took in asker.times)
    found = _quantiles(times) | {"behind": behind_s * 1e3, "not_sent": late}
    print(json.dumps(found | {str(key): n for key, n in statuses.items()}))


async def pace(rate: str, seconds: str, *urls: str) -> None:
    """Send to each url at ``rate``, in turn; what disturbs the machine then disturbs them alike."""
    requests = [request_bytes(urlsplit(url).netloc, stream=False) for url in urls]
    all_of = [await _askers(url, 8) for url in urls]
    loop = asyncio.get_running_loop()
    every_s = 1 / float(rate) / len(urls)
    began = loop.time()
    for number in range(round(float(seconds) / every_s)):
        if (wait_s := began + number * every_s - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        askers = all_of[number % len(urls)]
        if not askers[0].busy:
            askers[0].ask(requests[number % len(urls)])
            askers.rotate(-1)
    await asyncio.sleep(0.5)
    for askers in all_of:
        print(json.dumps(_quantiles(sorted(took for asker in askers for took in asker.times[2:]))))


def _quantiles(times: list[float]) -> dict[str, float]:
    def at(part: float) -> float:
        return times[min(len(times) - 1, int(part * len(times)))] * 1e3 if times else float("nan")

    return {"count": len(times), "p50": at(0.5), "p99": at(0.99), "most": at(1.0)}


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        work = {"engine": engine, "streams": streams, "refused": refused, "pace": pace}[mode]
        runner.run(work(*rest))  # type: ignore[operator]
