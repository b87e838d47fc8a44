"""The pool: reuse, the one retry, time-outs, cancelling and aborting in every state. Fake wire, virtual time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from tidegate.backends import BackendError, Broken, Overloaded, Response, TimedOut, Unavailable, Upstream
from tidegate.testing.wire import Wire, WireLoop, run_wire, settle

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


# Time-outs


def test_the_head_has_a_time_limit_and_a_late_connection_is_closed() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(head_timeout_s=3.0)
        task = await begin(upstream)
        loop.wires[0].deliver(b"HTTP/1.1 200 OK\r\n")
        with pytest.raises(TimedOut, match=r"3\.0 s") as caught:
            await task
        assert caught.value.sent
        assert loop.time() == pytest.approx(3.0)
        assert await gone(upstream)

    run_wire(story)


def test_a_pooled_connection_that_times_out_is_not_retried() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(head_timeout_s=3.0, idle_timeout_s=9.0)
        await served(loop, upstream)
        with pytest.raises(TimedOut):
            await upstream.request(b"POST", b"/v1/x")
        assert len(loop.wires) == 1

    run_wire(story)


def test_silence_is_limited_and_slow_streams_are_not() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(head_timeout_s=3.0, silence_timeout_s=10.0)
        wire, response = await streaming(loop, upstream)
        for _ in range(4):
            await asyncio.sleep(8.0)
            wire.deliver(chunk(b"x"))
            assert await response.read() == b"x"
        with pytest.raises(TimedOut, match=r"10\.0 s"):
            await response.read()
        assert loop.time() == pytest.approx(42.0)
        assert await gone(upstream)

    run_wire(story)


def test_silence_while_we_do_not_read_is_not_the_engines() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(silence_timeout_s=10.0, high_water=100)
        wire, response = await streaming(loop, upstream)
        wire.deliver(chunk(b"x" * 101))
        await asyncio.sleep(100.0)
        assert await response.read() == b"x" * 101
        wire.deliver(LAST)
        assert await response.read() == b""

    run_wire(story)


def timers(loop: WireLoop) -> list[asyncio.TimerHandle]:
    return [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


def test_timers_do_not_outlive_their_connection_or_grow_with_requests() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(idle_timeout_s=100.0)
        for _ in range(10):
            await served(loop, upstream)
        assert len(timers(loop)) == 2  # the pool's and the connection's
        _, response = await streaming(loop, upstream)
        response.abort()
        assert len(timers(loop)) == 1
        task = await begin(upstream)
        loop.wires[-1].reset()
        with pytest.raises(Unavailable):
            await task
        assert len(timers(loop)) == 1
        await upstream.close()
        assert not timers(loop)

    run_wire(story)


@pytest.mark.parametrize(("head", "silence"), [(3.0, 10.0), (10.0, 3.0), (None, 3.0), (3.0, None)])
def test_limits_hold_exactly_for_every_request_of_a_connection(head: float | None, silence: float | None) -> None:
    async def story(loop: WireLoop) -> None:
        settings: dict[str, float] = {"head_timeout_s": head, "silence_timeout_s": silence}  # type: ignore[dict-item]
        for pause in (0.0, 0.7, 2.9):
            upstream = upstream_of(idle_timeout_s=1000.0, **settings)
            for _ in range(3):
                await served(loop, upstream)
                await asyncio.sleep(pause)
            if silence is not None:
                wire, response = await streaming(loop, upstream)
                await asyncio.sleep(silence * 0.6)
                wire.deliver(chunk(b"x"))
                began = loop.time()
                with pytest.raises(TimedOut, match=f"{silence} s"):
                    await response.read_all(100)
                assert loop.time() - began == pytest.approx(silence)
            if head is not None:
                began = loop.time()
                with pytest.raises(TimedOut, match=f"{head} s"):
                    await upstream.request(b"POST", b"/v1/x")
                assert loop.time() - began == pytest.approx(head)
            await upstream.close()

    run_wire(story)


def test_the_limit_on_silence_holds_from_a_head_that_came_late() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(head_timeout_s=10.0, silence_timeout_s=3.0)
        task = await begin(upstream)
        await asyncio.sleep(3.5)
        loop.wires[0].deliver(STREAM)
        response = await task
        with pytest.raises(TimedOut):
            await response.read()
        assert loop.time() == pytest.approx(6.5)

    run_wire(story)


def test_a_head_that_trickles_in_does_not_move_its_limit() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(head_timeout_s=3.0)
        task = await begin(upstream)
        for byte in STREAM[:5]:
            await asyncio.sleep(0.55)
            loop.wires[0].deliver(bytes([byte]))
        with pytest.raises(TimedOut):
            await task
        assert loop.time() == pytest.approx(3.0)

    run_wire(story)


def test_without_a_limit_on_the_head_it_may_take_longer_than_the_longest_silence() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = Upstream("http://engine", head_timeout_s=None, silence_timeout_s=3.0)
        task = await begin(upstream)
        await asyncio.sleep(50.0)
        loop.wires[0].deliver(STREAM + LAST)
        assert await (await task).read() == b""

    run_wire(story)


# Aborting and cancelling


@pytest.mark.parametrize(
    "state", ["connecting", "sent", "in the head", "in the body", "behind", "crossed", "ended", "retrying"]
)
def test_cancelling_at_any_await_closes_the_connection_at_once(state: str) -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        if state == "retrying":
            old = await served(loop, upstream)
        loop.connect_s = 1.0 if state in {"connecting", "retrying"} else 0.0
        task: asyncio.Task[object] = asyncio.ensure_future(use(upstream))
        await settle()
        if state == "retrying":
            old.reset()
            await settle()
        if state == "in the head":
            loop.wires[0].deliver(STREAM[:20])
        if state in {"in the body", "behind", "crossed", "ended"}:
            loop.wires[0].deliver(STREAM)
            await settle()
        if state == "behind":
            loop.wires[0].deliver(chunk(b"x"))  # the reader is woken but has not run yet
        task.cancel()
        if state == "crossed":
            loop.wires[0].deliver(chunk(b"x"))  # the reader is cancelled but has not run yet
        if state == "ended":
            loop.wires[0].end()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(wire.ended for wire in loop.wires)
        assert await gone(upstream)
        await asyncio.sleep(2.0)
        assert (upstream.open, upstream.idle) == (0, 0)

    async def use(upstream: Upstream) -> bytes:
        response = await upstream.request(b"POST", b"/v1/x")
        return await response.read()

    run_wire(story)


STATES: dict[str, Callable[[Wire], None]] = {
    "after the head": _nothing,
    "unread body": lambda wire: wire.deliver(chunk(b"x")),
    "broken": Wire.reset,
    "paused": lambda wire: wire.deliver(chunk(b"x" * 200)),
}


@pytest.mark.parametrize("state", STATES)
def test_abort_closes_at_once_in_every_state_and_twice_is_once(state: str) -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of(high_water=100)
        wire, response = await streaming(loop, upstream)
        STATES[state](wire)
        response.abort()
        assert wire.ended
        response.abort()
        assert await gone(upstream)
        response.abort()
        with pytest.raises(Broken):
            await response.read_all(1000)

    run_wire(story)


def test_abort_after_the_end_leaves_the_connection_and_its_next_request_alone() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        wire, response = await streaming(loop, upstream)
        wire.deliver(chunk(b"x") + LAST)
        response.abort()
        task = await begin(upstream)
        response.abort()
        wire.deliver(OK)
        assert await (await task).read() == b"ok"
        assert await response.read_all(10) == b"x"
        assert len(loop.wires) == 1

    run_wire(story)


def test_abort_wakes_the_reader() -> None:
    async def story(loop: WireLoop) -> None:
        _, response = await streaming(loop, upstream_of())
        reading = asyncio.ensure_future(response.read())
        await settle()
        response.abort()
        with pytest.raises(Broken, match="aborted"):
            await reading

    run_wire(story)


def test_close_ends_what_runs_and_refuses_what_comes() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        _, response = await streaming(loop, upstream)
        waiting = await begin(upstream)
        await upstream.close()
        assert upstream.open == 0
        with pytest.raises(Broken):
            await response.read()
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable, match="closed"):
            await upstream.request(b"POST", b"/v1/x")
        await upstream.close()

    run_wire(story)


def test_a_connection_made_while_the_client_closes_is_not_used() -> None:
    async def story(loop: WireLoop) -> None:
        loop.connect_s = 1.0
        upstream = upstream_of()
        task = await begin(upstream)
        await upstream.close()
        with pytest.raises(Unavailable):
            await task
        assert not loop.wires[0].sent
        assert await gone(upstream)

    run_wire(story)


def test_close_is_not_mistaken_for_a_race_that_a_retry_repairs() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()
        await served(loop, upstream)
        task = await begin(upstream)
        await upstream.close()
        with pytest.raises(Unavailable):
            await task
        assert len(loop.wires) == 1

    run_wire(story)


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


def test_a_large_body_waits_for_a_slow_reader() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()

        def slow(wire: Wire) -> None:
            wire.full_after = 0

        loop.on_connect = slow
        task = await begin(upstream, MIB)
        wire = loop.wires[0]
        sizes = []
        while not wire.sent.endswith(MIB):
            sizes.append(len(wire.sent))
            wire.empty()
        assert len(sizes) >= 4
        wire.deliver(OK)
        assert await (await task).read() == b"ok"
        assert wire.sent.count(b"\r\n\r\n") >= 1
        assert bytes(wire.sent[-len(MIB) :]) == MIB
        assert upstream.idle == 1

    run_wire(story)


def test_a_response_before_the_end_of_the_request_counts_and_costs_the_connection() -> None:
    async def story(loop: WireLoop) -> None:
        upstream = upstream_of()

        def slow(wire: Wire) -> None:
            wire.full_after = 0

        loop.on_connect = slow
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
