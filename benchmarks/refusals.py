"""How quickly the gateway says no while it is busy: from the last byte of a request to the last byte of its refusal.

64 seats of one model are taken for good and its queue is full; beside them 1,000 streams of another model run at 20
chunks a second each, in 16 groups out of step, as the replicas of an engine would be. 300 more requests a second come
for the first model, on time whatever the answers take (an open loop), and all of them are refused.

Four processes: the gateway alone on one core; the engine's stub, the client of the streams and the client of the
refusals on the others. ``python -m benchmarks.refusals engine|streams|refused …`` are the last three. All of them go
before other programs where the system allows it, and the client of the refusals before the other two, with which it
shares a core: what these take is no part of the answer. For the same reason the client of the streams is not woken for
each piece, which on one machine would be paid for within the gateway's own write: it looks after them in turn, twice a
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
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
ROUND_S = 0.5
"""In which the client of the streams reads each of them once."""
CONNECTIONS = 300

CONFIG = """
models:
  - {{name: busy, backends: [{{name: a, url: "{url}", engine: openai, seats: {seats}}}]}}
  - {{name: wide, backends: [{{name: b, url: "{wide}", engine: openai, seats: {streams}}}]}}
policy: {{bands: {{p0: {{reserve: 0}}, p1: {{capacity: 1, shed_hopeless: false, ttl: 1h}}}}}}
"""


def run() -> list[tuple[str, str, str]]:
    """Give the row of the figure that matters and one of what went on meanwhile."""
    with _child("engine") as engine:
        url = engine.stdout.readline().strip() if engine.stdout else ""
        config = CONFIG.format(url=url, wide=url.replace("127.0.0.1", "localhost"), seats=SEATS, streams=STREAMS)
        with gateway_process("--log-level", "warning", config=config) as gateway:
            bytepath.pin(gateway.pid, alone=True)
            _prefer(gateway.pid)
            with _child("streams", gateway.url) as streams:
                assert streams.stdout is not None
                streams.stdout.readline()
                with _child("refused", gateway.url) as refused:
                    assert refused.stdout is not None
                    refused.stdout.readline()
                    before = bytepath.schedstat(gateway.pid)
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
    _prefer(0)
    due = loop.time()
    for group in itertools.cycle(Engine.groups):
        for transport in group:
            transport.write(CHUNK)
        due = max(due + BEAT_S / GROUPS, loop.time())  # late pieces stay late: no engine makes up for them by a flood
        await asyncio.sleep(due - loop.time())


# The clients


def _request(url: str, model: str) -> bytes:
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "word " * 200}], "stream": True}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def streams(url: str) -> None:
    """Take all seats, fill the queue, say so, read until standard input ends, and tell the chunks per second."""
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    for model, count in (("busy", SEATS + 1), ("wide", STREAMS)):
        for _ in range(count):
            sockets.append(socket.create_connection((parts.hostname, parts.port)))
            sockets[-1].sendall(_request(url, model))
            sockets[-1].setblocking(False)
    missing = set(sockets)
    _prefer(0)
    while len(missing) > 1:  # the one that fills the queue gets no answer
        await asyncio.sleep(ROUND_S)
        missing -= {one for one in missing if _read(one)}
    print("ready", flush=True)
    await asyncio.sleep(ROUND_S)
    for one in sockets:
        _read(one)
    began, total, ended = loop.time(), 0, asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    for number, one in enumerate(itertools.cycle(sockets)):
        if ended.is_set():
            break
        await asyncio.sleep(max(0.0, began + number * ROUND_S / len(sockets) - loop.time()))
        total += _read(one)
    print(json.dumps({"rate": total / len(CHUNK) / (loop.time() - began)}))


def _read(one: socket.socket) -> int:
    """Take what is there; return how much that was."""
    try:
        return len(one.recv(1 << 16))
    except BlockingIOError:
        return 0


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
    """Send on time; print the times of the refusals in milliseconds."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    connections = deque([await loop.create_connection(Asker, parts.hostname, parts.port) for _ in range(CONNECTIONS)])
    request = _request(url, "busy")
    await asyncio.sleep(1.0)  # what it took to start is over, for the gateway and for what shares a core with this
    _prefer(0, 2)
    print("ready", flush=True)
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


def _prefer(pid: int, rank: int = 1) -> None:
    """Let a process go before other programs, and before those of lower rank, where the system allows it."""
    with contextlib.suppress(PermissionError, AttributeError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(rank))


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
