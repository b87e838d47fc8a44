"""A load client that knows only what it must: sends ready bytes, counts answers, takes times.

``python -m benchmarks.load plain|stream|latency COUNT URL [URL]`` prints one line of JSON.
``plain``: COUNT requests over 8 connections, each as soon as the last is answered. ``stream``: COUNT streams at once.
``latency``: COUNT requests in turn to each of the two urls, over one connection each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from urllib.parse import urlsplit

import httptools

KEY = "tg-bench-0123456789abcdef"
CONNECTIONS = 8
SENTENCE = "The quick brown fox jumps over the lazy dog. "
PROMPT = SENTENCE * ((int(os.environ.get("BENCH_BODY_BYTES", "2000")) - 155) // 45)


def request_bytes(authority: str, *, stream: bool) -> bytes:
    """Render a chat request with a body of 2 KB, or of about ``BENCH_BODY_BYTES``."""
    asked: dict[str, object] = {"model": "bench", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 200}
    body = json.dumps(asked | {"stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {authority}\r\nAccept: application/json\r\n"
    head += f"Content-Type: application/json\r\nUser-Agent: bench/1\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Client(asyncio.Protocol):
    """One connection; ``ask`` sends the request and gives a future for the end of its answer."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.pieces = 0
        self.events = 0
        self.done: asyncio.Future[None] | None = None
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(exc or ConnectionError("closed before the answer ended"))

    def ask(self) -> asyncio.Future[None]:
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(self.payload)
        return self.done

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.pieces += 1
        self.events += data.count(b"data: ")

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        assert self.done is not None
        if status == 200:
            self.done.set_result(None)
        else:
            self.done.set_exception(RuntimeError(f"status {status}"))


async def connect(url: str, *, stream: bool) -> Client:
    """Open one connection."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    payload = request_bytes(parts.netloc, stream=stream)
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(payload), parts.hostname, parts.port)
    return client


async def plain(count: int, url: str) -> dict[str, float]:
    """Send ``count`` requests over a few connections."""
    clients = [await connect(url, stream=False) for _ in range(CONNECTIONS)]

    async def work(client: Client) -> None:
        for _ in range(count // CONNECTIONS):
            await client.ask()

    await asyncio.gather(*map(work, clients))
    return {"requests": count // CONNECTIONS * CONNECTIONS}


async def stream(count: int, url: str) -> dict[str, float]:
    """Hold ``count`` streams at once."""
    clients = [await connect(url, stream=True) for _ in range(count)]
    await asyncio.gather(*[client.ask() for client in clients])
    pieces, events = (sum(getattr(client, name) for client in clients) for name in ("pieces", "events"))
    return {"requests": count, "pieces": pieces, "events": events}


async def latency(count: int, *urls: str) -> dict[str, float]:
    """Ask each url in turn; what disturbs the machine then disturbs both alike."""
    clients = [await connect(url, stream=False) for url in urls]
    times: list[list[float]] = [[] for _ in urls]
    for _ in range(count):
        for client, taken in zip(clients, times, strict=True):
            began = time.perf_counter()
            await client.ask()
            taken.append(time.perf_counter() - began)
    found = {}
    for i, taken in enumerate(times):
        taken.sort()
        found[f"p50_{i}"] = taken[len(taken) // 2]
        found[f"p99_{i}"] = taken[len(taken) * 99 // 100]
    return found


def main(mode: str, count: str, *urls: str) -> None:
    """Do as the module's docstring says."""
    modes = {"plain": plain, "stream": stream, "latency": latency}
    print(json.dumps(asyncio.run(modes[mode](int(count), *urls))))  # type: ignore[operator]


if __name__ == "__main__":
    main(*sys.argv[1:])
