"""Clients that offer another protocol, or want a tunnel: read as HTTP/1.1, or refused."""

from __future__ import annotations

import pytest

from tidegate.gateway.limits import Limits
from unit.protocol_stage import GET, POST, Held, Rig, answer, echo, turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: %b\r\nhttp2-settings: AAE\r\n\r\n"
INNER = POST % 4 + b"abcd"


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("protocol_", [b"h2c", b"websocket", b"TLS/1.0"])
@pytest.mark.parametrize("body", [b"abcd", INNER], ids=["plain", "a-request"])
@pytest.mark.parametrize("cut", ["together", "behind the head", "small pieces"])
async def test_an_offer_of_another_protocol_is_ignored_and_its_body_read(
    protocol_: bytes, body: bytes, cut: str
) -> None:
    protocol, transport = Rig(echo, Limits()).connect()
    head = (POST % len(body))[:-2] + OFFER % protocol_
    segments = {"together": [head + body], "behind the head": [head, body], "small pieces": pieces(head + body, 7)}
    for _ in range(2):
        for segment in segments[cut]:
            protocol.data_received(segment)
            await turn()
    answers = transport.written.split(b"HTTP/1.1 ")[1:]
    assert [(given[:3], given.rpartition(b"\r\n")[2]) for given in answers] == [(b"200", b"%d" % len(body))] * 2
    assert not transport.closed
    transport.close()


async def test_an_offer_with_a_chunked_body_is_ignored_and_its_body_read() -> None:
    protocol, transport = Rig(echo, Limits()).connect()
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n" + OFFER % b"h2c")
    protocol.data_received(b"4\r\nabcd\r\n0\r\n\r\n")
    await turn()
    assert transport.written.endswith(b"\r\n\r\n4")
    transport.close()


async def test_an_offer_does_not_lift_the_bound_on_heads() -> None:
    protocol, transport = Rig(echo, Limits(max_head=1000)).connect()
    head = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 900 + b"\r\n"
    for segment in pieces(head + b"z: " + b"y" * 90 + b"\r\n" + OFFER % b"h2c", 300):
        protocol.data_received(segment)
    await turn()
    assert answer(transport)[0] == 431


async def test_an_offer_behind_a_request_in_progress_is_dropped_with_it() -> None:
    app = Held()
    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(GET + GET[:-2] + OFFER % b"h2c" + GET)
    await turn()
    assert (len(app.links), transport.written) == (1, b"")
    transport.close()
    await turn()


async def test_a_tunnel_is_refused_and_nothing_behind_it_read() -> None:
    app = Held()
    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(b"CONNECT x:80 HTTP/1.1\r\nhost: localhost\r\n\r\n" + GET)
    protocol.data_received(GET)
    await turn()
    status, error = answer(transport)
    assert (status, error["code"], transport.ended, app.links) == (400, "bad_request", True, [])
    assert "CONNECT" in error["message"]
