"""Leases that came to nothing: after a 429, and after a backend failed before the first byte."""

from __future__ import annotations

import pytest

from core.capacity_stage import changed, homes, leases, policy, refusals, ticket
from tidegate.core import (
    BackendSpec,
    Dispatch,
    Drain,
    Evict,
    Health,
    Outcome,
    Paused,
    Reason,
    Release,
    Requeue,
    Scheduler,
    Seats,
    TenantSpec,
    WhyKind,
)

# -- tickets taken back --------------------------------------------------------------------------------------------


def test_a_ticket_that_met_a_429_goes_back_before_those_that_came_later() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), bands=changed(1, ttl_s=5.0, capacity=1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("old"))).values()
    scheduler.submit(1.0, ticket("new"))
    scheduler.observe(4.0, Paused("b", 4.5))
    assert scheduler.release(4.0, lease, Requeue()) == []
    (again,) = [each for each in scheduler.tick(4.5) if isinstance(each, Dispatch)]
    assert again.ticket.id == "old"
    assert again.lease.id != lease
    assert again.lease.waited_s == 4.5
    assert refusals(scheduler.tick(6.0)) == {"new": Reason.EXPIRED}
    assert scheduler.release(7.0, lease, Release()) == []  # the old lease is gone
    scheduler.release(7.0, again.lease.id, Release())
    assert scheduler.snapshot(7.0).running == 0


def test_taken_back_it_outlives_its_ttl_but_not_its_deadline() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), bands=changed(1, ttl_s=5.0)))
    (lease,) = leases(scheduler.submit(0.0, ticket("x", deadline=20.0))).values()
    scheduler.observe(1.0, Paused("b", 15.0))
    scheduler.release(1.0, lease, Requeue())
    assert scheduler.tick(14.0) == []
    scheduler.observe(14.0, Health("b", up=False))
    assert refusals(scheduler.tick(20.0)) == {"x": Reason.NO_BACKEND}


def test_taken_back_it_hears_at_once_of_a_pause_beyond_its_deadline() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("x", deadline=20.0, name="x"))).values()
    scheduler.observe(1.0, Paused("b", 60.0))
    (evicted,) = scheduler.release(1.0, lease, Requeue())
    assert isinstance(evicted, Evict)
    assert (evicted.reason, evicted.retry_after_s) == (Reason.UPSTREAM_BUSY, 59.0)
    assert scheduler.status(1.0, "a/x").outcome is Outcome.EVICTED
    (lease,) = leases(scheduler.submit(60.0, ticket("y", deadline=80.0))).values()
    scheduler.observe(61.0, Paused("b", 90.0))
    assert refusals(scheduler.release(61.0, lease, Requeue())) == {"y": Reason.UPSTREAM_BUSY}


def test_taken_back_from_a_backend_that_is_down_it_waits_until_that_is_up() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("x"))).values()
    scheduler.observe(1.0, Health("b", up=False))
    assert scheduler.release(1.0, lease, Requeue()) == []
    assert list(leases(scheduler.observe(2.0, Health("b", up=True)))) == ["x"]


def test_taken_back_from_a_backend_with_fewer_seats_now_it_waits_for_one_of_those() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 2)))
    (first,) = leases(scheduler.submit(0.0, ticket("x"))).values()
    (second,) = leases(scheduler.submit(0.0, ticket("y"))).values()
    scheduler.observe(1.0, Seats("b", 1))
    assert scheduler.release(1.0, first, Requeue()) == []
    assert list(leases(scheduler.release(2.0, second, Release()))) == ["x"]


def test_it_costs_nobody_quota_tokens_or_turns() -> None:
    scheduler = Scheduler(
        policy(
            BackendSpec("b", 2, tokens_per_minute=60_000),
            tenants=(TenantSpec("a", max_running=1), TenantSpec("b")),
        )
    )
    (lease,) = leases(scheduler.submit(0.0, ticket("x"))).values()
    scheduler.observe(0.0, Paused("b", 5.0))
    scheduler.release(0.0, lease, Requeue())
    row = scheduler.snapshot(0.0)
    assert (row.backends[0].running, row.bands[1].running, row.bands[1].depth) == (0, 0, 1)
    assert row.backends[0].budget_level == 1.0
    assert list(leases(scheduler.tick(5.0))) == ["x"]


def test_a_failed_backend_is_avoided_each_once_then_the_ticket_ends() -> None:
    scheduler = Scheduler(policy(BackendSpec("a", 1), BackendSpec("b", 1), tenants=(TenantSpec("a", max_running=1),)))
    (first,) = [each for each in scheduler.submit(0.0, ticket("x")) if isinstance(each, Dispatch)]
    (second,) = [e for e in scheduler.release(1.0, first.lease.id, Requeue(avoid=True)) if isinstance(e, Dispatch)]
    assert [first.lease.backend, second.lease.backend] == ["a", "b"]
    assert second.lease.kind is first.lease.kind
    (end,) = scheduler.release(2.0, second.lease.id, Requeue(avoid=True, reason=Reason.UPSTREAM_TIMEOUT))
    assert isinstance(end, Evict)
    assert end.reason is Reason.UPSTREAM_TIMEOUT
    row = scheduler.snapshot(2.0)
    assert (row.queued, row.running, row.bands[1].running) == (0, 0, 0)


def test_it_waits_for_a_seat_of_another_backend_before_any_turn() -> None:
    scheduler = Scheduler(policy(BackendSpec("a", 1), BackendSpec("b", 1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("x", 2))).values()
    (other,) = leases(scheduler.submit(0.0, ticket("y", 1))).values()
    scheduler.submit(0.0, ticket("v", 0))
    assert homes(scheduler.release(1.0, lease, Requeue(avoid=True))) == {"v": "a"}
    assert scheduler.why(1.0, "x").kind is not WhyKind.RUNNING
    assert homes(scheduler.release(2.0, other, Release())) == {"x": "b"}


@pytest.mark.parametrize("way", ["cancel", "drain", "deadline", "others down"])
def test_ways_out_while_it_waits_for_another_backend(way: str) -> None:
    scheduler = Scheduler(policy(BackendSpec("a", 1), BackendSpec("b", 1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("x", 2, deadline=9.0))).values()
    scheduler.submit(0.0, ticket("y", 1))
    scheduler.release(1.0, lease, Requeue(avoid=True))
    match way:
        case "cancel":
            assert scheduler.cancel(2.0, "x") == []
        case "drain":
            assert refusals(scheduler.observe(2.0, Drain())) == {"x": Reason.DRAINING}
        case "deadline":
            assert refusals(scheduler.tick(9.0)) == {"x": Reason.EXPIRED}
        case _:
            assert refusals(scheduler.observe(2.0, Health("b", up=False))) == {"x": Reason.UPSTREAM_ERROR}
    assert scheduler.snapshot(9.0).queued == 0
    assert scheduler.snapshot(9.0).bands[2].running == 0


def test_it_avoids_a_paused_backend_until_the_pause_ends() -> None:
    scheduler = Scheduler(policy(BackendSpec("a", 1), BackendSpec("b", 1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("x", 2))).values()
    scheduler.observe(0.0, Paused("b", 5.0))
    assert scheduler.release(1.0, lease, Requeue(avoid=True)) == []
    assert scheduler.next_wakeup() == 5.0
    assert homes(scheduler.tick(5.0)) == {"x": "b"}


def test_lent_work_taken_back_is_lent_again() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1)))
    (lease,) = leases(scheduler.submit(0.0, ticket("first", 0))).values()
    scheduler.submit(0.0, ticket("report", 2, name="r1"))
    scheduler.submit(0.0, ticket("waits", 0, depends_on=("r1",)))
    (again,) = leases(scheduler.release(1.0, lease, Release())).values()
    scheduler.submit(1.0, ticket("normal", 1))
    scheduler.observe(1.0, Paused("b", 2.0))
    scheduler.release(1.0, again, Requeue())
    assert scheduler.snapshot(1.0).bands[0].depth == 1
    assert list(leases(scheduler.tick(2.0))) == ["report"]
