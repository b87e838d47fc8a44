"""An upstream client on a loop of wires, with requests under way."""

from __future__ import annotations

import asyncio

from tidegate.backends import Response, Upstream
from tidegate.testing.wire import Wire, WireLoop, settle

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def upstream_of(**settings: float) -> Upstream:
    return Upstream("http://engine:8000", name="gpu-a", **settings)  # type: ignore[arg-type]


def _nothing(wire: Wire) -> None:
    pass


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def begin(upstream: Upstream, body: bytes = b"{}") -> asyncio.Task[Response]:
    """Start a request and let it get as far as it can without the peer."""
    task = asyncio.ensure_future(upstream.request(b"POST", b"/v1/x", (), body))
    await settle()
    return task


async def served(loop: WireLoop, upstream: Upstream) -> Wire:
    """Let one request be answered in full, and give the wire on which it was."""
    task = await begin(upstream)
    wire = loop.wires[-1]
    wire.deliver(OK)
    assert await (await task).read_all(10) == b"ok"
    return wire


async def streaming(loop: WireLoop, upstream: Upstream) -> tuple[Wire, Response]:
    """Give a response whose head has come, and its wire."""
    task = await begin(upstream)
    wire = loop.wires[-1]
    wire.deliver(STREAM)
    return wire, await task


async def gone(upstream: Upstream) -> bool:
    await settle()
    return upstream.open == 0
