"""The pool: reuse, the one retry, connecting. Fake wire, virtual time."""

from __future__ import annotations

import asyncio
import errno

import pytest

from conformance.pool_stage import OK, _nothing, begin, gone, served, streaming, upstream_of
from tidegate.backends import BackendError, Broken, Overloaded, Response, TimedOut, Unavailable, Upstream
from tidegate.testing.wire import Wire, WireLoop, run_wire, settle

# Reuse


def test_sequential_requests_share_one_connection() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        for _ in range(20):
            await served(loop, upstream)
        counters = upstream.counters
        assert (counters.connects, counters.reuses, counters.retries) == (1, 19, 0)
        task = await begin(upstream)
        loop.wires[0].deliver(OK)
        assert (await task).reused
        assert (upstream.open, upstream.idle, len(loop.wires)) == (1, 1, 1)

    run_wire(story)


@pytest.mark.parametrize(("length", "writes"), [(0, 1), (2, 1), (65_536, 1), (65_537, 1), (262_144, 1), (262_145, 2)])
def test_a_head_and_what_fits_of_its_body_are_written_at_once(length: int, writes: int) -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        await served(loop, upstream)
        wire = loop.wires[0]
        before, written = len(wire.sent), wire.writes
        body = b"x" * length
        task = await begin(upstream, body)
        assert wire.writes - written == writes
        assert wire.sent[before:].partition(b"\r\n\r\n")[2] == body
        wire.deliver(OK)
        await task

    run_wire(story)


def test_requests_in_flight_together_have_a_connection_each_and_the_surplus_is_closed() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(max_idle=3)
        tasks = [await begin(upstream) for _ in range(5)]
        assert (upstream.open, upstream.idle) == (5, 0)
        for wire in loop.wires:
            wire.deliver(OK)
        assert [await (await task).read_all(10) for task in tasks] == [b"ok"] * 5
        await settle()
        assert (upstream.open, upstream.idle) == (3, 3)

    run_wire(story)


def test_the_newest_idle_connection_is_used_and_the_oldest_run_out() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(idle_timeout_s=4.0)
        tasks = [await begin(upstream) for _ in range(2)]
        for wire in loop.wires:
            wire.deliver(OK)
        for task in tasks:
            await task
        await asyncio.sleep(3.0)
        await served(loop, upstream)  # on the second
        await asyncio.sleep(1.5)
        assert [wire.ended for wire in loop.wires] == [True, False]
        await asyncio.sleep(3.0)
        assert [wire.ended for wire in loop.wires] == [True, True]
        assert (upstream.open, upstream.idle) == (0, 0)

    run_wire(story)


@pytest.mark.parametrize("event", ["end", "reset", "noise"])
def test_an_idle_connection_that_ends_or_speaks_is_forgotten(event: str) -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        wire = await served(loop, upstream)
        if event == "noise":
            wire.deliver(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        else:
            getattr(wire, event)()
        await settle()
        assert (upstream.open, upstream.idle) == (0, 0)
        await served(loop, upstream)
        assert len(loop.wires) == 2
        assert upstream.counters.retries == 0
        assert (upstream.open, upstream.idle) == (1, 1)

    run_wire(story)


def test_a_connection_that_just_ended_is_not_used_before_its_loss_is_told() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        wire = await served(loop, upstream)
        task = asyncio.ensure_future(upstream.request(b"POST", b"/v1/x"))
        wire.end()  # the request runs before the loop tells of the loss
        await settle()
        loop.wires[1].deliver(OK)
        await task
        assert upstream.counters.reuses == 0

    run_wire(story)


# The one retry


@pytest.mark.parametrize("how", ["end", "reset"])
def test_a_pooled_connection_that_dies_before_the_first_byte_is_retried_on_a_new_one(how: str) -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        old = await served(loop, upstream)
        task = await begin(upstream, b"again")
        getattr(old, how)()
        await settle()
        assert loop.wires[1].sent.endswith(b"\r\n\r\nagain")
        loop.wires[1].deliver(OK)
        response = await task
        assert await response.read() == b"ok"
        assert not response.reused
        assert upstream.counters.retries == 1

    run_wire(story)


@pytest.mark.parametrize("how", ["end", "reset", "abort", "answer"])
def test_what_was_sent_at_once_goes_only_where_a_connection_is_kept_and_is_repeated_as_any_other(how: str) -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        assert upstream.send(b"POST", b"/v1/x", (), b"first") is None
        assert not loop.wires
        old = await served(loop, upstream)
        with pytest.raises(ValueError, match="header values"):
            upstream.send(b"POST", b"/v1/x", [(b"a", b"\n")], b"broken")
        assert upstream.idle == 1
        response = upstream.send(b"POST", b"/v1/x", (), b"again")
        assert response is not None
        assert not response.over
        assert old.sent.endswith(b"\r\n\r\nagain")
        news, sent = response.news(), list[Response]()
        if how == "answer":
            old.deliver(OK)
        else:
            getattr(response if how == "abort" else old, how)()
        await news
        assert response.status == (200 if how == "answer" else 0)
        head = asyncio.ensure_future(upstream.head(response, b"POST", b"/v1/x", (), b"again", sent=sent.append))
        await settle()
        if how == "answer":
            assert await head is response
        elif how == "abort":
            with pytest.raises(Broken):
                await head
        else:
            assert loop.wires[1].sent.endswith(b"\r\n\r\nagain")
            loop.wires[1].deliver(OK)
            assert [await head] == sent
        assert upstream.counters.retries == len(sent) == (how in {"end", "reset"})

    run_wire(story)


def test_the_retry_takes_a_new_connection_though_others_are_idle() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        tasks = [await begin(upstream) for _ in range(2)]
        for wire in loop.wires:
            wire.deliver(OK)
        for task in tasks:
            await task
        task = await begin(upstream)
        loop.wires[1].reset()
        await settle()
        assert len(loop.wires) == 3
        loop.wires[2].deliver(OK)
        await task

    run_wire(story)


def test_there_is_no_second_retry() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        old = await served(loop, upstream)
        task = await begin(upstream)
        old.end()
        await settle()
        loop.wires[1].end()
        with pytest.raises(Unavailable, match="gpu-a") as caught:
            await task
        assert caught.value.sent
        assert len(loop.wires) == 2
        assert await gone(upstream)

    run_wire(story)


def test_there_is_no_retry_after_the_first_byte() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        old = await served(loop, upstream)
        task = await begin(upstream)
        old.deliver(b"H")
        old.end()
        with pytest.raises(Broken):
            await task
        assert len(loop.wires) == 1
        assert upstream.counters.retries == 0

    run_wire(story)


def test_a_retry_that_cannot_connect_still_says_that_the_request_was_sent() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        old = await served(loop, upstream)
        task = await begin(upstream)

        def refuse(wire: Wire) -> None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

        loop.on_connect = refuse
        old.reset()
        with pytest.raises(Unavailable) as caught:
            await task
        assert caught.value.sent

    run_wire(story)


# Connecting


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Unavailable),
        (OSError(errno.EHOSTUNREACH, "no route"), Unavailable),
        (OSError(errno.EMFILE, "too many open files"), Overloaded),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), TimedOut),
    ],
)
def test_a_failed_connect_is_told_by_kind_and_nothing_was_sent(error: OSError, kind: type[BackendError]) -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()

        def refuse(wire: Wire) -> None:
            raise error

        loop.on_connect = refuse
        with pytest.raises(kind, match="gpu-a") as caught:
            await upstream.request(b"POST", b"/v1/x")
        assert not caught.value.sent
        assert await gone(upstream)
        assert upstream.counters.connects == 0

    run_wire(story)


def test_connecting_has_a_time_limit() -> None:
    async def story(loop: WireLoop) -> None:
        loop.connect_s = 5.0
        upstream = upstream_of(connect_timeout_s=2.0)
        with pytest.raises(TimedOut, match="connect_timeout") as caught:
            await upstream.request(b"POST", b"/v1/x")
        assert not caught.value.sent
        assert loop.time() == pytest.approx(2.0)

    run_wire(story)


def test_a_connection_that_ends_as_it_is_made_is_unavailable() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        loop.on_connect = Wire.end
        with pytest.raises(Unavailable) as caught:
            await upstream.request(b"POST", b"/v1/x")
        assert not caught.value.sent
        assert await gone(upstream)

    run_wire(story)


def test_connections_are_bounded_and_those_being_made_count() -> None:
    async def story(loop: WireLoop) -> None:
        loop.connect_s = 1.0
        upstream = upstream_of(max_open=2)
        tasks = [await begin(upstream) for _ in range(2)]
        with pytest.raises(Overloaded, match="max_open") as caught:
            await upstream.request(b"POST", b"/v1/x")
        assert not caught.value.sent
        await asyncio.sleep(1.5)
        loop.wires[0].deliver(OK)
        await tasks[0]
        tasks[1].cancel()
        await settle()
        await served_again(upstream, loop.wires[0])

    async def served_again(upstream: Upstream, wire: Wire) -> None:
        task = await begin(upstream)
        wire.deliver(OK)
        await task

    run_wire(story)


def test_failed_connects_use_up_no_room() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(max_open=1)

        def refuse(wire: Wire) -> None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

        loop.on_connect = refuse
        for _ in range(3):
            with pytest.raises(Unavailable):
                await upstream.request(b"POST", b"/v1/x")
            await settle()
            assert upstream.open == 0
        loop.on_connect = _nothing
        for _ in range(3):
            _, response = await streaming(loop, upstream)
            response.abort()
            await settle()

    run_wire(story)
