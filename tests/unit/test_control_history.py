from __future__ import annotations

import pytest

from tidegate.control.history import POINTS, History, shortened


def test_fifteen_minutes_are_kept_and_no_more() -> None:
    history = History()
    for number in range(POINTS + 20):
        history.add({"a": float(number)})
    (values,) = history.series().values()
    assert (len(values), values[0], values[-1], history.number) == (POINTS, 20, POINTS + 19, POINTS + 20)


def test_between_two_points_the_largest_depth_counts() -> None:
    history = History()
    for depth in (3.0, 9.0, 1.0):
        history.note_peaks({"p0.depth": depth})
    assert history.add({"x": 0.5}) == {"p0.depth": 9, "x": 0.5}
    assert history.add({}) == {}
    assert history.series() == {"p0.depth": [9, None], "x": [0.5, None]}


def test_a_series_that_comes_later_has_a_gap_before_and_one_that_is_gone_leaves() -> None:
    history = History()
    history.add({"a": 1.0})
    history.add({"b": 2.0})
    assert history.series() == {"a": [1, None], "b": [None, 2]}
    for _ in range(POINTS):
        history.add({"b": 2.0})
    assert list(history.series()) == ["b"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(None, None), (0.0, 0), (0.123456, 0.123), (12.3456, 12.3), (1234.56, 1235), (-0.5, -0.5), (99.96, 100)],
)
def test_numbers_are_written_with_three_digits(value: float | None, wanted: float | None) -> None:
    assert shortened(value) == wanted
