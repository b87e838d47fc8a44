"""Seats that are granted from outside, and the part of a pool that is lent while nobody grants."""

from __future__ import annotations

import pytest

from core.capacity_stage import changed, homes, leases, policy, refusals
from core.test_bids import shared, work
from tidegate.core import (
    AUTO,
    BackendSpec,
    Capacity,
    Counters,
    Dispatch,
    Drain,
    GateKind,
    Granted,
    Health,
    Paused,
    Reading,
    Release,
    Requeue,
    Scheduler,
    Seats,
    Stoppable,
    TenantSpec,
    Turn,
)

# -- grants --------------------------------------------------------------------------------------------------------


def test_nothing_starts_without_a_grant() -> None:
    scheduler = shared(policy())
    assert scheduler.submit(0.0, work("1")) == []
    assert scheduler.tick(1.0) == []
    gate = scheduler.hold("m", 1)
    assert gate is not None
    assert gate.kind is GateKind.NO_SEAT
    assert homes(scheduler.observe(1.0, Granted("m", 1, "b"))) == {"1": "b"}


def test_a_grant_takes_the_best_ticket_of_its_band_and_backend() -> None:
    scheduler = shared(policy(BackendSpec("b", 4), BackendSpec("c", 4), tenants=(TenantSpec("a", max_running=1),)))
    scheduler.submit(0.0, work("1"))
    scheduler.submit(0.0, work("2"))
    scheduler.submit(0.0, work("high", "z", band=0, stoppable=Stoppable.UNSTARTED, name="n"))
    assert homes(scheduler.observe(1.0, Granted("m", 1, "c"))) == {"1": "c"}
    assert scheduler.observe(1.0, Granted("m", 1, "c")) == []  # the tenant is at its limit
    assert homes(scheduler.observe(1.0, Granted("m", 0, "b"))) == {"high": "b"}


def test_an_overtake_takes_the_oldest() -> None:
    scheduler = shared(policy())
    scheduler.submit(0.0, work("old", "a", 500))
    scheduler.submit(0.1, work("x", "a"))
    scheduler.observe(0.2, Granted("m", 1, "b"))
    scheduler.submit(0.3, work("new", "z"))
    actions = scheduler.observe(0.4, Granted("m", 1, "b", Turn.OVERTAKE))
    assert homes(actions) == {"x": "b"}
    assert [each.lease.kind for each in actions if isinstance(each, Dispatch)] == [Turn.OVERTAKE]
    assert homes(scheduler.observe(0.5, Granted("m", 1, "b", Turn.FLOOR))) == {"new": "b"}
    row = scheduler.snapshot(0.5).bands[1]
    assert (row.dispatches, row.overtakes, row.floors) == (3, 1, 1)


def test_a_grant_for_an_empty_band_does_nothing() -> None:
    scheduler = shared(policy())
    scheduler.submit(0.0, work("1"))
    assert scheduler.observe(0.0, Granted("m", 0, "b")) == []
    assert scheduler.observe(0.0, Granted("m", 1, "nowhere")) == []
    assert scheduler.observe(0.0, Granted("other", 1, "b")) == []


@pytest.mark.parametrize("shut", [Health("b", up=False), Paused("b", 9.0), Seats("b", 0), Drain()])
def test_a_grant_does_not_pass_a_gate(shut: Health | Paused | Seats | Drain) -> None:
    scheduler = shared(policy())
    scheduler.submit(0.0, work("1", band=2, patient=True))
    scheduler.observe(0.0, shut)
    assert homes(scheduler.observe(1.0, Granted("m", 2, "b"))) == {}


def test_a_grant_does_not_pass_a_mode() -> None:
    scheduler = shared(policy())
    scheduler.submit(0.0, work("1", band=2, patient=True))
    scheduler.set_policy(0.0, policy(bands=changed(2, admit=False)))
    assert scheduler.observe(1.0, Granted("m", 2, "b")) == []
    scheduler.set_policy(2.0, policy())
    assert homes(scheduler.observe(2.0, Granted("m", 2, "b"))) == {"1": "b"}


def test_a_grant_serves_first_what_failed_on_another_backend() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), BackendSpec("c", 1)))
    taken = leases(scheduler.submit(0.0, work("1")) + scheduler.submit(0.0, work("2")))
    where = dict(scheduler.bids(0.0, "m").used)
    assert where == {"b": 1, "c": 1}
    scheduler.observe(0.0, Capacity("m", 0))
    scheduler.submit(0.0, work("3", band=1, stoppable=Stoppable.UNSTARTED))
    assert scheduler.release(0.5, taken["1"], Requeue(avoid=True)) == []
    assert scheduler.release(0.5, taken["2"], Release()) == []  # its seat is not for the one that waits for another
    homes_of = [homes(scheduler.observe(1.0, Granted("m", 1, name))) for name in ("b", "c")]
    assert sorted(key for each in homes_of for key in each) == ["1", "3"]
    assert scheduler.bids(1.0, "m").bids == ()


def test_work_lent_to_runs_in_the_band_of_its_grant() -> None:
    scheduler = shared(policy())
    scheduler.submit(0.0, work("low", band=2, name="low"))
    scheduler.submit(0.0, work("high", band=0, depends_on=("a/low",)))
    actions = scheduler.observe(1.0, Granted("m", 0, "b"))
    assert [(each.ticket.id, each.lease.band) for each in actions if isinstance(each, Dispatch)] == [("low", 0)]


# -- the part that is lent -----------------------------------------------------------------------------------------


def test_a_lent_part_is_filled_by_the_own_rule_and_no_further() -> None:
    scheduler = shared(policy(BackendSpec("b", 8)))
    for number in range(6):
        scheduler.submit(0.0, work(f"{number}"))
    assert len(homes(scheduler.observe(1.0, Capacity("m", 3)))) == 3
    assert len(homes(scheduler.release(2.0, 1, Release()))) == 1
    assert scheduler.observe(3.0, Capacity("m", 2)) == []
    assert scheduler.release(3.0, 2, Release()) == []
    assert len(homes(scheduler.release(3.0, 3, Release()))) == 1
    assert len(homes(scheduler.observe(4.0, Capacity("m", None)))) == 1
    assert scheduler.observe(5.0, Capacity("nowhere", 1)) == []


@pytest.mark.parametrize("ending", [Release(), Requeue()])
def test_seats_come_free_within_the_part_after_a_backend_lost_some(ending: Release | Requeue) -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 4), BackendSpec("c", 4)))
    taken = [scheduler.submit(0.0, work(f"{number}")) for number in range(8)]
    on_b = [each.lease for actions in taken for each in actions if isinstance(each, Dispatch)]
    on_b = [lease for lease in on_b if lease.backend == "b"]
    scheduler.observe(1.0, Capacity("m", 7))
    scheduler.observe(1.0, Seats("b", 2))
    scheduler.observe(1.0, Seats("c", 5))
    scheduler.release(2.0, on_b[0].id, ending)  # 7 of 7 run: one on b above its seats
    scheduler.submit(2.0, work("x"))
    assert sum(count for _, count in scheduler.bids(2.0, "m").used) == 7
    scheduler.release(3.0, on_b[1].id, Release())
    assert sum(count for _, count in scheduler.bids(3.0, "m").used) == 7


def test_waits_are_judged_by_the_seats_that_work_here_can_count_on() -> None:
    def wait_of(*signals: Capacity) -> float | None:
        plan = policy(BackendSpec("b", 8), bands=changed(1, capacity=1))
        scheduler = Scheduler(plan)
        for number in range(8):
            scheduler.submit(0.0, work(f"{number}"))
        for signal in signals:
            scheduler.observe(0.0, signal)
        scheduler.release(1.0, 1, Release())
        for number in range(8, 12):
            for action in scheduler.submit(1.0, work(f"{number}")):
                if refusals([action]):
                    return action.retry_after_s  # type: ignore[union-attr]
        return None

    whole, part = wait_of(), wait_of(Capacity("m", 0, share=2))
    assert whole is not None
    assert part == pytest.approx(4 * whole)


def test_gated_pools_keep_to_their_part() -> None:
    scheduler = shared(policy(BackendSpec("b", 8, requests_per_minute=6000)))
    for number in range(6):
        scheduler.submit(0.0, work(f"{number}"))
    assert len(homes(scheduler.observe(1.0, Capacity("m", 3)))) == 3
    gate = scheduler.hold("m", 1)
    assert gate is not None
    assert gate.kind is GateKind.NO_SEAT


# -- in doubt ------------------------------------------------------------------------------------------------------


def test_in_doubt_lower_bands_start_only_where_the_engine_shows_room() -> None:
    scheduler = shared(policy(BackendSpec("b", 4)))
    scheduler.submit(0.0, work("high", band=0))
    for number in range(3):
        scheduler.submit(0.0, work(f"{number}"))
    scheduler.observe(0.0, Reading("b", 0.0, running=4, waiting=0))
    assert homes(scheduler.observe(0.1, Capacity("m", 4, wary=True))) == {"high": "b"}
    gate = scheduler.hold("m", 1)
    assert gate is not None
    assert gate.kind is GateKind.NO_SEAT
    assert len(homes(scheduler.observe(1.0, Reading("b", 1.0, running=2, waiting=0)))) == 2
    assert len(homes(scheduler.observe(4.1, Capacity("m", 4, wary=True)))) == 1  # the page is too old to be believed


def test_in_doubt_without_a_page_the_part_counts() -> None:
    scheduler = shared(policy(BackendSpec("b", 4)))
    for number in range(3):
        scheduler.submit(0.0, work(f"{number}"))
    assert len(homes(scheduler.observe(0.1, Capacity("m", 2, wary=True)))) == 2


def test_an_observer_is_not_wary() -> None:
    plan = policy(BackendSpec("b", 4), observe_only=True)
    scheduler = shared(plan)
    scheduler.submit(0.0, work("1"))
    scheduler.observe(0.0, Reading("b", 0.0, running=9))
    assert homes(scheduler.observe(0.1, Capacity("m", 4, wary=True))) == {"1": "b"}


def test_seats_found_elsewhere_move_the_own_controller() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", AUTO)))
    scheduler.observe(0.0, Seats("b", 3))
    scheduler.observe(0.0, Reading("b", 0.0, running=0, waiting=0))
    assert scheduler.snapshot(0.0).backends[0].seats == 16
    scheduler.observe(1.0, Capacity("m", 0))
    scheduler.observe(1.0, Seats("b", 20))
    scheduler.submit(1.0, work("1"))
    scheduler.observe(1.0, Reading("b", 1.0, running=19, waiting=0, kv_free=0.5))
    assert scheduler.snapshot(1.0).backends[0].seats == 20
    scheduler.observe(2.0, Reading("b", 2.0, running=20, waiting=0, kv_free=0.5))  # full, by others
    assert scheduler.snapshot(2.0).backends[0].seats > 20


# -- accounts kept elsewhere ---------------------------------------------------------------------------------------


def test_a_tenant_served_elsewhere_waits_here() -> None:
    scheduler = shared(policy())
    scheduler.submit(0.0, work("a", "a"))
    scheduler.submit(0.1, work("b", "b"))
    scheduler.observe(0.2, Counters("m", 1, (("a", 500.0), ("unknown", 1.0))))
    scheduler.observe(0.2, Counters("nowhere", 1, ()))
    assert homes(scheduler.observe(0.3, Granted("m", 1, "b"))) == {"b": "b"}
    scheduler.submit(0.3, work("b2", "b"))
    scheduler.observe(0.4, Counters("m", 1, (("a", 0.0), ("b", 100.0))))
    assert homes(scheduler.observe(0.5, Granted("m", 1, "b"))) == {"a": "b"}


def test_a_parked_flow_takes_its_lead_too() -> None:
    scheduler = Scheduler(policy(tenants=(TenantSpec("a", max_running=1),)))
    scheduler.submit(0.0, work("1"))
    scheduler.submit(0.0, work("2"))
    scheduler.observe(0.0, Capacity("m", 0))
    assert scheduler.observe(0.1, Counters("m", 1, (("a", 5.0),))) == []
