"""What the benchmark of the event loop's turns tells of them."""

from __future__ import annotations

import asyncio
import gc
import time

from benchmarks.turns import Ready, Turns


def _burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _told(*calls: tuple[int, float, float]) -> tuple[Turns, int]:
    """Run turns of so many callbacks, which burn and sleep so many seconds each."""
    ready = Ready()
    turns = Turns(4.0, ready)

    def call(burnt_s: float, slept_s: float) -> None:
        _burn(burnt_s)
        time.sleep(slept_s)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        turns.start()
        for count, burnt_s, slept_s in calls:
            for _ in range(count):
                loop.call_soon(call, burnt_s, slept_s)
            await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)
        gc.collect(1)
        turns.stop()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ready)) as runner:
        runner.run(story())
    return turns, len(turns.late)


def test_a_turn_of_many_short_callbacks_is_as_late_as_one_long_callback() -> None:
    turns, _ = _told((30, 0.001, 0.0), (1, 0.03, 0.0))
    told = turns.told()
    many, one = sorted(told["worst"], key=lambda turn: -turn["callbacks"])[:2]
    assert many["callbacks"] >= 30
    assert min(many["cpu_ms"], one["cpu_ms"]) >= 30
    assert "call" in one["longest"]
    assert told["own"] >= 2
    assert told["long"]["_told.<locals>.call"] == 1, "of single callbacks only the long one is told"
    assert told["collected"][1][0] >= 1


def test_a_turn_that_was_blocked_is_late_by_nothing_of_its_own() -> None:
    turns, late = _told((1, 0.0, 0.03))
    (worst, *_) = turns.told()["worst"]
    assert late >= 1
    assert worst["wall_ms"] >= 30
    assert worst["wall_ms"] - worst["cpu_ms"] - worst["waited_ms"] > 20
