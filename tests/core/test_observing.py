"""While a policy only observes, nothing is refused or reordered, and what would have been is counted."""

from __future__ import annotations

import dataclasses

import pytest

from core.capacity_stage import BANDS, WATERMARKS, closed, leases, policy, refusals, ticket
from tidegate.core import (
    BackendSpec,
    Drain,
    GateKind,
    Health,
    Paused,
    Reading,
    Reason,
    Release,
    Saturated,
    Scheduler,
    TenantSpec,
    Ticket,
)

# -- observing -----------------------------------------------------------------------------------------------------


def test_observe_only_refuses_and_reorders_nothing_and_counts_what_it_would() -> None:
    bands = tuple(
        dataclasses.replace(each, ttl_s=5.0, capacity=2, reserve=1 if each.name == "p0" else 0) for each in closed(2)
    )
    scheduler = Scheduler(
        policy(
            BackendSpec("b", 2),
            bands=bands,
            observe_only=True,
            tenants=(TenantSpec("b", max_queued=0),),
        )
    )
    order = list(leases(scheduler.submit(0.0, ticket("1", 2))))  # a mode would shed it
    order += list(leases(scheduler.submit(0.0, ticket("2", 2))))  # and a reserve would hold it
    for ident, band in (("3", 2), ("4", 1), ("5", 0), ("6", 1), ("7", 1)):  # a full band would refuse the last
        assert scheduler.submit(0.0, ticket(ident, band)) == []
    assert scheduler.submit(0.0, Ticket("8", "m", 0, "b")) == []
    assert scheduler.next_wakeup() is None
    assert scheduler.tick(6.0) == []  # they would have expired
    for lease in range(1, 9):
        order += list(leases(scheduler.release(6.0, lease, Release())))
    assert order == [str(number) for number in range(1, 9)]
    assert dict(scheduler.snapshot(6.0).would) == {
        "shed": 3,
        "held": 1,
        "reordered": 4,
        "expired": 6,
        "queue_full": 1,
        "tenant_limit": 1,
    }


def low_cache(scheduler: Scheduler, now: float) -> None:
    """Show a cache that is below the watermark of p2 alone."""
    scheduler.observe(now, Reading("b", now, kv_free=0.1))


@pytest.mark.parametrize(
    ("when_saturated", "would"),
    [(Saturated.QUEUE, {"kv": 2}), (Saturated.SHED, {"kv": 2, "shed": 2})],
)
def test_observation_counts_what_a_watermark_would_have_stopped(
    when_saturated: Saturated, would: dict[str, int]
) -> None:
    bands = (*BANDS[:2], dataclasses.replace(WATERMARKS[2], when_saturated=when_saturated))
    scheduler = Scheduler(policy(BackendSpec("b", 9), bands=bands, observe_only=True))
    low_cache(scheduler, 0.0)
    order = [list(leases(scheduler.submit(0.5, ticket(str(number), band)))) for number, band in enumerate((2, 0, 2))]
    assert order == [["0"], ["1"], ["2"]]
    assert dict(scheduler.snapshot(0.5).would) == would
    gate = scheduler.hold("m", 2)  # what the rules say
    assert gate is not None
    assert gate.kind is GateKind.KV
    scheduler.submit(3.1, ticket("stale", 2))
    scheduler.observe(4.0, Reading("b", 4.0, kv_free=0.9))
    scheduler.submit(4.1, ticket("calm", 2))
    assert dict(scheduler.snapshot(4.1).would) == would


def test_observation_serves_in_order_of_arrival_whatever_the_watermark_says() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), bands=WATERMARKS, observe_only=True))
    scheduler.submit(0.0, ticket("runs", 0))
    low_cache(scheduler, 0.0)
    for number, band in enumerate((2, 0, 2, 1)):
        scheduler.submit(0.1, ticket(str(number), band))
    order: list[str] = []
    for lease in range(1, 6):
        order += leases(scheduler.release(1.0, lease, Release()))
    assert order == ["0", "1", "2", "3"]
    assert dict(scheduler.snapshot(1.0).would) == {"kv": 2}
    assert scheduler.next_wakeup() is None


def test_observation_does_not_count_the_watermark_of_a_backend_that_went_down() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), BackendSpec("c", 9), bands=WATERMARKS, observe_only=True))
    scheduler.observe(0.0, Health("c", up=False))
    low_cache(scheduler, 0.0)
    scheduler.submit(0.0, ticket("counted", 2))
    scheduler.observe(0.1, Health("b", up=False))
    scheduler.observe(0.1, Health("c", up=True))
    assert list(leases(scheduler.submit(0.1, ticket("now", 2)))) == ["now"]
    assert dict(scheduler.snapshot(0.1).would) == {"kv": 1}


def test_leaving_observation_takes_up_the_rules_again() -> None:
    bands = tuple(dataclasses.replace(each, ttl_s=5.0) for each in BANDS)
    watch = policy(BackendSpec("b", 1), bands=bands, observe_only=True)
    scheduler = Scheduler(watch)
    for ident in "123":
        scheduler.submit(0.0, ticket(ident))
    scheduler.tick(9.0)
    late = scheduler.set_policy(9.0, dataclasses.replace(watch, observe_only=False))
    assert refusals(late) == {"2": Reason.EXPIRED, "3": Reason.EXPIRED}


def test_observation_still_drains_and_respects_pauses() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), bands=WATERMARKS, observe_only=True))
    scheduler.observe(0.0, Reading("b", 0.0, kv_free=0.1))
    (lease,) = leases(scheduler.submit(0.0, ticket("1", 2))).values()
    scheduler.submit(0.0, ticket("2", 2))
    scheduler.observe(0.0, Paused("b", 9.0))
    assert scheduler.release(1.0, lease, Release()) == []
    assert scheduler.next_wakeup() == 9.0
    assert refusals(scheduler.observe(2.0, Drain())) == {"2": Reason.DRAINING}
