"""The automatic reserve against the closed form, and its estimates against noise and bursts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from tidegate.core.guard import BUSY, EVERY_S, Guard, busy_chance, guard_seats
from tidegate.core.measured import Dispersion, Memory, Windows

SEATS, HOLD_S = 64, 5.0


@pytest.mark.parametrize(("load", "reserve"), [(0.1, 3), (0.4, 7), (0.45, 8)])
def test_reserve_of_64_seats(load: float, reserve: int) -> None:
    rate = load * SEATS / HOLD_S
    assert guard_seats(SEATS, rate, 1 / HOLD_S) == (reserve, False)
    assert busy_chance(SEATS, reserve, rate, 1 / HOLD_S) <= BUSY
    assert busy_chance(SEATS, reserve - 1, rate, 1 / HOLD_S) > BUSY


def test_chance_is_that_of_the_chain_written_out() -> None:
    # Two seats, one reserved, one arrival per second, one release per second and seat: states 1, 2, 3, ...
    # pi2 = pi1 / 2, pi(n+1) = pi(n) / 2, so P(2 or more) = (1/2) / (1 - 1/2) / (1 + 1) = 1/2.
    assert busy_chance(2, 1, 1.0, 1.0) == pytest.approx(0.5)
    assert busy_chance(2, 0, 1.0, 1.0) == 1.0
    assert busy_chance(2, 2, 2.0, 1.0) == 1.0


def test_a_quarter_is_the_most_and_says_when_it_is_short() -> None:
    assert guard_seats(SEATS, 9.0, 1 / HOLD_S) == (16, True)
    assert guard_seats(SEATS, 99.0, 1 / HOLD_S) == (16, True)
    assert guard_seats(SEATS, 7.9, 1 / HOLD_S)[0] <= 16


def test_small_pools_and_idle_bands_reserve_nothing() -> None:
    assert guard_seats(7, 1.0, 1.0) == (0, False)
    assert guard_seats(8, 1.0, 1.0)[0] > 0
    assert guard_seats(SEATS, 0.0, 1.0) == (0, False)


def looks(guard: Guard, gaps: Iterator[float], *, until: float, seed: int = 1) -> list[int]:
    """Reserves seen every 100 ms while work of 5 s keeps all seats busy and guarded work arrives after ``gaps``."""
    draw = random.Random(seed)
    seen = []
    arrivals = released = 0
    held_s = 0.0
    coming = next(gaps)
    for step in range(int(until / EVERY_S)):
        now = step * EVERY_S
        while coming <= now:
            arrivals += 1
            coming += next(gaps)
        if draw.random() < SEATS / HOLD_S * EVERY_S / 2:
            released += 2
            held_s += draw.expovariate(1 / HOLD_S) + draw.expovariate(1 / HOLD_S)
        seen.append(guard.note(now, seats=SEATS, arrivals=arrivals, released=released, held_s=held_s))
    return seen


def poisson(rate: float, seed: int) -> Iterator[float]:
    draw = random.Random(seed)
    while True:
        yield draw.expovariate(rate)


@pytest.mark.parametrize("seed", [0, 1, 2, 7])
def test_poisson_noise_does_not_move_the_reserve_beyond_eight(seed: int) -> None:
    """Seed 7 has a first minute that looks bunched."""
    guard = Guard()
    seen = looks(guard, poisson(5.12, seed), until=900, seed=seed)[600:]
    assert max(seen) <= 8
    assert sum(seen) / len(seen) > 5.5
    assert not guard.short
    assert guard.rate == pytest.approx(5.12, rel=0.15)
    assert guard.hold_s == pytest.approx(HOLD_S, rel=0.15)


def bunches(rate: float, cv: float, seed: int) -> Iterator[float]:
    draw = random.Random(seed)
    while True:
        yield draw.gammavariate(1 / cv**2, cv**2 / rate)


@pytest.mark.parametrize("seed", range(2))
def test_arrivals_in_bunches_get_a_larger_reserve(seed: int) -> None:
    seen = looks(Guard(), bunches(5.12, 1.5, seed), until=900, seed=seed)[3000:]
    assert min(seen) >= 10


def test_seconds_that_nobody_looked_at_count_as_equal_ones() -> None:
    looked, seldom = Dispersion(), Dispersion()
    for second in range(400):
        looked.note(float(second), 5 * second + 20 * (second // 4))
        if second % 40 == 0:
            seldom.note(float(second), 10 * second)
    assert looked.peak > 3
    assert seldom.peak == 1.0


def test_a_burst_raises_the_reserve_at_once_and_for_a_minute() -> None:
    guard = Guard()

    def at(now: float, arrivals: int) -> int:
        return guard.note(now, seats=SEATS, arrivals=arrivals, released=100, held_s=500.0)

    at(0.0, 0)
    calm = at(30.0, 30)
    assert at(30.5, 80) > calm
    assert at(80.0, 90) > calm
    assert at(92.0, 92) <= calm + 1


def test_a_minute_with_more_than_usual_is_forgotten_after_it() -> None:
    """Not kept as the estimate just because the minutes that follow do not contradict it."""
    guard = Guard()
    now = held_s = 0.0
    arrivals = released = 0

    def minutes(count: int, rate: int, hold_s: float) -> None:
        nonlocal now, arrivals, released, held_s
        for _ in range(60 * count):
            now += 1.0
            arrivals += rate
            released += 12
            held_s += 12 * hold_s
            guard.note(now, seats=SEATS, arrivals=arrivals, released=released, held_s=held_s)

    minutes(20, 5, 5)
    usual = guard.rate, guard.hold_s
    assert usual[0] == pytest.approx(5.1, abs=0.1)
    assert usual[1] == pytest.approx(5.1, abs=0.1)
    minutes(1, 7, 6)
    assert guard.rate > 6.0
    assert guard.hold_s > 5.5
    minutes(2, 5, 5)
    assert guard.rate == pytest.approx(usual[0], rel=0.06)
    assert guard.hold_s == pytest.approx(usual[1], rel=0.04)


def test_an_upper_quantile_is_taken_as_the_memory_fills() -> None:
    memory = Memory()
    memory.note(0.0, 0, 0, 0.0)
    memory.note(60.0, 300, 100, 500.0)
    assert memory.rate == pytest.approx(5.0 + 0.18 * math.sqrt(300) / 60)
    assert memory.hold_s(1.0) == pytest.approx(5.0 * 1.018)
    memory.note(1260.0, 6300, 2100, 10_500.0)
    assert memory.rate == pytest.approx(5.0 + 1.8 * math.sqrt(6000) / 1200)
    assert memory.hold_s(1.0) == pytest.approx(5.0 * (1 + 1.8 / math.sqrt(2000)))


def test_nothing_is_remembered_before_anything_came() -> None:
    memory = Memory()
    memory.note(0.0, 7, 3, 9.0)
    assert memory.rate == 0.0
    assert memory.hold_s(4.0) == 4.0


def test_first_arrivals_count_before_anything_was_released() -> None:
    guard = Guard()
    guard.note(0.0, seats=SEATS, arrivals=0, released=0, held_s=0.0)
    assert guard.note(1.0, seats=SEATS, arrivals=50, released=0, held_s=0.0) > 0


def test_a_rate_that_falls_is_followed_down() -> None:
    windows = Windows()
    for second in range(61):
        windows.note(float(second), 10 * second)
    assert windows.low <= 10 <= windows.high <= 11.5
    for second in range(61, 190):
        windows.note(float(second), 600)
    assert windows.high == 0.0
    assert windows.low == 0.0
