"""Quotas of upstreams as tables of (time, charge), and against a plain count over any window."""

from __future__ import annotations

import random

import pytest

from tidegate.core.quota import Quota, Slot


def test_a_sixth_of_the_minute_passes_in_ten_seconds() -> None:
    quota = Quota(6000)
    for _ in range(5):
        assert quota.open(0.25)
        quota.charge(0.25, 200)
    assert not quota.open(0.25)
    assert quota.open_at(0.3) == 10.25
    assert not quota.open(10.2)
    assert quota.open(10.25)


def test_the_whole_minute_bounds_large_requests() -> None:
    quota = Quota(6000)
    assert quota.open(0.0)
    quota.charge(0.0, 9000)  # larger than the quota: passes once
    assert not quota.open(59.9)
    assert quota.open_at(1.0) == 60.0
    assert quota.level(30.0) == 0.0
    assert quota.open(60.0)
    assert quota.level(60.0) == 1.0


def test_open_at_is_now_when_open() -> None:
    assert Quota(10).open_at(3.0) == 3.0


def test_settling_moves_the_slot_of_the_charge() -> None:
    quota = Quota(600)
    early = quota.charge(0.0, 100)
    assert not quota.open(1.0)
    quota.settle(early, -60)
    assert quota.open(1.0)
    late = quota.charge(1.0, 100)
    quota.open(20.0)
    quota.settle(late, -100)  # out of the ten seconds, still in the minute
    assert (quota.used, quota.recent) == (40, 0)
    quota.open(100.0)
    quota.settle(early, 500)  # past: forgotten
    assert (quota.used, quota.recent) == (0, 0)


def test_charges_of_one_second_share_a_slot_that_ends_with_the_last() -> None:
    quota = Quota(60)
    assert quota.charge(5.1, 5) is quota.charge(5.9, 5)
    assert quota.open_at(6.0) == pytest.approx(15.9)
    assert isinstance(quota.charge(6.0, 1), Slot)


def test_what_the_upstream_counts_beyond_ours_is_used_by_others() -> None:
    quota = Quota(6000)
    quota.charge(0.0, 100)
    quota.correct(1.0, 900, 30.0)
    assert quota.level(1.0) == pytest.approx(900 / 6000)
    quota.correct(2.0, 0, 30.0)
    assert not quota.open(2.0)
    assert quota.open_at(2.0) == 32.0
    assert quota.open(32.0)
    quota.correct(40.0, 6000, 30.0)  # an older page: nothing is loosened
    assert quota.level(40.0) == pytest.approx(5900 / 6000)


def test_open_at_counts_others_and_our_own() -> None:
    quota = Quota(600)
    for second in range(6):
        quota.charge(second * 10.0, 99)
    quota.correct(55.0, 0, 2.0)
    assert quota.open_at(55.0) == 57.0
    quota.charge(55.0, 99)
    assert quota.open_at(55.0) == 60.0  # the sixth of the ten seconds from 50 on


@pytest.mark.parametrize("seed", range(5))
def test_no_window_is_ever_overdrawn_by_more_than_one_request(seed: int) -> None:
    draw = random.Random(seed)
    quota, now, largest = Quota(6000), 0.0, 400
    charged: list[tuple[float, int, Slot]] = []
    for _ in range(5000):
        now += draw.expovariate(8.0)
        if quota.open(now):
            amount = draw.randint(1, largest)
            charged.append((now, amount, quota.charge(now, amount)))
            for window_s, limit in ((60.0, 6000), (10.0, 1000)):
                # Strictly inside: what was charged exactly a window ago has left it.
                assert sum(n for at, n, _ in charged[-200:] if at > now - window_s) < limit + largest
        elif draw.random() < 0.05 and charged:
            at, amount, slot = charged[-1]
            quota.settle(slot, -(amount // 2))
            charged[-1] = (at, amount - amount // 2, slot)
        else:
            assert quota.open_at(now) > now
        assert 0 <= quota.recent <= quota.used
    assert sum(n for at, n, _ in charged if at < 600) > 0.9 * 60_000
    quota.open(now + 61.0)
    assert (quota.used, quota.recent, quota.level(now + 61.0)) == (0, 0, 1.0)
