"""Quotas, pauses, caches, modes, observation and storms through the scheduler's surface."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from core.capacity_stage import BANDS, WATERMARKS, changed, closed, homes, leases, policy, refusals, ticket
from tidegate.core import (
    BackendSpec,
    Evict,
    GateKind,
    Outcome,
    Paused,
    PolicyError,
    RateLimit,
    Reading,
    Reason,
    Reject,
    Release,
    Requeue,
    Saturated,
    Scheduler,
    Waiter,
    WhyKind,
)

# -- pauses --------------------------------------------------------------------------------------------------------


def test_a_pause_gates_all_bands_and_ends_by_itself() -> None:
    scheduler = Scheduler(policy())
    scheduler.observe(0.0, Paused("b", 7.0))
    assert scheduler.submit(1.0, ticket("v", 0)) == []
    gate = scheduler.hold("m", 0)
    assert gate is not None
    assert gate.kind is GateKind.PAUSED
    assert scheduler.snapshot(1.0).backends[0].paused_until == 7.0
    assert scheduler.why(1.0, "v").gate == gate
    assert scheduler.next_wakeup() == 7.0
    assert list(leases(scheduler.tick(7.0))) == ["v"]
    assert scheduler.snapshot(7.0).backends[0].paused_until is None
    assert scheduler.next_wakeup() is None


def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    scheduler = Scheduler(policy())
    scheduler.observe(0.0, Paused("b", 7.0))
    scheduler.observe(1.0, Paused("b", 3.0))
    scheduler.submit(1.0, ticket("v", 0))
    assert scheduler.next_wakeup() == 7.0


def test_the_other_backend_goes_on() -> None:
    scheduler = Scheduler(policy(BackendSpec("a", 1), BackendSpec("b", 1)))
    scheduler.observe(0.0, Paused("a", 60.0))
    assert homes(scheduler.submit(0.0, ticket("v"))) == {"v": "b"}
    assert scheduler.submit(0.0, ticket("w")) == []
    gate = scheduler.hold("m", 1)
    assert gate is not None
    assert gate.kind is GateKind.NO_SEAT


def test_whoever_would_expire_in_the_pause_is_told_so_at_once() -> None:
    scheduler = Scheduler(policy(bands=changed(0, ttl_s=10.0)))
    scheduler.submit(0.0, ticket("waits", 0))
    scheduler.observe(0.0, Paused("b", 30.0))
    (refused,) = scheduler.submit(5.0, ticket("v", 0))
    assert isinstance(refused, Reject)
    assert (refused.reason, refused.retry_after_s) == (Reason.UPSTREAM_BUSY, 25.0)
    (refused,) = scheduler.submit(5.0, ticket("w", 1, deadline=29.0))
    assert refusals([refused]) == {"w": Reason.UPSTREAM_BUSY}
    assert scheduler.submit(5.0, ticket("x", 1, deadline=31.0)) == []


def test_whoever_expires_in_a_pause_hears_of_the_pause() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), bands=changed(0, ttl_s=10.0)))
    scheduler.submit(0.0, ticket("run", 0))
    scheduler.submit(0.0, ticket("v", 0))
    scheduler.observe(1.0, Paused("b", 30.0))
    (evicted,) = scheduler.tick(10.0)
    assert isinstance(evicted, Evict)
    assert (evicted.reason, evicted.retry_after_s) == (Reason.UPSTREAM_BUSY, 20.0)


# -- quotas --------------------------------------------------------------------------------------------------------


def test_a_used_up_quota_gates_until_it_opens() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 9, tokens_per_minute=1200)))
    running: dict[str, int] = {}
    for number in range(3):
        running |= leases(scheduler.submit(0.5, ticket(str(number))))
    assert list(running) == ["0", "1"]  # a sixth of the minute
    gate = scheduler.hold("m", 0)
    assert gate is not None
    assert gate.kind is GateKind.BUDGET
    assert scheduler.snapshot(1.0).backends[0].budget_level == pytest.approx(5 / 6)
    assert scheduler.next_wakeup() == 10.5
    assert list(leases(scheduler.release(2.0, running["0"], Release(input_tokens=10, output_tokens=0)))) == ["2"]


def test_requests_are_counted_too_and_not_given_back() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 9, requests_per_minute=6)))
    (lease,) = leases(scheduler.submit(0.0, ticket("a"))).values()
    scheduler.submit(0.0, ticket("b"))
    assert scheduler.release(1.0, lease, Release(Outcome.FAILED)) == []
    assert scheduler.next_wakeup() == 10.0
    assert list(leases(scheduler.tick(10.0))) == ["b"]


def test_what_an_upstream_says_is_left_counts() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 9, tokens_per_minute=60_000)))
    scheduler.observe(0.0, RateLimit("b", remaining_tokens=0, reset_s=4.0))
    scheduler.submit(0.0, ticket("a"))
    assert scheduler.next_wakeup() == 4.0
    assert list(leases(scheduler.tick(4.0))) == ["a"]


def test_nothing_left_without_a_quota_of_ours_is_a_pause() -> None:
    scheduler = Scheduler(policy())
    scheduler.observe(0.0, RateLimit("b", remaining_requests=5, remaining_tokens=0, reset_s=4.0))
    scheduler.submit(0.0, ticket("a"))
    assert scheduler.next_wakeup() == 4.0


def test_quotas_change_live() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 9, tokens_per_minute=600)))
    scheduler.submit(0.0, ticket("a"))
    scheduler.submit(0.0, ticket("b"))
    more = policy(BackendSpec("b", 9, tokens_per_minute=6000))
    assert list(leases(scheduler.set_policy(1.0, more))) == ["b"]
    assert scheduler.snapshot(1.0).backends[0].budget_level == pytest.approx(1 - 200 / 6000)
    scheduler.set_policy(1.0, policy(BackendSpec("b", 9)))
    assert scheduler.snapshot(1.0).backends[0].budget_level is None


# -- caches --------------------------------------------------------------------------------------------------------


def test_a_low_cache_stops_the_low_band_only_until_it_has_recovered() -> None:
    scheduler = Scheduler(policy(bands=WATERMARKS))
    scheduler.observe(0.0, Reading("b", 0.0, kv_free=0.1))
    assert scheduler.submit(0.0, ticket("batch", 2)) == []
    assert list(leases(scheduler.submit(0.0, ticket("vip", 0)))) == ["vip"]
    gate = scheduler.hold("m", 2)
    assert gate is not None
    assert gate.kind is GateKind.KV
    assert scheduler.observe(1.0, Reading("b", 1.0, kv_free=0.18)) == []
    assert list(leases(scheduler.observe(2.0, Reading("b", 2.0, kv_free=0.25)))) == ["batch"]


def test_a_stale_page_opens_what_it_closed() -> None:
    scheduler = Scheduler(policy(bands=WATERMARKS))
    scheduler.observe(0.0, Reading("b", 0.0, kv_free=0.1))
    scheduler.submit(0.0, ticket("batch", 2))
    assert scheduler.next_wakeup() == 3.0
    assert list(leases(scheduler.tick(3.0))) == ["batch"]
    assert scheduler.snapshot(3.0).backends[0].stale


def test_a_burst_between_two_pages_does_not_overfill() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 500), bands=WATERMARKS))
    scheduler.observe(0.0, Reading("b", 0.0, kv_free=1.0, kv_tokens=10_000))
    actions = [each for n in range(200) for each in scheduler.submit(0.1, ticket(f"low{n}", 2))]
    assert len(leases(actions)) == 86  # down to 15 % of 10,000 tokens, one request beyond
    assert scheduler.snapshot(0.1).backends[0].kv_free == pytest.approx(0.14)
    actions = [each for n in range(200) for each in scheduler.submit(0.2, ticket(f"high{n}", 0))]
    assert len(leases(actions)) == 15


def test_an_engine_without_gauge_is_kept_by_its_ledger() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 8, kv_tokens=1000)))
    running: dict[str, int] = {}
    for number in range(12):
        running |= leases(scheduler.submit(0.0, ticket(str(number), 0, 200)))
    assert len(running) == 5
    assert list(leases(scheduler.release(1.0, running["0"], Release()))) == ["5"]


def test_bands_go_to_the_backend_whose_cache_has_room() -> None:
    scheduler = Scheduler(policy(BackendSpec("a", 4), BackendSpec("b", 4), bands=WATERMARKS))
    scheduler.observe(0.0, Reading("a", 0.0, kv_free=0.1))
    assert homes(scheduler.submit(0.0, ticket("1", 2))) == {"1": "b"}
    assert homes(scheduler.submit(0.0, ticket("2", 2))) == {"2": "b"}
    assert homes(scheduler.submit(0.0, ticket("3", 0))) == {"3": "a"}


# -- shedding and modes --------------------------------------------------------------------------------------------


def test_saturated_bands_shed_newcomers_but_not_patient_ones() -> None:
    bands = changed(2, when_saturated=Saturated.SHED, ceiling=Fraction(1, 4))
    scheduler = Scheduler(policy(bands=bands))
    scheduler.submit(0.0, ticket("a", 2))
    scheduler.submit(0.0, ticket("b", 2))  # one above the quarter: taken was not above it
    (refused,) = scheduler.submit(0.0, ticket("c", 2))
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.SHED
    assert scheduler.submit(0.0, ticket("job", 2, patient=True)) == []
    assert list(leases(scheduler.submit(0.0, ticket("d", 1)))) == ["d"]


def test_a_watermark_sheds_and_a_missing_seat_does_not() -> None:
    bands = (*BANDS[:2], dataclasses.replace(WATERMARKS[2], when_saturated=Saturated.SHED))
    scheduler = Scheduler(policy(BackendSpec("b", 1), bands=bands))
    scheduler.submit(0.0, ticket("a", 2))
    assert scheduler.submit(0.0, ticket("b", 2)) == []
    scheduler.cancel(0.0, "b")
    scheduler.release(0.0, 1, Release())
    scheduler.observe(0.0, Reading("b", 0.0, kv_free=0.1))
    assert refusals(scheduler.submit(0.0, ticket("c", 2))) == {"c": Reason.SHED}


def test_a_full_pool_is_above_its_ceiling_too() -> None:
    bands = changed(2, when_saturated=Saturated.SHED, ceiling=Fraction(1, 2))
    scheduler = Scheduler(policy(BackendSpec("b", 2), bands=bands))
    scheduler.submit(0.0, ticket("a", 0))
    assert scheduler.submit(0.0, ticket("b", 0))
    (refused,) = scheduler.submit(0.0, ticket("c", 2))
    assert isinstance(refused, Reject)
    assert (refused.reason, "ceiling" in refused.detail) == (Reason.SHED, True)


def test_a_full_pool_is_below_its_watermark_too() -> None:
    bands = (*BANDS[:2], dataclasses.replace(WATERMARKS[2], when_saturated=Saturated.SHED))
    backends = (BackendSpec("a", 1), BackendSpec("b", 1))
    scheduler = Scheduler(policy(*backends, bands=bands))
    for each in "ab":
        scheduler.submit(0.0, ticket(each, 0))
    scheduler.observe(0.0, Reading("a", 0.0, kv_free=0.1))
    assert scheduler.submit(0.0, ticket("c", 2)) == []  # the other has room in its cache
    scheduler.observe(0.0, Reading("b", 0.0, kv_free=0.1))
    assert refusals(scheduler.submit(0.0, ticket("d", 2))) == {"d": Reason.SHED}
    scheduler.observe(1.0, Reading("b", 1.0, kv_free=0.9))
    assert refusals(scheduler.submit(1.0, ticket("e", 2))) == {}


def test_a_mode_answers_lower_bands_and_keeps_jobs_and_running_work() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("runs", 2))).values()
    for ident, band in (("v", 0), ("x", 1), ("y", 2)):
        scheduler.submit(0.0, ticket(ident, band))
    scheduler.submit(0.0, ticket("job", 2, patient=True))
    assert refusals(scheduler.set_policy(1.0, policy(BackendSpec("b", 1), bands=closed(1, 2)))) == {
        "x": Reason.SHED,
        "y": Reason.SHED,
    }
    assert refusals(scheduler.submit(1.0, ticket("z", 1))) == {"z": Reason.SHED}
    assert scheduler.submit(1.0, ticket("job2", 2, patient=True)) == []
    assert list(leases(scheduler.release(2.0, lease, Release()))) == ["v"]
    assert scheduler.release(3.0, 2, Release()) == []
    why = scheduler.why(3.0, "job")
    assert why.kind is WhyKind.GATE
    assert why.gate is not None
    assert why.gate.kind is GateKind.MODE
    assert list(leases(scheduler.set_policy(4.0, policy(BackendSpec("b", 1))))) == ["job"]


@pytest.mark.parametrize("waiting", [600, 255])
def test_a_mode_evicts_in_portions(waiting: int) -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1)))
    for number in range(waiting + 1):
        scheduler.submit(0.0, ticket(str(number), 2))
    counts = [len(scheduler.set_policy(1.0, policy(BackendSpec("b", 1), bands=closed(1, 2))))]
    while scheduler.next_wakeup() == 1.0:
        counts.append(len(scheduler.tick(1.0)))
    assert sum(counts) == waiting
    assert max(counts) <= 256
    assert scheduler.next_wakeup() is None


def test_lent_work_runs_in_a_mode_that_closes_its_band() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("runs", 0))).values()
    scheduler.submit(0.0, ticket("report", 2, name="r1"))
    scheduler.submit(0.0, ticket("other", 2))
    scheduler.observe(0.0, Waiter("w", "a", 0, "a/r1", waiting=True))
    assert refusals(scheduler.set_policy(1.0, policy(BackendSpec("b", 1), bands=closed(1, 2)))) == {
        "other": Reason.SHED
    }
    assert list(leases(scheduler.release(2.0, lease, Release()))) == ["report"]


def test_awaited_work_is_let_in_by_a_mode_that_closes_its_band() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), bands=closed(1, 2)))
    scheduler.submit(0.0, ticket("waits", 0, depends_on=("later",)))
    assert refusals(scheduler.submit(0.5, ticket("other", 2, name="else"))) == {"other": Reason.SHED}
    assert list(leases(scheduler.submit(0.5, ticket("needed", 2, name="later")))) == ["needed"]


def test_a_ticket_taken_back_is_answered_when_a_mode_closes_its_band() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("x", 2))).values()
    scheduler.observe(1.0, Paused("b", 9.0))
    scheduler.release(1.0, lease, Requeue())
    assert refusals(scheduler.set_policy(2.0, policy(BackendSpec("b", 1), bands=closed(2)))) == {"x": Reason.SHED}


# -- storms, and settings that are refused -------------------------------------------------------------------------


def test_it_storms_while_more_is_refused_than_dispatched() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), bands=changed(1, capacity=1)))
    calm = scheduler.storm
    for number in range(5):
        scheduler.submit(10.0, ticket(str(number)))
    assert scheduler.snapshot(10.2).storm
    for number in range(9):
        scheduler.release(10.3, number + 1, Release())
        scheduler.submit(10.3, ticket(f"n{number}"))
    assert [calm, scheduler.storm] == [False, False]
    scheduler.submit(10.9, ticket("late"))
    scheduler.submit(10.9, ticket("later"))
    scheduler.submit(10.9, ticket("latest"))
    assert not scheduler.snapshot(13.0).storm


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        (BackendSpec("b", -1), "seats"),
        (BackendSpec("b", 1, stale_after_s=0.0), "stale_after"),
        (BackendSpec("b", 1, tokens_per_minute=0), "tokens_per_minute"),
    ],
)
def test_silly_backends_are_refused(spec: BackendSpec, setting: str) -> None:
    with pytest.raises(PolicyError, match=f"models.m.backends.b.{setting}"):
        policy(spec)


def test_a_resume_below_the_watermark_is_refused() -> None:
    with pytest.raises(PolicyError, match="kv_watermark"):
        policy(bands=changed(2, kv_watermark=0.2, kv_resume=0.1))


def test_facts_about_unknown_backends_are_ignored() -> None:
    scheduler = Scheduler(policy())
    assert scheduler.observe(0.0, Reading("nobody", 0.0)) == []
