"""Answers to clients of HTTP/1.0: no chunks; what has no length ends with the connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidegate.gateway.limits import Limits
from unit.protocol_stage import App, Rig

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def length(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": message["body"]})


PIECES = (b"data: a\n\n", b"5\r\nhello\r\n", b"data: b\n\n")


async def stream(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": PIECES[0], "more_body": True})
    await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": PIECES[1], "more_body": True})
    passed = scope["state"]["link"].pass_on(PIECES[2], None)
    await send({"type": "http.response.body", "body": b"" if passed else PIECES[2]})


async def whole(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def bare(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def answered(app: App, request: bytes) -> tuple[bytes, list[bytes], bool]:
    """Give head, body pieces joined as sent, and whether the connection was closed."""
    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(request)
    for _ in range(8):
        await asyncio.sleep(0)
    head, _, body = transport.written.partition(b"\r\n\r\n")
    return head.lower(), [body], transport.closed


@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\n"])
async def test_a_stream_has_no_chunks_and_ends_with_the_connection(more: bytes) -> None:
    head, body, closed = await answered(stream, b"GET / HTTP/1.0\r\nhost: a\r\n" + more + b"\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == [b"".join(PIECES)]
    assert closed


async def test_a_stream_to_a_client_of_today_has_chunks() -> None:
    head, body, closed = await answered(stream, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == [b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in PIECES) + b"0\r\n\r\n"]
    assert not closed


async def test_an_answer_with_a_length_is_as_it_is_for_all() -> None:
    head, body, closed = await answered(whole, b"GET / HTTP/1.0\r\nhost: a\r\n\r\n")
    assert b"content-length: 2" in head
    assert body == [b"ok"]
    assert closed


async def test_an_answer_without_a_body() -> None:
    head, body, closed = await answered(bare, b"GET / HTTP/1.0\r\nhost: a\r\n\r\n")
    assert head.startswith(b"http/1.1 204")
    assert body == [b""]
    assert closed


@pytest.mark.parametrize(("version", "leave"), [(b"1.0", b""), (b"1.1", b"HTTP/1.1 100 Continue\r\n\r\n")])
async def test_leave_to_send_a_body_is_given_to_clients_of_today_only(version: bytes, leave: bytes) -> None:
    """RFC 9110 §10.1.1: a server ignores an expectation in a request of HTTP/1.0, which knows no such answers."""
    protocol, transport = Rig(length, Limits()).connect()
    protocol.data_received(b"POST / HTTP/%b\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n" % version)
    await asyncio.sleep(0)
    assert transport.written == leave
    protocol.data_received(b"hi")
    for _ in range(8):
        await asyncio.sleep(0)
    assert transport.written.startswith(leave + b"HTTP/1.1 200")
    assert transport.written.endswith(b"\r\n\r\nhi")
