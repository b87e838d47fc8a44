"""How the upstream client reads answers and writes bodies when either side is slow."""

from __future__ import annotations

import asyncio

import pytest

from conformance.pool_stage import LAST, OK, STREAM, begin, chunk, gone, served, streaming, upstream_of
from tidegate.backends import Broken
from tidegate.testing.wire import Wire, WireLoop, run_wire, settle

# Reading and writing


def test_reading_pauses_when_the_consumer_is_behind_and_goes_on_when_it_has_caught_up() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(high_water=100)
        wire, response = await streaming(loop, upstream)
        seen = []
        wire.deliver(chunk(b"x" * 100))
        seen.append(wire.reading)
        wire.deliver(chunk(b"y"), chunk(b"z"))
        seen.append(wire.reading)
        assert await response.read() == b"x" * 100 + b"yz"
        seen.append(wire.reading)
        assert response.try_read() is None, "it has caught up"
        seen.append(wire.reading)
        wire.deliver(chunk(b"x" * 101) + LAST)  # complete while paused: the connection must not stay deaf
        seen.append(wire.reading)
        assert seen == [True, False, False, True, True]
        assert await response.read_all(1000) == b"x" * 101
        await served(loop, upstream)
        assert len(loop.wires) == 1

    run_wire(story)


def test_an_answer_that_comes_whole_pauses_nobody() -> None:
    """Each pause, and its end, is a system call."""

    async def story(loop: WireLoop) -> None:
        wire, response = await streaming(loop, upstream_of(high_water=100))
        wire.deliver(chunk(b"x" * 101) + LAST)
        assert (wire.pauses, wire.reading) == (0, True)
        assert await response.read_all(1000) == b"x" * 101

    run_wire(story)


def test_catching_up_after_a_write_fault_does_not_touch_the_dying_transport() -> None:
    async def story(loop: WireLoop) -> None:
        wire, response = await streaming(loop, upstream_of(high_water=100))
        wire.deliver(chunk(b"x" * 101))
        wire.reset()  # told to the protocol only in the loop's next turn
        assert response.try_read() == b"x" * 101
        with pytest.raises(Broken):
            await response.read()

    run_wire(story)


def test_what_has_come_is_handed_out_joined_and_without_waiting() -> None:
    async def story(loop: WireLoop) -> None:
        wire, response = await streaming(loop, upstream_of())
        assert response.try_read() is None
        wire.deliver(chunk(b"a"))
        assert response.try_read() == b"a"
        assert response.try_read() is None
        wire.deliver(chunk(b"b"), chunk(b"c") + chunk(b"d"))
        assert response.try_read() == b"bcd"
        at_end = [response.at_end]
        wire.deliver(chunk(b"e") + LAST)
        at_end.append(response.at_end)
        assert response.try_read() == b"e"
        assert [*at_end, response.at_end] == [False, False, True]
        assert response.try_read() == b""
        assert await response.read() == b""

    run_wire(story)


def test_what_came_before_a_fault_is_handed_out_first_and_the_fault_stays() -> None:
    async def story(loop: WireLoop) -> None:
        wire, response = await streaming(loop, upstream_of())
        wire.deliver(chunk(b"a"))
        wire.reset()
        await settle()
        assert await response.read() == b"a"
        for _ in range(2):
            with pytest.raises(Broken, match="reset"):
                await response.read()

    run_wire(story)


def test_a_response_has_one_reader() -> None:
    async def story(loop: WireLoop) -> None:
        wire, response = await streaming(loop, upstream_of())
        first = asyncio.ensure_future(response.read())
        await settle()
        with pytest.raises(RuntimeError, match="one reader"):
            await response.read()
        wire.deliver(chunk(b"a"))
        assert await first == b"a"

    run_wire(story)


def test_read_all_stops_at_its_limit() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        wire, response = await streaming(loop, upstream)
        wire.deliver(chunk(b"x" * 11))
        with pytest.raises(Broken, match="at most 10 bytes"):
            await response.read_all(10)
        assert await gone(upstream)

    run_wire(story)


MIB = bytes(range(256)) * 4096


def take_nothing(wire: Wire) -> None:
    wire.full_after = 0


def test_a_large_body_waits_for_a_slow_reader() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        loop.on_connect = take_nothing
        task = await begin(upstream, MIB)
        wire = loop.wires[0]
        sizes = []
        while not wire.sent.endswith(MIB):
            sizes.append(len(wire.sent))
            wire.empty()
        assert len(sizes) == 3  # the head with the first quarter, and two more before the last
        wire.deliver(OK)
        assert await (await task).read() == b"ok"
        assert wire.sent.count(b"\r\n\r\n") >= 1
        assert bytes(wire.sent[-len(MIB) :]) == MIB
        assert upstream.idle == 1

    run_wire(story)


def test_a_response_before_the_end_of_the_request_counts_and_costs_the_connection() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        loop.on_connect = take_nothing
        task = await begin(upstream, MIB)
        wire = loop.wires[0]
        wire.deliver(OK.replace(b"200 OK", b"413 Content Too Large"))
        response = await task
        assert (response.status, await response.read()) == (413, b"ok")
        assert wire.ended
        wire.empty()
        assert await gone(upstream)

    run_wire(story)


@pytest.mark.parametrize(
    ("method", "target", "header"),
    [
        (b"POST", b"/v1/x", (b"a", b"b\r\nx: y")),
        (b"POST", b"/v1/x", (b"a", b"b\nx: y")),
        (b"POST", b"/v1/x", (b"a", b"b\rx")),
        (b"POST", b"/v1/x", (b"a", b"\0")),
        (b"POST", b"/v1/x", (b"a: b\r\nc", b"d")),
        (b"POST", b"/v1/x", (b"a b", b"c")),
        (b"POST", b"/v1/x", (b"", b"c")),
        (b"POST", b"/v1/x", (b"Content-Length", b"5")),
        (b"POST", b"/v1/x", (b"transfer-encoding", b"chunked")),
        (b"POST", b"/v1/x", (b"Host", b"other")),
        (b"POST", b"/v1/x y", (b"a", b"b")),
        (b"POST", b"/v1/x\r\nx: y", (b"a", b"b")),
        (b"POST", b"", (b"a", b"b")),
        (b"POST /", b"/v1/x", (b"a", b"b")),
        (b"", b"/v1/x", (b"a", b"b")),
    ],
)
def test_a_request_that_would_break_its_framing_is_refused(
    method: bytes, target: bytes, header: tuple[bytes, bytes]
) -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        with pytest.raises(ValueError, match=r"expected|written by"):
            await upstream.request(method, target, [(b"ok", b"ok"), header])
        assert not loop.wires

    run_wire(story)


def test_the_response_tells_when_things_happened() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        task = await begin(upstream)
        await asyncio.sleep(1.0)
        loop.wires[0].deliver(STREAM)
        response = await task
        await asyncio.sleep(1.0)
        loop.wires[0].deliver(chunk(b"x"))
        await asyncio.sleep(1.0)
        assert (response.sent_at, response.head_at, response.last_byte_at) == pytest.approx((0.0, 1.0, 2.0))
        assert response.header(b"transfer-encoding") == b"chunked"
        assert response.header(b"absent") is None
        response.abort()

    run_wire(story)
