from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from tidegate.runtime import Clock, SystemClock
from tidegate.testing import BlockingCallError, LoopClock, ManualClock, VirtualLoop, run_virtual


def test_a_day_passes_at_once_and_timers_fire_in_order() -> None:
    async def story() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        def note(name: str) -> None:
            seen.append((name, loop.time()))

        for name, at in (("c", 86_400.0), ("a", 0.001), ("b", 3600.0)):
            loop.call_later(at, note, name)
        await asyncio.sleep(86_400)
        return seen

    began = time.monotonic()
    seen = run_virtual(story())
    assert [name for name, _ in seen] == ["a", "b", "c"]
    assert [at for _, at in seen] == pytest.approx([0.001, 3600.0, 86_400.0])
    assert time.monotonic() - began < 5


def connect() -> None:
    with socket.socket() as plain:
        plain.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    "call",
    [
        lambda: time.sleep(0),
        lambda: socket.create_connection(("127.0.0.1", 9)),
        connect,
        lambda: socket.getaddrinfo("localhost", 80),
    ],
)
def test_blocking_calls_are_errors(call: Callable[[], object]) -> None:
    async def story() -> None:
        call()

    with pytest.raises(BlockingCallError):
        run_virtual(story())
    time.sleep(0)


def test_a_callback_that_computes_too_long_is_an_error() -> None:
    async def story() -> None:
        until = time.thread_time() + 0.06
        while time.thread_time() < until:
            pass
        await asyncio.sleep(1)

    with (
        pytest.raises(BlockingCallError, match="of CPU"),
        asyncio.Runner(loop_factory=lambda: VirtualLoop(turn_limit_s=0.05)) as runner,
    ):
        runner.run(story())


def test_a_story_in_which_nothing_can_happen_any_more_ends_instead_of_hanging() -> None:
    async def story() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(BlockingCallError, match="nothing can happen"):
        run_virtual(story())


def test_the_manual_clock_moves_only_forward_and_only_by_hand() -> None:
    clock = ManualClock(5.0)
    clock.advance(2.5)
    assert clock.now() == 7.5
    assert clock.utc_now().isoformat() == "2026-01-01T00:00:07.500000+00:00"
    with pytest.raises(ValueError, match="-1"):
        clock.advance(-1)


def test_clocks_keep_the_protocol() -> None:
    async def story() -> Clock:
        return LoopClock()

    clocks: list[Clock] = [SystemClock(), ManualClock(), run_virtual(story())]
    for clock in clocks:
        assert clock.now() <= clock.now()
        assert clock.utc_now().tzinfo is not None
