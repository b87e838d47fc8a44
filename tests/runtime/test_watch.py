"""The collector's policy and the stall monitor."""

from __future__ import annotations

import asyncio
import gc

import pytest

from runtime.stories import POLICY
from tidegate.runtime import GcPolicy, StallMonitor, gc_policy
from tidegate.runtime.gc_policy import CALM, IDLE, PATIENCE_S, PAUSE_S, SHARE, YOUNG, YOUNG_EVERY_S
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock, ManualClock, run_virtual


def test_no_full_collection_comes_by_itself_and_the_next_one_waits_by_the_length_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        clock = ManualClock()
        runs: list[float] = []
        took_s = [0.0, 0.001, 0.04, 0.0]

        def collect(generation: int = 2) -> int:
            if generation < 2:
                return 0
            runs.append(loop.time())
            clock.advance(took_s[len(runs) - 1] if len(runs) <= len(took_s) else 0.0)
            return 0

        monkeypatch.setattr(gc, "collect", collect)
        before = gc.get_threshold()
        policy = GcPolicy(clock)
        policy.start(loop)
        assert gc.get_threshold() == YOUNG
        assert gc.get_freeze_count() > 0
        await asyncio.sleep(400)
        policy.stop()
        assert runs == pytest.approx([0, PAUSE_S, 2 * PAUSE_S, 2 * PAUSE_S + 0.04 * SHARE, 3 * PAUSE_S + 0.04 * SHARE])
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() == 0
        await asyncio.sleep(400)
        assert len(runs) == 5

    run_virtual(story())


def test_a_full_collection_waits_for_a_calm_moment_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        runs: list[float] = []
        monkeypatch.setattr(gc, "collect", lambda: runs.append(loop.time()))
        monkeypatch.setattr(gc_policy, "YOUNG_EVERY_S", PATIENCE_S * 2)  # the young are another test's
        alive, connected = CALM + 1, 0
        policy = GcPolicy(ManualClock(), lambda: alive, lambda: connected)
        policy.start(loop)
        del runs[:]  # the one at the start has nobody to disturb
        await asyncio.sleep(10.5 * PAUSE_S)
        assert runs == []
        alive, connected = 0, (CALM + 1) * IDLE
        await asyncio.sleep(PAUSE_S)
        assert runs == [], "thousands of connections are no calm moment, even without a request"
        alive, connected = CALM, IDLE - 1
        await asyncio.sleep(PAUSE_S)
        assert runs == pytest.approx([12 * PAUSE_S])
        alive = CALM + 1
        await asyncio.sleep(PATIENCE_S + 2 * PAUSE_S)
        assert runs == pytest.approx([12 * PAUSE_S, 13 * PAUSE_S + PATIENCE_S])
        policy.stop()

    run_virtual(story())


def test_the_young_are_looked_at_before_many_have_gathered() -> None:
    """They gather where as many old ones die: those are taken off the count by which a run would come by itself."""

    async def story() -> None:
        before = [[object()] for _ in range(6000)]
        policy = GcPolicy(ManualClock())
        policy.start(asyncio.get_running_loop())
        kept, most = [], 0
        for _ in range(60):
            for _ in range(100):
                before.pop()
                kept.append([object()])
            await asyncio.sleep(YOUNG_EVERY_S)
            most = max(most, len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)))
        policy.stop()
        assert most < 1500

    run_virtual(story())


def test_a_stall_shows_for_ten_seconds() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        clock = ManualClock()

        class Drifting(LoopClock):
            def now(self) -> float:
                return loop.time() + clock.now()

        recorder = Recorder(POLICY)
        monitor = StallMonitor(Drifting(), recorder)
        monitor.start(loop)
        await asyncio.sleep(1)
        assert recorder.loop_stall.read(loop.time()) < 1e-6
        clock.advance(0.3)  # as if a callback had held the loop for that long
        await asyncio.sleep(1)
        assert recorder.loop_stall.read(loop.time()) == pytest.approx(0.3)
        await asyncio.sleep(8)
        assert recorder.loop_stall.read(loop.time()) == pytest.approx(0.3)
        await asyncio.sleep(3)
        assert recorder.loop_stall.read(loop.time()) < 1e-6
        monitor.stop()

    run_virtual(story())
