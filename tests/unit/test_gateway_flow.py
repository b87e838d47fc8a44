"""The small event that stands for ``asyncio.Event``, and the flow control that uses it."""

from __future__ import annotations

import asyncio
from typing import cast

from tidegate.gateway.flow import Bell, Flow


class Wire:
    """Notes whether it is read from."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


def test_whoever_waits_is_woken_even_if_it_is_cleared_at_once() -> None:
    async def story() -> list[bool]:
        bell = Bell()
        waiting = [asyncio.ensure_future(bell.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        bell.set()
        bell.rung = False
        late = asyncio.ensure_future(bell.wait())
        woken = await asyncio.gather(*waiting)
        assert not late.done()
        bell.set()
        return [*woken, await late, await bell.wait(), bell.rung]

    assert asyncio.run(story()) == [True] * 6


def test_a_waiter_that_gives_up_leaves_the_others_waiting() -> None:
    async def story() -> bool:
        bell = Bell()
        one, other = (asyncio.ensure_future(bell.wait()) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.sleep(0)
        assert not other.done()
        bell.set()
        return await other

    assert asyncio.run(story())


def test_a_sender_waits_while_the_client_does_not_keep_up() -> None:
    async def story() -> None:
        flow = Flow(cast(asyncio.Transport, Wire()))
        await flow.drain()
        flow.pause_writing()
        assert flow.write_paused
        sender = asyncio.ensure_future(flow.drain())
        await asyncio.sleep(0)
        assert not sender.done()
        flow.resume_writing()
        await sender
        assert not flow.write_paused

    asyncio.run(story())


def test_reading_is_paused_and_resumed_once() -> None:
    wire = Wire()
    flow = Flow(cast(asyncio.Transport, wire))
    flow.pause_reading()
    flow.pause_reading()
    flow.resume_reading()
    flow.resume_reading()
    assert wire.calls == ["pause", "resume"]
