"""Time for deadlines that goes on whatever happens to the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidegate.jobs.steady import SteadyClock

DAY_S = 86_400.0


class Clocks:
    """A monotonic clock and a wall clock that can be set."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.set_by = 0.0

    def now(self) -> float:
        return self.passed

    def utc_now(self) -> datetime:
        return datetime.fromtimestamp(1_800_000_000 + self.passed + self.set_by, UTC)


def run(clocks: Clocks, steady: SteadyClock, seconds: float) -> float:
    """Let time pass; return how much of it the steady clock has seen. It must never go backwards."""
    began = before = steady()
    until = clocks.passed + seconds
    while clocks.passed < until:
        clocks.passed += 0.3
        assert steady() >= before
        before = steady()
    return before - began


def test_it_is_the_wall_clock_where_nothing_jumps() -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks)
    assert run(clocks, steady, 3600) == pytest.approx(3600, abs=0.5)
    assert steady() == pytest.approx(clocks.utc_now().timestamp(), abs=0.01)


@pytest.mark.parametrize(("jump_s", "least", "most"), [(DAY_S, 1.0, 1.51), (-3600.0, 0.49, 1.0)])
def test_a_jump_bends_it_and_does_not_move_it(jump_s: float, least: float, most: float) -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks)
    run(clocks, steady, 10)
    clocks.set_by = jump_s
    assert least * 1000 <= run(clocks, steady, 1000) <= most * 1000


@pytest.mark.parametrize("jump_s", [300.0, -300.0])
def test_it_catches_up(jump_s: float) -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks)
    clocks.set_by = jump_s
    run(clocks, steady, 700)
    assert steady() == pytest.approx(clocks.utc_now().timestamp(), abs=0.1)


def test_it_begins_where_it_is_told() -> None:
    clocks = Clocks()
    assert SteadyClock(clocks, start_utc=1_700_000_000.0)() == 1_700_000_000.0


def test_it_goes_on_while_the_reference_cannot_be_read() -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks, reference=lambda: None)
    assert run(clocks, steady, 100) == pytest.approx(100, abs=0.5)
