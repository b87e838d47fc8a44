"""How quickly the gateway says no while it is busy: from the last byte of a request to the last byte of its refusal.

64 seats of one model are taken for good and its queue is full; beside them 1,000 streams of another model run at 20
chunks a second each, in 16 groups out of step, as the replicas of an engine would be. 300 more requests a second come
for the first model, on time whatever the answers take (an open loop), and all of them are refused.

Four processes: the gateway alone on one core; the engine's stub, the client of the streams and the client of the
refusals on the others. ``python -m benchmarks.refusals engine|streams|refused …`` are the last three.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import httptools

from benchmarks import bytepath
from tidegate.testing.gateway_process import gateway_process

ROOT = Path(__file__).resolve().parent.parent
SEATS = 64
STREAMS = 1000
RATE = 300
SECONDS = 10.0
GROUPS = 16
BEAT_S = 1 / 20
CONNECTIONS = 300

CONFIG = """
models:
  - {{name: busy, backends: [{{name: a, url: "{url}", engine: openai, seats: {seats}}}]}}
  - {{name: wide, backends: [{{name: b, url: "{wide}", engine: openai, seats: {streams}}}]}}
policy: {{bands: {{p0: {{reserve: 0}}, p1: {{capacity: 1, shed_hopeless: false}}}}}}
"""


def run() -> list[tuple[str, str, str]]:
    """Give the row of the figure that matters and one of what went on meanwhile."""
    with _child("engine") as engine:
        url = engine.stdout.readline().strip() if engine.stdout else ""
        config = CONFIG.format(url=url, wide=url.replace("127.0.0.1", "localhost"), seats=SEATS, streams=STREAMS)
        with gateway_process("--log-level", "warning", config=config) as gateway:
            bytepath.pin(gateway.pid, alone=True)
            with _child("streams", gateway.url) as streams:
                assert streams.stdout is not None
                streams.stdout.readline()
                before = bytepath.schedstat(gateway.pid)
                with _child("refused", gateway.url) as refused:
                    out, _ = refused.communicate(timeout=60)
                if refused.returncode:
                    raise RuntimeError("too many refusals were late: too busy a machine to measure this")
                ran, waited = (now - then for now, then in zip(bytepath.schedstat(gateway.pid), before, strict=True))
                found = json.loads(out)
                chunks = json.loads(_last_words(streams))
    refusals = f"p50 {found['p50']:.2f} ms, p99 {found['p99']:.2f} ms, longest {found['most']:.1f} ms"
    beside = f"{found['count']} refusals in {SECONDS:.0f} s beside {chunks['rate']:,.0f} chunks/s"
    return [
        ("refusal, last request byte to last answer byte", refusals, "p99 under 5 ms"),
        ("  the gateway's core", f"{ran / SECONDS:.0%} used, {waited / SECONDS:.0%} waited for", "0% waited for"),
        ("  meanwhile", beside, f"{RATE}/s beside {(STREAMS + SEATS) / BEAT_S:,.0f} chunks/s"),
    ]


# The engine's stub


class Engine(asyncio.Protocol):
    """A connection that streams for ever, one chunk at each beat of its group."""

    groups: list[set[asyncio.Transport]] = [set() for _ in range(GROUPS)]  # noqa: RUF012 - shared on purpose
    count = 0

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        for group in self.groups:
            group.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_message_complete(self) -> None:
        if self.url.endswith(b"/models"):
            body = b'{"object":"list","data":[]}'
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.transport.write(head + CHUNK)
        Engine.count += 1
        self.groups[Engine.count % GROUPS].add(self.transport)


_EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)


async def engine() -> None:
    """Serve for ever."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Engine, "127.0.0.1", 0, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    began, number = loop.time(), 0
    while True:
        for transport in Engine.groups[number % GROUPS]:
            transport.write(CHUNK)
        number += 1
        await asyncio.sleep(max(0.0, began + number * BEAT_S / GROUPS - loop.time()))


# The clients


def _request(url: str, model: str) -> bytes:
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "word " * 200}], "stream": True}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Reader(asyncio.Protocol):
    """Counts the bytes of streams."""

    total = 0
    missing = SEATS + STREAMS
    ready = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        Reader.total += len(data)
        if data.startswith(b"HTTP/1.1 200"):
            Reader.missing -= 1
            if not Reader.missing:
                self.ready.set()


async def _connect(url: str, kind: type[asyncio.Protocol]) -> tuple[asyncio.Transport, asyncio.Protocol]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return await asyncio.get_running_loop().create_connection(kind, parts.hostname, parts.port)


async def streams(url: str) -> None:
    """Take all seats, fill the queue, say so, read until standard input ends, and tell the chunks per second."""
    loop = asyncio.get_running_loop()
    for model, count in (("busy", SEATS + 1), ("wide", STREAMS)):
        for _ in range(count):
            transport, _ = await _connect(url, Reader)
            transport.write(_request(url, model))
    await Reader.ready.wait()
    print("ready", flush=True)
    began, before = loop.time(), Reader.total
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    print(json.dumps({"rate": (Reader.total - before) / len(CHUNK) / (loop.time() - began)}))


class Asker(asyncio.Protocol):
    """Sends a request and notes how long its refusal took."""

    times: list[float] = []  # noqa: RUF012 - shared on purpose

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.sent = 0.0
        self.busy = False

    def ask(self, transport: asyncio.Transport, request: bytes) -> None:
        self.busy = True
        transport.write(request)
        self.sent = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        assert self.parser.get_status_code() == 429
        Asker.times.append(time.perf_counter() - self.sent)
        self.busy = False


async def refused(url: str) -> None:
    """Send on time; print the times of the refusals in milliseconds.

    It goes before the stub and the other client, with which it shares a core: their turns are no part of the answer.
    """
    with contextlib.suppress(PermissionError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    loop = asyncio.get_running_loop()
    connections = deque([await _connect(url, Asker) for _ in range(CONNECTIONS)])
    request = _request(url, "busy")
    began = loop.time()
    for number in range(round(RATE * SECONDS)):
        await asyncio.sleep(max(0.0, began + number / RATE - loop.time()))
        transport, asker = connections.popleft()
        assert isinstance(asker, Asker)
        if asker.busy:
            raise RuntimeError(f"no refusal within {CONNECTIONS / RATE:.0f} s: too busy a machine to measure this")
        asker.ask(transport, request)
        connections.append((transport, asker))
    await asyncio.sleep(0.5)
    times = sorted(time * 1000 for time in Asker.times)
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    print(json.dumps({"count": len(times), "p50": p50, "p99": p99, "most": times[-1]}))


# Processes


def _child(*arguments: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return bytepath.beside([sys.executable, "-m", "benchmarks.refusals", *arguments])


def _last_words(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    return process.stdout.readline()


if __name__ == "__main__":
    import uvloop

    mode, *rest = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run({"engine": engine, "streams": streams, "refused": refused}[mode](*rest))  # type: ignore[operator]
