"""When it storms: one more refused than dispatched is enough, as many are not, and old ones do not count."""

from __future__ import annotations

import pytest

from tidegate.core.storm import Storm


@pytest.mark.parametrize(("refused", "dispatched", "rages"), [(0, 0, False), (1, 0, True), (2, 2, False), (3, 2, True)])
def test_it_storms_as_soon_as_one_more_is_refused_than_dispatched(refused: int, dispatched: int, rages: bool) -> None:
    storm = Storm()
    storm.note(10.0, 0, 100)
    storm.note(10.1, refused, 100 + dispatched)
    assert storm.rages(10.2, 100 + dispatched) is rages


def test_a_storm_is_over_a_second_after_its_last_refusal() -> None:
    storm = Storm()
    storm.note(10.0, 0, 0)
    storm.note(10.1, 5, 4)
    assert storm.rages(10.4, 4)
    assert not storm.rages(10.4, 5)
    assert not storm.rages(12.0, 5)
