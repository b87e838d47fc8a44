"""Which batches may put rows into the scheduler; what becomes of a row; when a batch will be done."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidegate.jobs.messages import Result
from tidegate.jobs.planning import GROUP, MOST, PLACE_BYTES, PROBE, SMALL, WINDOW, Lane, Window, places_of, plan
from tidegate.jobs.rates import Rate
from tidegate.jobs.retry import RetryPolicy
from tidegate.stores import BatchWork, Bury, Finish, GiveBack, LeasedRow, Retry, RowState, Verdict


def work(name: str, tenant: str = "t", rows: int = 1000) -> BatchWork:
    return BatchWork(
        batch_id=name,
        tenant=tenant,
        band="p2",
        endpoint="/v1/chat/completions",
        input_file_id="f",
        created_at_utc=0,
        expires_at_utc=0,
        fresh=rows,
        due=0,
        leased=0,
        next_due_at_utc=None,
    )


def planned(
    batches: list[BatchWork],
    *,
    pools: dict[str, str] | None = None,
    waiting: dict[Lane, int] | None = None,
    windows: dict[Lane, Window] | None = None,
    weights: dict[str, float] | None = None,
    awaited: dict[str, int] | None = None,
    now: float = 0.0,
) -> dict[str, int]:
    lanes = {b.batch_id: (b.tenant, (pools or {}).get(b.batch_id, "m")) for b in batches}
    left = {b.batch_id: b.fresh for b in batches}
    found = plan(
        batches,
        lanes=lanes,
        waiting=waiting or {},
        windows=windows or {},
        left=left,
        weights=weights or {},
        awaited=awaited or {},
        now=now,
    )
    return dict(found)


def test_the_earliest_end_fills_the_window_and_leaves_the_rest() -> None:
    assert planned([work("a"), work("b")], waiting={("t", "m"): WINDOW - GROUP}) == {"a": GROUP}
    assert planned([work("a", rows=5), work("b")]) == {"a": 5, "b": GROUP}
    assert planned([work("a"), work("b")], waiting={("t", "m"): WINDOW}) == {}


def test_lanes_do_not_hold_each_other_up() -> None:
    batches = [work("a"), work("b", "u"), work("c")]
    full: dict[Lane, int] = {("t", "m"): WINDOW}
    assert planned(batches, pools={"c": "other"}, waiting=full) == {"b": GROUP, "c": GROUP}
    resting = {("t", "m"): Window(rests_until=5.0)}
    assert planned(batches, windows=resting, now=4.0) == {"b": GROUP}
    assert set(planned(batches, windows=resting, now=5.0)) == {"a", "b", "c"}


def test_a_batch_whose_pool_is_unknown_sends_a_few_rows_ahead() -> None:
    assert planned([work("a"), work("b")], pools={"b": "b"}) == {"a": GROUP, "b": PROBE}


def test_few_free_places_wait_until_there_are_more() -> None:
    assert planned([work("a")], waiting={("t", "m"): WINDOW - 3}) == {}
    assert planned([work("a", rows=3)], waiting={("t", "m"): WINDOW - 3}) == {"a": 3}


def test_all_lanes_together_are_bounded() -> None:
    tenants = [work(f"b{number}", f"t{number}") for number in range(100)]
    assert sum(planned(tenants).values()) == MOST


def test_large_rows_take_more_room() -> None:
    assert places_of(0) == places_of(PLACE_BYTES) == 1
    assert places_of(PLACE_BYTES + 1) == 2
    assert planned([work("a")], weights={"a": 16.0}) == {"a": WINDOW // 16}
    assert planned([work("a")], weights={"a": 16.0}, waiting={("t", "m"): WINDOW - 16}) == {}
    assert planned([work("a")], weights={"a": 500.0}) == {"a": 1}  # one that is larger than the window
    assert planned([work("a")], weights={"a": 500.0}, waiting={("t", "m"): 500}) == {}


def test_large_rows_of_many_tenants_are_bounded_together() -> None:
    tenants = [work(f"b{number}", f"t{number}") for number in range(100)]
    found = planned(tenants, weights=dict.fromkeys((batch.batch_id for batch in tenants), 100.0))
    assert MOST - 100 < sum(found.values()) * 100 < MOST + 100  # the last one may stand out


def test_a_batch_that_somebody_waits_for_gets_rows_though_others_fill_the_window() -> None:
    full: dict[Lane, int] = {("t", "m"): WINDOW}
    assert planned([work("a"), work("b")], waiting=full, awaited={"b": 8}) == {"b": 8}
    assert planned([work("a"), work("b", rows=3)], waiting=full, awaited={"b": 8}) == {"b": 3}
    half: dict[Lane, int] = {("t", "m"): WINDOW - 40}
    assert planned([work("a"), work("b")], waiting=half, awaited={"b": 8}) == {"b": 8, "a": 32}
    assert planned([work("a"), work("b")], waiting=full, awaited={"b": 8}, weights={"b": 1000.0}) == {"b": 1}
    resting = {("t", "m"): Window(rests_until=5.0)}
    assert planned([work("b")], windows=resting, awaited={"b": 8}) == {}


def test_a_lane_that_was_refused_comes_back_small_and_doubles() -> None:
    window = Window()
    window.refused(10.0, 2.0)
    assert (window.size, window.rests_until) == (SMALL, 12.0)
    assert planned([work("a")], windows={("t", "m"): window}, now=12.0) == {"a": SMALL}
    for _ in range(20):
        window.seated()
    assert window.size == WINDOW


ROW = LeasedRow("b", 1, 1, "a", 0, 1, attempts=0, returns=0)


def verdict(attempts: int = 0, returns: int = 0, **end: Any) -> Verdict:
    row = LeasedRow("b", 1, 1, "a", 0, 1, attempts=attempts, returns=returns)
    result = Result(row=row, **end)
    return RetryPolicy(max_attempts=3).verdict(result, 1000.0, random.Random(1))


@pytest.mark.parametrize("status", [200, 201])
def test_an_answer_completes(status: int) -> None:
    found = verdict(status=status, body=b"{}")
    assert isinstance(found, Finish)
    assert found.state is RowState.COMPLETED


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_an_error_of_the_request_is_final(status: int) -> None:
    found = verdict(status=status, body=b"{}")
    assert isinstance(found, Finish)
    assert found.state is RowState.FAILED


@pytest.mark.parametrize("end", [{"status": 429}, {"status": 503}, {"error": "no connection"}])
def test_what_is_nobodys_fault_uses_no_attempt_however_often(end: dict[str, Any]) -> None:
    for returns in (0, 5, 1000):
        assert isinstance(verdict(attempts=2, returns=returns, **end), GiveBack)


@pytest.mark.parametrize("end", [{"status": 500}, {"status": 502}, {"status": 408}, {"broken": True, "error": "e"}])
def test_failures_are_tried_again_up_to_the_last_attempt(end: dict[str, Any]) -> None:
    assert isinstance(verdict(attempts=0, **end), Retry)
    assert isinstance(verdict(attempts=1, **end), Retry)
    assert isinstance(verdict(attempts=2, **end), Bury)


def test_waits_double_up_to_a_bound_and_honour_what_is_asked() -> None:
    policy, chance = RetryPolicy(), random.Random(2)
    for times, low in ((0, 1.0), (1, 2.0), (4, 16.0), (6, 60.0), (500, 60.0)):
        assert low <= policy.wait_s(times, None, chance) <= 1.5 * low
    assert 100.0 <= policy.wait_s(0, 100.0, chance) <= 150.0
    assert policy.wait_s(0, 1e9, chance) <= 1.5 * 3600


def test_a_row_that_meets_429_for_50_seconds_is_tried_10_times_at_most() -> None:
    for seed in range(50):
        policy, chance, at = RetryPolicy(), random.Random(seed), 0.0
        tries = 0
        while at < 50.0:
            at += policy.wait_s(tries, None, chance)
            tries += 1
        assert tries <= 10


def test_the_expected_end_follows_the_present_rate() -> None:
    rate = Rate(100.0)
    assert rate.left_s(10, 101.0) is None
    for number in range(100):
        rate.ended(100.0 + number / 10)
    assert rate.left_s(50, 110.0) == pytest.approx(5.0, rel=0.1)
    assert rate.left_s(50, 500.0) is None
