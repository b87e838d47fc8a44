"""The limits on time of the upstream client, and what ends its requests: no connection outlives either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from conformance.pool_stage import LAST, OK, STREAM, _nothing, begin, chunk, gone, served, streaming, upstream_of
from tidegate.backends import Broken, TimedOut, Unavailable, Upstream
from tidegate.testing.wire import Wire, WireLoop, run_wire, settle

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
