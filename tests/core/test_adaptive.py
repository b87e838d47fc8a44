"""The seat controller step by step."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from tidegate.core import Lease, Release, Ticket, Turn, WorkEstimate
from tidegate.core.adaptive import MOST_SEATS, SeatController
from tidegate.core.policy import P0, P2
from tidegate.core.signals import Reading


def page(at: float, *, running: int = 4, waiting: int | None = 0, preemptions: int | None = 0) -> Reading:
    return Reading("b", at, 0.5, running, waiting, preemptions)


def lease(started: float = 0.0, tokens: int = 136) -> Lease:
    return Lease(1, Ticket("1", "m", 0, "t", WorkEstimate(tokens)), "b", Turn.TURN, 0, 0.0, started)


def test_doubles_until_the_first_trouble_then_creeps() -> None:
    control = SeatController(1)
    assert [control.step(t, page(t), taken=1, limiting=True) for t in (1.0, 2.0, 3.0, 4.0)] == [2, 4, 8, 16]
    assert control.step(5.0, page(5.0, running=10, waiting=9), taken=16, limiting=True) == 11
    assert control.step(6.0, page(6.0), taken=11, limiting=True) == 12


def test_grows_faster_far_from_the_last_trouble() -> None:
    control = SeatController(100)
    control.step(0.0, page(0.0, running=60, waiting=40), taken=100, limiting=True)
    numbers = [control.step(float(t), page(t), taken=1, limiting=True) for t in range(1, 60)]
    steps = [after - before for before, after in pairwise(numbers)]
    assert steps[0] == 1
    assert max(steps) > 4
    assert control.seats > 150


def short_of_memory(kv_free: float | None) -> SeatController:
    """One that was cut to 61 seats when the engine queued, with so much free cache."""
    control = SeatController(100)
    control.step(0.0, Reading("b", 0.0, kv_free, 60, 40, 0), taken=100, limiting=True)
    assert control.seats == 61
    return control


@pytest.mark.parametrize(
    ("kv_free", "running", "seats"),
    [
        (0.53, 40, 61 + 14),  # 0.35 of what fits into 0.5 where 40 take 0.47: 42
        (0.99, 40, 61 + 61),  # never more than twice as many
        (0.04, 40, 61 + 1),
        (0.01, 40, 61 + 1),
        (0.53, None, 61 + 22),
    ],
)
def test_after_a_want_of_memory_it_grows_by_what_memory_has_room_for(
    kv_free: float, running: int | None, seats: int
) -> None:
    """Some large requests have ended: the engine holds more of the others, at once."""
    control = short_of_memory(0.05)
    assert control.step(1.0, Reading("b", 1.0, kv_free, running, 0, 0), taken=61, limiting=True) == seats


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.53), (None, 0.53), (0.05, None)])
def test_without_a_want_of_memory_that_is_known_it_creeps(before: float | None, after: float | None) -> None:
    control = short_of_memory(before)
    assert control.step(1.0, Reading("b", 1.0, after, 40, 0, 0), taken=61, limiting=True) == 62


def test_preemptions_for_want_of_memory_cut_by_a_twentieth() -> None:
    control = SeatController(100)
    control.step(0.0, Reading("b", 0.0, 0.02, 90, 0, 0), taken=100, limiting=True)
    assert control.step(1.0, Reading("b", 1.0, 0.02, 90, 0, 1), taken=100, limiting=True) == 190
    assert control.step(2.0, Reading("b", 2.0, 0.02, 90, 0, 1), taken=190, limiting=False) == 190


def test_stays_while_the_gateway_is_the_limit() -> None:
    control = SeatController(8)
    assert {control.step(float(t), page(t), taken=3, limiting=False) for t in range(100)} == {8}


def test_stays_while_the_queue_is_neither_long_nor_gone() -> None:
    control = SeatController(8)
    control.step(0.0, page(0.0, waiting=5), taken=8, limiting=True)  # smoothed 1.5
    assert control.step(1.0, page(1.0, waiting=1), taken=8, limiting=True) == 8


def test_a_cut_that_has_not_worked_itself_out_is_not_repeated() -> None:
    control = SeatController(1000)
    numbers = [control.step(float(t), page(t, running=256, waiting=700), taken=1000, limiting=True) for t in range(9)]
    assert numbers == [500, 257, 257, 257, 257, 257, 257, 257, 257]


def test_a_queue_beside_full_running_takes_one_seat() -> None:
    control = SeatController(10)
    assert control.step(0.0, page(0.0, running=10, waiting=9), taken=10, limiting=True) == 9


def test_preemptions_and_429_cut_by_a_tenth() -> None:
    control = SeatController(100)
    control.step(0.0, page(0.0, preemptions=5), taken=100, limiting=False)
    assert control.seats == 100  # what was before us is not ours
    assert control.step(1.0, page(1.0, preemptions=6), taken=90, limiting=False) == 90
    control.refused()
    assert control.step(2.0, None, taken=80, limiting=True) == 81
    assert control.step(3.0, page(3.0, preemptions=None), taken=80, limiting=False) == 81


def answers(control: SeatController, release: Release, *, count: int = 8, started: float = 10.0) -> None:
    for _ in range(count):
        control.answered(release, lease(started), P0)


def test_slow_tokens_cut() -> None:
    control = SeatController(100)
    answers(control, Release(tpot_s=0.06), count=7)
    assert control.step(1.0, page(1.0), taken=100, limiting=False) == 100
    answers(control, Release(tpot_s=0.06), count=1)
    assert control.step(2.0, page(2.0), taken=100, limiting=False) == 90
    answers(control, Release(tpot_s=0.06), started=1.5)  # dispatched before the cut: says nothing of it
    assert control.step(3.0, page(3.0), taken=90, limiting=False) == 90


def test_bands_without_targets_cut_nothing() -> None:
    control = SeatController(100)
    control.step(0.0, page(0.0), taken=100, limiting=False)
    free = dataclasses.replace(P2, ttft_slo_s=None, tpot_slo_s=None)
    control.answered(Release(ttft_s=0.1), lease(), free)
    for _ in range(20):
        control.answered(Release(ttft_s=60.0, tpot_s=9.0), lease(), free)
    assert control.step(1.0, page(1.0), taken=100, limiting=False) == 100


@pytest.mark.parametrize(("ttft_s", "seats"), [(0.9, 100), (1.3, 90)])
def test_first_token_may_pass_its_prefill_by_the_target(ttft_s: float, seats: int) -> None:
    """With 0.1 s predicted and a target of 1 s (the engine shows its queue, so the rest is believed harmless)."""
    control = SeatController(100)
    control.step(0.0, page(0.0), taken=100, limiting=False)
    answers(control, Release(ttft_s=0.1), count=1)
    answers(control, Release(ttft_s=ttft_s), count=40)
    assert control.step(1.0, page(1.0), taken=100, limiting=False) == seats


def test_without_a_shown_queue_a_first_token_four_times_late_is_trouble() -> None:
    control = SeatController(100)
    control.step(0.0, page(0.0, waiting=None), taken=100, limiting=False)
    answers(control, Release(ttft_s=0.1), count=1)
    answers(control, Release(ttft_s=0.5), count=30)
    assert control.step(1.0, None, taken=100, limiting=False) == 90


def test_an_answer_without_first_token_time_teaches_nothing() -> None:
    control = SeatController(100)
    answers(control, Release(input_tokens=0, ttft_s=0.0))
    answers(control, Release())
    assert control.step(1.0, None, taken=100, limiting=False) == 100


def test_bounds() -> None:
    assert SeatController(10_000).seats == MOST_SEATS
    control = SeatController(0, least=2, most=3)
    assert control.seats == 2
    assert control.step(0.0, page(0.0), taken=2, limiting=True) == 3
    for second in range(1, 9):
        control.step(float(second), page(second, running=1, waiting=50), taken=3, limiting=True)
    assert control.seats == 2
