"""Weighted turns: the shares, their smoothness, and that idle bands bank nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tidegate.core.shares import Shares

ALL: list[float | None] = [0.0, 0.0, 0.0]
FREE: list[str | None] = [None, None, None]


def turns(shares: Shares, count: int, claim: list[float | None] = ALL, cost: int = 1) -> list[int]:
    log = []
    for _ in range(count):
        band = shares.wanted(claim, FREE)
        assert band is not None
        shares.charge(band, cost)
        log.append(band)
    return log


def test_eight_two_one_evenly_spread() -> None:
    log = turns(Shares([8, 2, 1]), 1100)
    assert [log.count(band) for band in range(3)] == [800, 200, 100]
    places = [place for place, band in enumerate(log) if band == 2]
    assert max(after - before - 1 for before, after in pairwise(places)) <= 10


@pytest.mark.parametrize("out", ["idle", "held"])
def test_a_band_that_was_away_banks_nothing(out: str) -> None:
    shares = Shares([1, 1])
    for _ in range(50):
        assert shares.wanted([0.0, None if out == "idle" else 0.0], [None, None if out == "idle" else "reserve"]) == 0
        shares.charge(0, 1)
    log = turns(shares, 10, [0.0, 0.0])
    assert log.count(1) == 5
    assert log[:2].count(1) == 1


def test_costly_work_counts_by_its_cost() -> None:
    shares = Shares([1, 1])
    spent = [0, 0]
    for _ in range(300):
        band = shares.wanted([0.0, 0.0], FREE)
        assert band is not None
        cost = 10 if band else 1
        spent[band] += cost
        shares.charge(band, cost)
    assert abs(spent[0] - spent[1]) <= 10


def test_nobody_free_nobody_wanted() -> None:
    assert Shares([1, 1]).wanted([None, 0.0], [None, "ceiling"]) is None
