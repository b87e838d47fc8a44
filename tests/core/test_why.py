"""Why a ticket waits: what is ahead of it, how long that takes, and when it gives up."""

from __future__ import annotations

import pytest

from core.test_core_scheduler import BANDS, policy
from tidegate.core import Health, Lease, Outcome, Release, Requeue, Scheduler, TenantSpec, Ticket
from tidegate.core.actions import Dispatch
from tidegate.core.gates import GateKind
from tidegate.core.snapshots import WhyKind


def run(scheduler: Scheduler, now: float, number: str, held_s: float) -> None:
    """Have a request served, so that the pool's rate is known."""
    (action,) = scheduler.submit(now, Ticket(number, "m", 0, "t"))
    assert isinstance(action, Dispatch)
    scheduler.release(now + held_s, action.lease.id, Release(Outcome.COMPLETED))


def busy(scheduler: Scheduler, now: float) -> Lease:
    (action,) = scheduler.submit(now, Ticket("busy", "m", 0, "t"))
    assert isinstance(action, Dispatch)
    return action.lease


def test_it_says_what_is_ahead_and_how_long_that_takes() -> None:
    scheduler = Scheduler(policy(seats=1))
    busy(scheduler, 0.0)
    for number, band in enumerate((0, 0, 1, 1, 2, 2)):
        scheduler.submit(1.0, Ticket(f"w{number}", "m", band, f"t{number}"))
    why = scheduler.why(3.0, "w3")
    assert (why.kind, why.gate and why.gate.kind) == (WhyKind.GATE, GateKind.NO_SEAT)
    assert (why.ahead, why.waited_s) == (3, 2.0)
    assert why.expires_in_s == BANDS[1].ttl_s - 2.0
    assert why.expected_wait_s is None, "nothing has completed yet"
    assert scheduler.why(3.0, "w0").ahead == 1


def test_the_expected_wait_is_that_of_a_newcomer_to_its_flow() -> None:
    scheduler = Scheduler(policy(seats=1))
    run(scheduler, 0.0, "first", 4.0)
    busy(scheduler, 4.0)
    for number in range(3):
        scheduler.submit(5.0, Ticket(f"w{number}", "m", 0, "t"))
    assert scheduler.why(5.0, "w0").expected_wait_s == pytest.approx(12.0)
    assert scheduler.why(5.0, "w2").expected_wait_s == pytest.approx(12.0)


def test_nobody_can_say_how_long_a_gate_stays_closed_or_a_tenant_at_its_limit_waits() -> None:
    tenants = (TenantSpec("a", max_running=1),)
    scheduler = Scheduler(policy(seats=2, tenants=tenants))
    run(scheduler, 0.0, "first", 4.0)
    scheduler.submit(5.0, Ticket("runs", "m", 0, "a"))
    scheduler.submit(5.0, Ticket("held", "m", 0, "a"))
    why = scheduler.why(5.0, "held")
    assert (why.kind, why.expected_wait_s, why.gate) == (WhyKind.TENANT_RUNNING, None, None)
    busy(scheduler, 5.0)
    scheduler.submit(5.0, Ticket("stopped", "m", 0, "b"))
    assert scheduler.why(6.0, "stopped").expected_wait_s is not None
    scheduler.observe(6.0, Health("b", up=False))
    why = scheduler.why(6.0, "stopped")
    assert (why.gate and why.gate.kind, why.expected_wait_s) == (GateKind.NO_BACKEND, None)


def test_work_that_came_back_has_no_end() -> None:
    scheduler = Scheduler(policy(seats=1))
    (action,) = scheduler.submit(0.0, Ticket("low", "m", 2, "t"))
    assert isinstance(action, Dispatch)
    scheduler.submit(0.0, Ticket("high", "m", 0, "t"))
    scheduler.release(1.0, action.lease.id, Requeue())
    why = scheduler.why(1.0, "low")
    assert (why.kind, why.expires_in_s) == (WhyKind.GATE, None)


def test_what_waits_for_other_work_has_nothing_ahead() -> None:
    scheduler = Scheduler(policy(seats=1))
    scheduler.submit(0.0, Ticket("one", "m", 0, "t", name="one"))
    scheduler.submit(0.0, Ticket("two", "m", 0, "t", depends_on=("one",)))
    why = scheduler.why(1.0, "two")
    assert (why.kind, why.ahead, why.expected_wait_s) == (WhyKind.DEPENDENCY, None, None)
    assert why.expires_in_s == 599.0
