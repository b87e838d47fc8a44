"""The engine's page and the ledger of dispatches as one figure."""

from __future__ import annotations

import pytest

from core.capacity_stage import leases, policy
from tidegate.core import BackendSpec, Policy, Release, Requeue, Scheduler, Ticket, WorkEstimate
from tidegate.core.readings import NEVER, Sensor
from tidegate.core.signals import Reading

BANDS = Policy().bands


def sensor(*, kv_tokens: int | None = 10_000, stale_after_s: float = 3.0) -> Sensor:
    return Sensor(BackendSpec("b", 64, stale_after_s=stale_after_s, kv_tokens=kv_tokens), BANDS)


def page(at: float, kv_free: float | None, *, running: int = 1, kv_tokens: int | None = None) -> Reading:
    return Reading("b", at, kv_free, running, 0, 0, kv_tokens)


def test_dispatches_since_the_page_are_added_to_it() -> None:
    both = sensor()
    both.read(page(0.0, 0.5), 1, 0)
    both.dispatched(2000)
    assert both.free(0.5, 4000) == pytest.approx(0.3)
    assert both.free(0.5, 1000) == pytest.approx(0.4)  # most of them are over again
    both.read(page(1.0, 0.35), 1, 0)
    assert both.free(1.0, 4000) == 0.35


def test_what_waits_in_the_engine_stays_reserved_with_its_own_size() -> None:
    both = sensor()
    for tokens in (100, 100, 100, 100, 100, 300, 200, 1000):
        both.dispatched(tokens)
    both.read(Reading("b", 0.0, 0.9, running=5, waiting=3), 8, 2000)
    assert both.free(0.0, 2000) == pytest.approx(0.9 - 0.15)


def test_what_waits_since_before_the_first_page_is_taken_for_average() -> None:
    both = sensor()
    both.read(Reading("b", 0.0, 0.9, running=5, waiting=3), 8, 4000)
    assert both.free(0.0, 2500) == pytest.approx(0.9 - 0.15)


def test_what_was_dispatched_while_the_page_was_on_its_way_stays_reserved() -> None:
    both = sensor()
    for tokens in (100, 100, 100, 500, 700):
        both.dispatched(tokens)
    both.read(Reading("b", 0.0, 0.9, running=3, waiting=0), 5, 1500)
    assert both.free(0.0, 1500) == pytest.approx(0.9 - 0.12)
    both.read(Reading("b", 0.5, 0.8, running=9, waiting=0), 5, 1500)  # others use the engine too
    assert both.free(0.5, 1500) == pytest.approx(0.8)


def test_six_tenths_of_the_growth_to_come_are_taken_off_but_no_more_than_a_quarter() -> None:
    both = sensor()
    both.read(page(0.0, 0.9), 8, 0)
    assert both.free(0.0, 3000) == pytest.approx(0.9 - 0.12)
    assert both.free(0.0, 90_000) == pytest.approx(0.65)


def test_some_growth_is_to_come_even_where_more_is_written_than_was_expected() -> None:
    both = sensor()
    both.read(page(0.0, 0.2), 8, 0)
    both.answers = 2000
    assert both.free(0.0, 3000) == pytest.approx(0.2 - 0.6 * 0.15 * 2 * 0.2)


def test_growth_is_judged_by_how_far_estimates_of_answers_were_off() -> None:
    """At first answers are taken for twice as long as estimated; what is learned is a ratio of sums, with bounds."""
    both = sensor()
    both.read(page(0.0, 0.9), 8, 0)
    both.answers = 1000
    assert both.free(0.0, 2000) == pytest.approx(0.9 - 0.12)
    for _ in range(500):
        both.finished(1000, 1500)
    assert both.error == pytest.approx(1.5, abs=0.01)
    assert both.free(0.0, 2000) == pytest.approx(0.9 - 0.09, abs=0.001)
    for _ in range(500):
        both.finished(10, 10_000)
    assert both.error == 3.0
    for _ in range(500):
        both.finished(1000, 1)
    assert both.error == 0.5


def test_a_page_that_did_not_move_does_not_clear_them() -> None:
    both = sensor()
    both.read(page(0.0, 0.5), 1, 0)
    both.dispatched(2000)
    both.read(page(1.0, 0.5), 1, 0)
    assert both.free(1.0, 4000) == pytest.approx(0.3)


def test_an_old_page_leaves_the_ledger_alone() -> None:
    both = sensor()
    both.read(page(0.0, 0.9), 1, 0)
    both.dispatched(500)
    assert not both.stale(2.9)
    assert both.changes_at(1.0) == 3.0
    assert both.stale(3.0)
    assert both.free(3.0, 6000) == pytest.approx(0.4)


def test_without_a_known_size_nothing_is_gated_once_stale() -> None:
    bare = sensor(kv_tokens=None)
    watched = [bare.watches]
    assert bare.free(0.0, 10**9) is None
    bare.read(page(0.0, 0.01), 1, 0)
    bare.dispatched(500)
    assert [*watched, bare.watches] == [False, True]
    assert bare.free(0.0, 500) == 0.01
    bare.gate(0.0, 500)
    assert bare.closed == [False, True, True]
    bare.gate(9.0, 500)
    assert bare.closed == [False, False, False]


def test_the_page_may_tell_the_size() -> None:
    told = sensor(kv_tokens=None)
    told.read(page(0.0, 0.5, kv_tokens=1000), 1, 0)
    told.dispatched(100)
    assert told.free(0.0, 100) == pytest.approx(0.4)


def test_a_page_that_stands_still_in_traffic_is_frozen() -> None:
    both = sensor()
    for second in range(5):
        both.read(page(float(second), 0.5), 1, 0)
        both.dispatched(10)
    assert both.stale(4.0)
    assert both.changes_at(4.0) == NEVER
    both.read(page(5.0, 0.49), 1, 0)
    assert not both.stale(5.0)


@pytest.mark.parametrize(("running", "traffic"), [(0, True), (1, False)])
def test_a_still_page_is_right_when_nothing_ran_or_came(running: int, *, traffic: bool) -> None:
    both = sensor()
    for second in range(9):
        both.read(page(float(second), 1.0, running=running), running, 0)
        if traffic:
            both.dispatched(10)
    assert not both.stale(8.0)


def test_counts_alone_may_stand_still() -> None:
    """All seats of a llama.cpp server are taken for minutes: its page shows the same each time."""
    counts = sensor()
    for second in range(9):
        counts.read(page(float(second), None, running=4), 4, 0)
        counts.dispatched(10)
    assert not counts.stale(8.0)


def test_hysteresis_per_band() -> None:
    both = sensor()
    seen = []
    for second, free in enumerate((0.21, 0.14, 0.19, 0.20, 0.07, 0.11, 0.13, 0.25)):
        both.read(page(float(second), free), 1, 0)
        assert both.gate(float(second), 0) is any(both.closed)
        seen.append(both.closed[1:].copy())
    p1 = [closed[0] for closed in seen]
    p2 = [closed[1] for closed in seen]
    assert p2 == [False, True, True, False, True, True, True, False]
    assert p1 == [False, False, False, False, True, True, False, False]


def test_nothing_passes_where_more_is_promised_than_fits() -> None:
    both = sensor()
    both.read(page(0.0, 0.1), 1, 0)
    both.dispatched(1001)
    both.gate(0.0, 5000)
    assert both.closed == [True, True, True]


def test_a_cache_without_gauge_keeps_room_for_the_largest_request() -> None:
    ledger = sensor(kv_tokens=4096)
    ledger.dispatched(1000)
    ledger.dispatched(200)
    assert ledger.free(0.0, 1200) == pytest.approx(1 - (1200 + 990) / 4096)
    ledger.read(page(1.0, None), 2, 0)
    ledger.gate(1.0, 3200)
    assert ledger.closed[0]
    ledger.gate(1.0, 2000)
    assert not ledger.closed[0]


@pytest.mark.parametrize("end", [Release(), Requeue(avoid=False), Requeue(avoid=True)])
def test_ended_answers_are_expected_no_more(end: Release | Requeue) -> None:
    """Those dispatched before the first page too, however they end."""
    scheduler = Scheduler(policy(BackendSpec("b", 4)))
    for number in range(4):
        asked = Ticket(f"before{number}", "m", 1, "a", WorkEstimate(0, 500))
        (lease,) = leases(scheduler.submit(0.0, asked)).values()
        for again in leases(scheduler.release(0.0, lease, end)).values():
            scheduler.release(0.0, again, Release())
    scheduler.observe(1.0, page(1.0, 1.0, running=0, kv_tokens=10_000))
    scheduler.submit(1.1, Ticket("now", "m", 0, "a", WorkEstimate(500, 3000)))
    assert scheduler.snapshot(1.1).backends[0].kv_free == pytest.approx(1.0 - 0.35 - 0.6 * 0.3)


def test_a_snapshot_tells_what_the_engine_itself_runs_and_keeps_waiting() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 8)))
    (backend,) = scheduler.snapshot(0.0).backends
    assert (backend.engine_running, backend.engine_waiting) == (None, None)
    scheduler.observe(1.0, Reading("b", 1.0, 0.5, running=5, waiting=2))
    (backend,) = scheduler.snapshot(1.0).backends
    assert (backend.engine_running, backend.engine_waiting) == (5, 2)
