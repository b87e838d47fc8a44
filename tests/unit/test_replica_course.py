"""The measures by which several gateways are compared with one: they must be able to say no."""

from __future__ import annotations

from tidegate.testing.grant_journal import Noted, least_of, most_passing
from tidegate.testing.replica_course import course, difference, overload


def grants(bands: str, able: str = "012") -> list[Noted]:
    """Grants of these bands, while those in ``able`` had work that could have gone."""
    waited = tuple(str(band) in able for band in range(3))
    return [Noted(float(at), "r0", int(band), "turn", waited) for at, band in enumerate(bands)]


def test_the_window_with_fewest_of_a_band_counts() -> None:
    assert least_of(grants("0020" + "00020" + "0002"), 2, window=4) == (0, 10)
    assert least_of(grants("0020" * 5), 2, window=4) == (1, 17)


def test_windows_in_which_a_band_did_not_always_wait_say_nothing_of_its_floor() -> None:
    assert least_of(grants("0000", able="0") + grants("2000"), 2, window=4) == (1, 1)
    assert least_of(grants("0000", able="0"), 2, window=4) == (4, 0)


def test_only_grants_past_work_that_could_have_gone_pass_it() -> None:
    assert most_passing(grants("2111", able="2"), window=4) == 0
    assert most_passing(grants("2101") + grants("0000"), window=4) == 3
    assert most_passing(grants("21"), window=4) == 2
    assert most_passing([], window=4) == 0


def test_requests_are_compared_with_their_like() -> None:
    found = difference({1: 3.0, 2: 5.0, 3: 7.0, 9: 90.0}, {1: 2.0, 2: 4.0, 3: 2.0, 8: 80.0})
    assert (found.count, found.median, found.by_quantile, found.most) == (3, 1.0, (3.0, 3.0, 3.0), 3.0)
    assert abs(found.mean - 7 / 3) < 1e-9


def test_a_course_is_the_same_for_the_same_seed_and_2_5_times_the_load() -> None:
    plan = course(overload(3), seats=16, hold_s=1.0, seconds=100.0)
    assert plan == course(overload(3), seats=16, hold_s=1.0, seconds=100.0)
    assert plan != course(overload(3), seats=16, hold_s=1.0, seconds=100.0, seed=2)
    assert 2.3 <= len(plan.arrivals) / len(plan.ends) <= 2.7
    assert abs(len(plan.ends) - 1600) < 50
    assert {each.gateway for each in plan.arrivals if each.band == 0} == {0}
    assert {each.gateway for each in plan.arrivals if each.band == 1} == {0, 1, 2}
    assert {each.gateway for each in plan.arrivals if each.band == 2} == {2}
    assert list(plan.arrivals) == sorted(plan.arrivals)
