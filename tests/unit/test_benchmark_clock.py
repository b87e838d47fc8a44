"""The clock of the benchmarks that stands still while others have an engine's core."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from benchmarks._engine_clock import EngineClock, lost_in

from tidegate.testing.engines import EngineServer


def test_the_time_in_which_an_engine_waits_for_a_core_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineServer, "members", lambda _: [os.getpid()])
    clock = EngineClock(EngineServer("vllm", "http://127.0.0.1:9", os.getpid(), Path(os.devnull)))
    clock._at, clock._lost = [10.0, 11.0, 13.0], [2.0, 2.0, 3.0]
    assert clock.between(10.0, 10.5) == 0.5
    assert clock.between(11.0, 13.0) == 1.0
    assert clock.between(11.5, 12.5) == 0.5
    assert clock.between(10.5, 14.0) == 2.5, "after the last look as before the first: plain time"
    assert clock.between(9.0, 9.5) == 0.5
    assert clock.lost() == pytest.approx(1 / 3)


def test_the_core_costs_time_only_while_the_worker_has_nothing_to_do() -> None:
    assert lost_in(1.0, (0.4, 0.3), (0.1, 0.2)) == pytest.approx(0.5)
    assert lost_in(1.0, (0.7, 0.3), (0.1, 0.9)) == pytest.approx(0.3)
    assert lost_in(1.0, (0.0, 0.0), (0.1, 0.9)) == pytest.approx(0.9)
    assert lost_in(1.0, (0.0, 1.5), (0.0, 0.0)) == 1.0, "read a little later than the clock"


def test_it_reads_the_wait_while_it_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not count how long threads wait")
    monkeypatch.setattr(EngineServer, "members", lambda _: [os.getpid()])
    with EngineClock(EngineServer("vllm", "http://127.0.0.1:9", os.getpid(), Path(os.devnull))) as clock:
        deadline = time.monotonic() + 40
        while len(clock._at) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(clock._at) == len(clock._lost) >= 3
    assert 0 <= clock.between(clock._at[0], clock._at[-1]) <= clock._at[-1] - clock._at[0]
