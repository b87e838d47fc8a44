"""Whatever an application sends, its client gets one well-framed answer or the end of the connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidegate.gateway import head
from tidegate.gateway.limits import Limits
from tidegate.gateway.protocol import ClientProtocol, sweep
from unit.protocol_stage import FakeTransport, Rig

pytestmark = pytest.mark.anyio

GET = b"GET /a%20b?c=d HTTP/1.1\r\nhost: a\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")
LENGTH = (b"content-length", b"2")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def piece(body: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def answered(request: bytes, *messages: dict[str, Any]) -> tuple[ClientProtocol, FakeTransport, list[str]]:
    """Send these messages; give also what the application was told of those that were not right."""
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            try:
                await send(message)
            except RuntimeError as error:
                told.append(str(error))
                raise

    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(request)
    await asyncio.sleep(0)
    return protocol, transport, told


async def test_an_answer_with_a_length_is_sent_as_it_is_and_the_connection_kept() -> None:
    protocol, transport, _ = await answered(
        GET, start(LENGTH, (b"X-Name", b"v\xe4\tlue")), piece(b"o", more=True), piece(b"k")
    )
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert protocol.cycle is not None
    assert head.split(b"\r\n") == [b"HTTP/1.1 200 OK", b"content-length: 2", b"x-name: v\xe4\tlue"]
    assert (body, transport.closed, protocol.cycle.keep_alive) == (b"ok", False, True)


async def test_an_answer_without_a_length_is_sent_in_chunks() -> None:
    _, transport, _ = await answered(GET, start(), piece(b"x" * 16, more=True), piece(more=True), piece())
    assert transport.written.endswith(b"\r\ntransfer-encoding: chunked\r\n\r\n10\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(("request_bytes", "status"), [(HEAD, 200), (GET, 204), (GET, 304)])
async def test_what_has_no_body_ends_with_its_head(request_bytes: bytes, status: int) -> None:
    headers = [LENGTH] if status == 200 else []
    body = b"ok" if status == 200 else b""
    _, transport, _ = await answered(request_bytes, start(*headers, status=status), piece(body))
    assert transport.written.endswith(b"\r\n\r\n")
    assert b"chunked" not in transport.written
    assert not transport.closed


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\0b", b"\x7f"])
async def test_a_header_value_that_would_break_the_head_is_not_sent(value: bytes) -> None:
    _, transport, told = await answered(GET, start((b"x-a", value)), piece(b"ok"))
    assert "control characters" in told[0]
    assert transport.written.startswith(b"HTTP/1.1 500 ")
    assert value not in transport.written
    assert transport.closed


@pytest.mark.parametrize("name", [b"", b"x:", b"x a", b"x\r\n", b"x\0"])
async def test_nor_is_a_name_that_is_no_token(name: bytes) -> None:
    _, transport, told = await answered(GET, start((name, b"1")), piece(b"ok"))
    assert "token" in told[0]
    assert transport.written.startswith(b"HTTP/1.1 500 ")


async def test_names_are_remembered_within_bounds_and_a_percent_sign_is_only_a_sign() -> None:
    for number in range(2 * head._MOST_PLANS):
        name = b"X-%%b-%d" % number
        _, transport, _ = await answered(GET, start((name, b"100 %"), (b"Content-Length", b"2")), piece(b"ok"))
        assert b"\r\n%b: 100 %%\r\ncontent-length: 2\r\n" % name.lower() in transport.written
        assert len(head._plans) <= head._MOST_PLANS
    before = len(head._plans)
    await answered(GET, start((b"x" * (head._LONGEST_PLAN + 1), b"1")), piece())
    assert len(head._plans) == before


@pytest.mark.parametrize("body", [b"", b"ok"])
@pytest.mark.parametrize(
    "request_bytes", [GET, HEAD, GET.replace(b"1.1", b"1.0"), GET[:-2] + b"connection: close\r\n\r\n"]
)
async def test_a_whole_answer_looks_the_same_when_it_is_sent_at_once(request_bytes: bytes, body: bytes) -> None:
    sent: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        link = scope["state"]["link"]
        sent.extend(link.answer(200, [(b"x-name", b"value")], body) for _ in range(2))

    at_once, one = Rig(app, Limits()).connect()
    at_once.data_received(request_bytes)
    await asyncio.sleep(0)
    length = (b"content-length", b"%d" % len(body))
    _, other, _ = await answered(request_bytes, start((b"x-name", b"value"), length), piece(body))
    assert (one.written, one.closed) == (other.written, other.closed)
    assert sent == [True, False]


async def test_a_whole_answer_waits_for_a_client_that_does_not_keep_up_and_is_not_sent_to_one_that_left() -> None:
    sent: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0)
        sent.append(scope["state"]["link"].answer(200, [], b"ok"))

    for leaves in (False, True):
        protocol, transport = Rig(app, Limits()).connect()
        protocol.data_received(GET)
        if leaves:
            transport.close()
        else:
            protocol.pause_writing()
        await turn()
    assert sent == [False, False]


@pytest.mark.parametrize(
    ("request_bytes", "given"),
    [
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", b"ok"),
        (GET, b""),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nok", None),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nokay", None),
        (b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nok", None),
    ],
    ids=["length", "chunks", "none", "more to come", "too long", "wants leave"],
)
async def test_a_body_that_has_come_as_a_whole_is_given_at_once(request_bytes: bytes, given: bytes | None) -> None:
    found: list[bytes | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["state"]["link"].cycle.body_at_hand(3))
        message = await receive()
        found.append(message.get("body"))

    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(request_bytes)
    await turn()
    assert found[0] == given
    if given is None:
        assert found[1] in (b"ok", b"okay")  # nothing has been taken
    else:
        transport.close()
        await turn()
        assert found[1:] == [None]  # the next that can come is that the client leaves


async def test_an_application_does_not_frame_its_answer_itself() -> None:
    _, transport, told = await answered(GET, start((b"transfer-encoding", b"chunked"), LENGTH), piece(b"ok"))
    assert "transfer-encoding" in told[0]
    assert transport.written.startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize("headers", [[LENGTH, LENGTH], [(b"content-length", b"+2")], [(b"content-length", b"0_2")]])
async def test_an_answer_has_one_length(headers: list[tuple[bytes, bytes]]) -> None:
    _, transport, told = await answered(GET, start(*headers), piece(b"ok"))
    assert "content-length" in told[0]
    assert transport.written.startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize("body", [b"o", b"okay"])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_body_of_another_length_than_announced_ends_the_connection(body: bytes, begun: bool) -> None:
    pieces = [piece(more=True)] if begun else []
    _, transport, told = await answered(GET, start(LENGTH), *pieces, piece(body))
    assert "length" in told[0]
    assert transport.closed
    assert transport.written.startswith(b"HTTP/1.1 200 " if begun else b"HTTP/1.1 500 ")
    assert begun or b"200 OK" not in transport.written


@pytest.mark.parametrize("messages", [(), (start(),), (start(), piece(b"a", more=True))])
async def test_an_answer_that_is_not_completed_ends_the_connection(messages: tuple[dict[str, Any], ...]) -> None:
    _, transport, _ = await answered(GET, *messages)
    assert transport.closed
    assert transport.written.startswith(b"HTTP/1.1 500 " if len(messages) < 2 else b"HTTP/1.1 200 ")
    assert not transport.written.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("messages", [(piece(),), (start(), start()), (start(LENGTH), piece(b"ok"), piece())])
async def test_messages_out_of_order_are_faults_of_the_application(messages: tuple[dict[str, Any], ...]) -> None:
    _, transport, told = await answered(GET, *messages)
    assert told[0].startswith("expected")
    assert transport.written.count(b"HTTP/1.1 ") == 1


async def test_the_application_may_end_the_connection() -> None:
    _, transport, _ = await answered(GET, start(LENGTH, (b"connection", b"Close")), piece(b"ok"))
    assert transport.written.lower().count(b"connection: close") == 1
    assert transport.closed


async def test_the_request_is_told_as_asgi_has_it() -> None:
    seen: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    protocol, _ = Rig(app, Limits()).connect()
    protocol.data_received(GET)
    wanted = {"type": "http", "method": "GET", "http_version": "1.1", "path": "/a b", "raw_path": b"/a%20b"}
    assert seen[0].items() >= {**wanted, "query_string": b"c=d", "scheme": "http"}.items()


async def test_a_connection_is_kept_for_as_long_as_the_limit_says() -> None:
    protocol, transport, _ = await answered(GET, start(LENGTH), piece(b"ok"))
    now = asyncio.get_running_loop().time()
    sweep([protocol], now + Limits().keep_alive_s - 5)
    assert not transport.closed
    sweep([protocol], now + Limits().keep_alive_s + 5)
    assert (transport.closed, transport.aborted) == (True, False)


async def test_one_that_runs_is_not_closed_for_being_idle() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.get_running_loop().create_future()

    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(GET)
    sweep([protocol], asyncio.get_running_loop().time() + 10_000)
    assert not transport.closed
    transport.close()


class Counted(bytes):
    """Bytes that count how often they are measured."""

    measured = 0

    def __len__(self) -> int:
        Counted.measured += 1
        return super().__len__()


async def test_a_body_in_many_pieces_costs_no_more_for_each_of_them() -> None:
    """A read brings 40,000 chunks of a byte: measuring all that wait at each of them would hold the loop for 14 s."""

    got: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            got.append((await receive())["body"])
        await send(start(LENGTH))
        await send(piece(b"ok"))

    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1002\r\n\r\n")
    Counted.measured = 0
    assert protocol.cycle is not None
    for _ in range(1_000):
        protocol.cycle.feed(Counted(b"x"))
        assert not protocol.cycle.full
    assert Counted.measured <= 2_000
    await turn()
    protocol.cycle.feed(b"yy")
    await turn()
    assert got == [b"x" * 1_000, b"yy"]
    assert transport.written.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_answer_ahead_of_the_body_reaches_a_client_that_wants_the_connection_closed(version: bytes) -> None:
    """As Python's ``urllib`` does. Closed beneath what it still sends, the connection would be reset."""
    head = b"POST / HTTP/%b\r\nhost: a\r\nconnection: close\r\ncontent-length: 1000000\r\n\r\n" % version
    protocol, transport, _ = await answered(head, start(LENGTH), piece(b"no"))
    assert transport.written.endswith(b"\r\n\r\nno")
    assert (transport.ended, transport.closed) == (True, False)
    protocol.data_received(b"x" * 1_000_000 + GET)
    assert transport.written.count(b"HTTP/1.1") == 1
    sweep([protocol], asyncio.get_running_loop().time() + 3)
    assert transport.aborted


@pytest.mark.parametrize("begun", [False, True], ids=["before its answer", "in its answer"])
async def test_what_the_server_s_end_cancels_is_refused_as_draining(
    begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send(start())
            await send(piece(b"some", more=True))
        await asyncio.get_running_loop().create_future()

    rig = Rig(app, Limits())
    protocol, transport = rig.connect()
    protocol.data_received(GET.replace(b"\r\n\r\n", b"\r\naccept-language: zh\r\n\r\n"))
    for task in tuple(rig.state.tasks):
        task.cancel()
    await turn()
    assert (transport.written.startswith(b"HTTP/1.1 503 "), transport.closed) == (not begun, True)
    assert ("网关正在关闭".encode() in transport.written) is not begun
    assert (b"connection: close\r\n" in transport.written) is not begun
    assert (not rig.state.tasks, caplog.records) == (True, [])


@pytest.mark.parametrize(
    "part", [GET[:-2], b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{"], ids=["in its head", "in its body"]
)
async def test_a_request_that_the_server_s_end_overtakes_is_refused_once_and_its_answer_not_overtaken(
    part: bytes,
) -> None:
    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        heard.append("disconnect")

    rig = Rig(app, Limits())
    protocol, transport = rig.connect()
    protocol.data_received(part)
    for _ in range(2):  # once when the gateway ceases to accept, once when it ends
        protocol.shutdown()
        protocol.data_received(b"more")
        await turn()
    assert (transport.written.count(b"HTTP/1.1 503 "), transport.ended, transport.closed) == (1, True, False)
    assert b"x-tidegate-reason: draining\r\n" in transport.written
    assert transport.written.count(b"x-request-id: ") == 1
    assert heard == ["disconnect"] * part.startswith(b"POST")
    assert not rig.state.tasks


async def test_a_refusal_ahead_of_the_body_is_not_overtaken_by_the_server_s_end() -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"
    protocol, transport, _ = await answered(head, start(LENGTH), piece(b"no"))
    protocol.shutdown()
    assert (transport.written.count(b"HTTP/1.1"), transport.ended, transport.closed) == (1, True, False)
