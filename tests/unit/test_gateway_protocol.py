"""The bounds of a client connection, with a fake transport: no sockets, no sleeping."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from tidegate.gateway.bare import bare_answer
from tidegate.gateway.limits import Limits
from tidegate.gateway.protocol import sweep
from unit.protocol_stage import GET, POST, Held, Rig, answer, echo, turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_leaving_client_is_told_to_its_request_once() -> None:
    app = Held()
    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(GET)
    await turn()
    transport.close()
    assert (app.left, app.links[0].gone) == (1, True)
    await turn()


@pytest.mark.parametrize("request_bytes", [GET, POST % 3 + b"abc"])
async def test_what_needs_no_wait_is_answered_before_the_loop_turns(request_bytes: bytes) -> None:
    protocol, transport = Rig(echo, Limits()).connect()
    for _ in range(2):
        protocol.data_received(request_bytes)
        assert transport.written.endswith(b"\r\n\r\n%d" % (3 * request_bytes.endswith(b"abc")))
        transport.written = b""
        await turn()


async def test_requests_that_come_at_once_have_one_answer_although_the_first_needs_no_wait() -> None:
    protocol, transport = Rig(echo, Limits()).connect()
    protocol.data_received(GET + GET)
    assert transport.written.count(b"HTTP/1.1 200") == 1
    assert transport.closed


async def test_a_finished_request_hears_nothing_of_a_later_hang_up() -> None:
    called: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["link"].on_gone = lambda: called.append(1)
        await echo(scope, receive, send)

    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(GET)
    await turn()
    assert transport.written.endswith(b"\r\n\r\n0")
    transport.close()
    assert called == []


async def test_a_leaving_client_is_seen_after_a_body_longer_than_the_read_buffer() -> None:
    app = Held()
    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(POST % 200_000 + b"x" * 200_000)
    await turn()
    assert transport.reading
    transport.close()
    assert app.left == 1
    await turn()


async def test_only_a_long_body_with_more_to_come_pauses_its_client() -> None:
    """Each pause, and its end, is a system call."""
    app = Held()
    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(POST % 200_000 + b"x" * 100_000)
    assert (transport.pauses, transport.reading) == (1, False)
    protocol.data_received(b"x" * 100_000)
    assert (transport.pauses, transport.reading) == (1, True)
    other, beside = Rig(app, Limits()).connect()
    other.data_received(POST % 200_000 + b"x" * 200_000)
    assert (beside.pauses, beside.reading) == (0, True)
    for each in (transport, beside):
        each.close()
    await turn()


async def test_what_comes_behind_an_early_answer_does_not_pause_its_client() -> None:
    async def early(scope: Any, receive: Any, send: Any) -> None:
        await turn(1)  # the first piece of the body waits for nobody
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    protocol, transport = Rig(early, Limits()).connect()
    protocol.data_received(POST % 300_000 + b"x" * 100_000)
    assert transport.pauses == 1
    await turn()
    assert transport.written.startswith(b"HTTP/1.1 413")
    protocol.data_received(b"x" * 100_000)
    assert (transport.pauses, transport.reading) == (1, True)
    transport.close()
    await turn()


async def test_pipelined_requests_are_dropped_and_the_connection_ends_with_the_answer() -> None:
    app = Held()
    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(GET + GET + POST % 3 + b"abc")
    protocol.data_received(GET)
    await turn()
    assert len(app.links) == 1
    assert transport.reading
    assert protocol.cycle is not None
    assert protocol.cycle.keep_alive is False
    transport.close()
    await turn()


async def test_requests_one_after_the_other_share_a_connection() -> None:
    protocol, transport = Rig(echo, Limits()).connect()
    for size in (3, 100_000):
        protocol.data_received(POST % size + b"x" * size)
        await turn()
    assert not transport.closed
    assert transport.written.count(b"HTTP/1.1 200") == 2
    assert transport.written.endswith(b"100000")
    transport.close()


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_head_over_the_limit_is_refused(pieces: int) -> None:
    protocol, transport = Rig(echo, Limits(max_head=1000)).connect()
    data = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 2000 + b"\r\n\r\n"
    step = len(data) // pieces + 1
    for start in range(0, len(data), step):
        protocol.data_received(data[start : start + step])
    status, error = answer(transport)
    assert (status, error["code"], transport.ended) == (431, "too_large", True)
    assert "1000 bytes" in error["message"]


async def test_a_body_beside_a_small_head_does_not_count_as_head() -> None:
    protocol, transport = Rig(echo, Limits(max_head=1000)).connect()
    protocol.data_received(POST % 5000 + b"x" * 5000)
    await turn()
    assert transport.written.endswith(b"5000")
    transport.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\rx: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\nx: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n folded: b\r\n\r\n",
    ],
    ids=["tls", "length-and-chunked", "two-lengths", "chunked-not-last", "bare-cr", "bare-lf", "space", "fold"],
)
async def test_ambiguous_requests_are_refused(data: bytes) -> None:
    protocol, transport = Rig(echo, Limits()).connect()
    protocol.data_received(data)
    await turn()
    status, error = answer(transport)
    assert (status, error["type"], transport.ended) == (400, "invalid_request_error", True)


@pytest.mark.parametrize("beside", [b"", b"x" * 2000], ids=["short", "long"])
@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"], ids=["", "expect"])
async def test_nothing_is_written_behind_a_refusal(beside: bytes, expect: bytes, caplog: Any) -> None:
    protocol, transport = Rig(echo, Limits(max_head=1000)).connect()
    protocol.data_received(
        b"POST / HTTP/1.1\r\nhost: a\r\n" + expect + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + beside
    )
    await turn()
    assert (answer(transport)[0], transport.written.count(b"\r\n\r\n"), caplog.records) == (400, 1, [])


async def test_one_connection_too_many_is_told_so() -> None:
    rig = Rig(echo, Limits(max_connections=1))
    _, first = rig.connect()
    _, second = rig.connect()
    assert not first.closed
    status, error = answer(second)
    assert (status, error["code"], second.ended) == (503, "too_many_connections", True)
    first.close()


@pytest.mark.parametrize(
    ("status", "again", "hints"),
    [(400, b"false", 0), (413, b"false", 0), (431, b"false", 0), (408, b"true", 0), (503, b"true", 2)],
)
def test_answers_past_the_application_say_whether_to_come_back(status: int, again: bytes, hints: int) -> None:
    head = bare_answer(status, "code", "words", request_id="r-1").partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert b"x-should-retry: " + again in head
    assert sum(line.startswith(b"retry-after") for line in head) == hints
    assert {b"x-request-id: r-1", b"x-tidegate-band: none", b"x-tidegate-queue-ms: 0"} <= set(head)


async def test_a_head_that_never_ends_is_cut_with_408() -> None:
    rig = Rig(echo, Limits(head_timeout_s=10))
    protocol, transport = rig.connect()
    protocol.data_received(GET[:-2])
    now = protocol.loop.time()
    sweep(rig.state.connections, now + 9)
    assert not transport.closed
    sweep(rig.state.connections, now + 11)
    assert answer(transport)[0] == 408


async def test_each_piece_of_a_body_gives_its_client_time_anew_and_so_does_the_end_of_the_head() -> None:
    rig = Rig(echo, Limits(head_timeout_s=10, body_stall_s=30))
    protocol, transport = rig.connect()
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n")
    protocol.data_received(b"\r\n")
    start = protocol.loop.time()
    assert start + 29 < protocol.deadline < start + 31
    for data, moves in ((b"3\r\nabc\r\n", True), (b"5", False), (b"\r\nabcde\r\n", True)):
        protocol.deadline = start - 1
        protocol.data_received(data)
        assert (protocol.deadline > start) is moves
    protocol.data_received(b"0\r\n\r\n")
    await turn()
    assert transport.written.startswith(b"HTTP/1.1 200")


async def test_a_body_that_stops_is_cut_and_the_request_learns_it() -> None:
    rig = Rig(echo, Limits(body_stall_s=30))
    protocol, transport = rig.connect()
    protocol.data_received(POST % 10 + b"abc")
    await turn()
    now = protocol.loop.time()
    link = protocol.link
    assert link is not None
    link.request_id = "req-known"
    sweep(rig.state.connections, now + 31)
    assert answer(transport)[0] == 408
    assert b"x-request-id: req-known\r\n" in transport.written
    assert (link.gone, link.refused) == (True, 408)
    sweep(rig.state.connections, now + 31 + 3)
    await turn()
    assert transport.aborted
    assert not rig.state.tasks


async def test_an_answer_before_the_end_of_its_request_outlives_what_the_client_still_sends() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["link"].last = True
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    rig = Rig(app, Limits())
    protocol, transport = rig.connect()
    protocol.data_received(POST % 1_000_000)
    await turn()
    assert (transport.ended, transport.closed) == (True, False)
    protocol.data_received(b"x" * 500_000 + GET)
    assert transport.written.count(b"HTTP/1.1") == 1
    sweep(rig.state.connections, protocol.loop.time() + 3)
    assert transport.aborted


async def test_garbage_behind_a_request_does_not_get_into_its_answer() -> None:
    app = Held()
    protocol, transport = Rig(app, Limits()).connect()
    protocol.data_received(GET)
    await turn()
    protocol.data_received(b"\x00\x01 garbage\r\n\r\n")
    protocol.data_received(GET)
    assert (transport.written, transport.closed) == (b"", False)
    assert protocol.cycle is not None
    assert protocol.cycle.keep_alive is False
    transport.close()
    assert app.left == 1
    await turn()


async def test_a_client_that_stops_reading_is_cut() -> None:
    app = Held()
    rig = Rig(app, Limits(write_stall_s=30))
    protocol, transport = rig.connect()
    protocol.data_received(GET)
    await turn()
    protocol.pause_writing()
    now = protocol.loop.time()
    sweep(rig.state.connections, now + 29)
    assert not transport.aborted
    sweep(rig.state.connections, now + 31)
    assert (transport.aborted, app.left) == (True, 1)
    await turn()


async def test_a_client_that_reads_again_is_kept() -> None:
    app = Held()
    rig = Rig(app, Limits(write_stall_s=30))
    protocol, transport = rig.connect()
    protocol.data_received(GET)
    await turn()
    protocol.pause_writing()
    protocol.resume_writing()
    sweep(rig.state.connections, protocol.loop.time() + 3000)
    assert not transport.closed
    transport.close()
    await turn()


async def test_nothing_of_a_request_or_a_connection_is_left_to_the_garbage_collector() -> None:
    rig = Rig(echo, Limits())
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            protocol, transport = rig.connect()
            for _ in range(2):
                protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc")
                await turn()
            assert transport.written.count(b"HTTP/1.1 200") == 2
            protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc")
            await turn()
            transport.close()
            transport.protocol = None  # a real one forgets it when the connection is lost
            await turn()
        del protocol, transport
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [kind.__name__ for kind in map(type, gc.garbage) if kind.__module__.startswith(("tidegate", "uvicorn"))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert ours == []
