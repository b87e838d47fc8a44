"""Quotas per minute as a table: time, what was asked, whether it is open."""

from __future__ import annotations

import pytest

from tidegate.core.budget import Budget

Step = tuple[float, int, bool]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([(0.0, 5, True), (0.0, 5, True), (0.0, 5, False)], id="ten in a minute"),
        pytest.param([(0.0, 99, True), (1.0, 1, False), (59.9, 1, False), (60.0, 1, True)], id="overdrawn by one"),
        pytest.param([(0.5, 10, True), (59.0, 1, False), (60.0, 10, True), (61.0, 1, False)], id="slots slide"),
        pytest.param([(0.0, 10, True), (500.0, 10, True), (500.0, 1, False)], id="long idle"),
        pytest.param([(30.0, 10, True), (10.0, 1, False)], id="time never runs back"),
    ],
)
def test_open(steps: list[Step]) -> None:
    budget = Budget(10, 0.0)
    for now, amount, is_open in steps:
        assert budget.open(now) is is_open
        if is_open:
            budget.charge(now, amount)


def test_settling_corrects_the_slot_of_the_charge() -> None:
    budget = Budget(10, 0.0)
    budget.charge(5.0, 10)
    budget.settle(5.0, -8)
    assert budget.open(6.0)
    budget.settle(5.0, 50)
    assert not budget.open(64.0)
    assert budget.open(65.0)
    assert budget.used == 0


def test_what_is_too_old_or_from_before_is_forgotten() -> None:
    budget = Budget(10, 5.0)
    budget.settle(4.9, 100)
    assert budget.used == 0
    budget.charge(5.0, 10)
    assert budget.open(65.0)
    budget.settle(5.0, 100)
    assert budget.used == 0


@pytest.mark.parametrize(
    ("charges", "now", "wait_s"),
    [
        ([], 3.0, 0.0),
        ([(0.0, 10)], 3.0, 57.0),
        ([(0.0, 4), (10.0, 6)], 12.0, 48.0),
        ([(0.0, 2), (10.0, 60)], 12.5, 57.5),
    ],
)
def test_when_it_opens_again(charges: list[tuple[float, int]], now: float, wait_s: float) -> None:
    budget = Budget(10, 0.0)
    for at, amount in charges:
        budget.charge(at, amount)
    assert budget.open_in_s(now) == wait_s


def test_a_limit_of_nothing_never_opens() -> None:
    assert Budget(0, 0.0).open_in_s(1.5) == 59.5
