"""The rule between bands: what it promises, and that its quick form is the same rule."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from tidegate.core.between import Between, QuickBetween
from tidegate.core.model import Turn

FLOORS = [Fraction(0), Fraction(1, 20), Fraction(1, 20)]
FREE: list[str | None] = [None, None, None]


def between(cap: Fraction = Fraction(15, 100)) -> QuickBetween:
    return QuickBetween(FLOORS, cap)


def test_highest_band_takes_its_turn_without_credit() -> None:
    assert between().decide([100.0, 500.0, None], FREE) == (0, Turn.TURN)


def test_nothing_runnable_chooses_nothing() -> None:
    assert between().decide([None, None, None], FREE) is None
    assert between().decide([None] * 3, FREE, None, [0, 1, 2]) is None
    assert between().decide([1.0, None, None], ["ceiling", None, None]) is None


def test_equal_claims_go_to_the_higher_band() -> None:
    rule = between(Fraction(1))
    for _ in range(10):
        assert rule.decide([7.0, 7.0, 7.0], FREE) != (1, Turn.OVERTAKE)


@pytest.mark.parametrize("claim", [[9.0, 9.0, 9.0], [1.0, 2.0, 900.0], [1.0, 900.0, 2.0]])
def test_floors_hold_in_every_window_of_a_hundred(claim: list[float | None]) -> None:
    rule = between()
    log = [rule.decide(claim, FREE) for _ in range(2000)]
    for start in range(len(log) - 100):
        window = [step[0] for step in log[start : start + 100] if step is not None]
        assert window.count(1) >= 5
        assert window.count(2) >= 5


def test_overtakes_stay_within_the_cap() -> None:
    rule = between()
    log = [rule.decide([1.0, 2.0, 900.0], FREE) for _ in range(2000)]
    passed = [step for step in log if step is not None and step[0] > 0]
    assert len(passed) <= 0.15 * 2000 + 1


def test_an_overtake_passes_a_reserve_and_a_floor_passes_a_ceiling() -> None:
    rule = QuickBetween([Fraction(0), Fraction(0)], Fraction(1, 2))
    held: list[str | None] = [None, "reserve"]
    steps = [rule.decide([1.0, 9.0], held) for _ in range(4)]
    assert (1, Turn.OVERTAKE) in steps
    held = [None, "ceiling"]
    assert all(rule.decide([1.0, 9.0], held) == (0, Turn.TURN) for _ in range(9))
    floored = QuickBetween([Fraction(0), Fraction(1, 4)], Fraction(1, 4))
    assert (1, Turn.FLOOR) in [floored.decide([9.0, 1.0], held) for _ in range(4)]


def test_nothing_is_hoarded_behind_a_gate() -> None:
    rule = between()
    for _ in range(500):
        rule.decide([1.0, 1.0, None], FREE, None, [2])
    log = [rule.decide([1.0, 1.0, 1.0], FREE) for _ in range(20)]
    assert sum(step == (2, Turn.FLOOR) for step in log) <= 2


def test_a_wanted_band_takes_the_turn() -> None:
    assert between().decide([0.0, 0.0, 0.0], FREE, 2) == (2, Turn.TURN)


@pytest.mark.parametrize("seed", range(8))
def test_decide_is_choose_and_commit(seed: int) -> None:
    rng = random.Random(seed)
    bands = rng.randint(1, 5)
    floors = [Fraction(rng.choice([0, 0, 1]), rng.randint(bands + 1, 25)) for _ in range(bands)]
    cap = min(Fraction(1), sum(floors, Fraction(0)) + Fraction(rng.randint(0, 3), 10))
    quick, plain = QuickBetween(floors, cap), Between(floors, cap)
    for _ in range(3000):
        claim = [rng.choice([None, 1.0, 2.0, 3.0]) for _ in range(bands)]
        gated = [rng.random() < 0.1 for _ in range(bands)]
        held = [rng.choice([None, None, "reserve", "ceiling"]) for _ in range(bands)]
        chosen = plain.choose(claim, gated, held)
        if chosen is not None:
            plain.commit(*chosen, claim, gated, held)
        shut = [band for band in range(bands) if gated[band] and claim[band] is not None]
        bids = [None if gated[band] else claim[band] for band in range(bands)]
        assert quick.decide(bids, held, None, shut) == chosen
        assert quick.credit == plain.credit
        assert quick.gap == [gap if period else 0 for gap, period in zip(plain.gap, plain.period, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_a_band_alone_is_settled_as_any(seed: int) -> None:
    rng = random.Random(seed)
    floors = [Fraction(rng.choice([0, 1]), rng.randint(3, 9)) for _ in range(2)]
    quick, plain = QuickBetween(floors, sum(floors, Fraction(0))), QuickBetween(floors, sum(floors, Fraction(0)))
    for _ in range(500):
        band = rng.randrange(2)
        if rng.random() < 0.7:
            assert plain.settle(band, -1, plain.others[band]) == (band, quick.alone(band))
        else:
            assert quick.settle(0, band, 0) == plain.settle(0, band, 0)
        assert (quick.gap, quick.credit) == (plain.gap, plain.credit)
