"""Ways into a wait that nothing ended: bands that a mode has closed before, names that nobody sends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.capacity_stage import changed, homes, leases, policy, refusals, ticket
from tidegate.core import (
    BackendSpec,
    Full,
    Paused,
    Policy,
    Reason,
    Release,
    Requeue,
    Scheduler,
    Waiter,
)

ONE = BackendSpec("b", 1)
CLOSED = policy(ONE, bands=changed(2, admit=False))
LENDS = Waiter("w", "a", 0, "a/low", waiting=True)


def end(scheduler: Scheduler, now: float) -> dict[str, Reason]:
    """Do what is due at once; return who goes."""
    assert scheduler.next_wakeup() == now
    gone = refusals(scheduler.tick(now))
    assert scheduler.next_wakeup() != now
    return gone


# -- a band that a mode has closed ----------------------------------------------------------------------------------


def held(plan: Policy = CLOSED) -> tuple[Scheduler, int]:
    """Return a scheduler of one seat, which p0 has, and its lease."""
    scheduler = Scheduler(plan)
    (lease,) = leases(scheduler.submit(0.0, ticket("high", 0, name="high"))).values()
    return scheduler, lease


@pytest.mark.parametrize("patient", [False, True])
def test_what_it_depended_on_ends_in_a_mode_that_closes_its_band(*, patient: bool) -> None:
    scheduler, lease = held(policy(ONE))
    scheduler.submit(0.5, ticket("low", 2, depends_on=("high",), patient=patient))
    assert refusals(scheduler.set_policy(1.0, CLOSED)) == {}, "it waits for its dependency"
    assert homes(scheduler.release(2.0, lease, Release())) == {}
    if patient:
        assert scheduler.next_wakeup() != 2.0
        assert list(homes(scheduler.set_policy(3.0, policy(ONE)))) == ["low"]
    else:
        assert end(scheduler, 2.0) == {"low": Reason.SHED}


def test_who_waited_for_it_leaves_in_a_mode_that_closes_its_band() -> None:
    scheduler, _ = held(policy(ONE))
    scheduler.submit(0.5, ticket("low", 2, name="low"))
    scheduler.observe(0.6, LENDS)
    assert refusals(scheduler.set_policy(1.0, CLOSED)) == {}, "it runs in the band of who waits for it"
    scheduler.observe(2.0, replace(LENDS, waiting=False))
    assert end(scheduler, 2.0) == {"low": Reason.SHED}


def test_who_waits_for_it_has_nothing_to_lend_in_a_mode_that_closes_its_band() -> None:
    scheduler, _ = held(policy(ONE))
    scheduler.submit(0.5, ticket("waits", 2, depends_on=("low",)))
    scheduler.set_policy(1.0, CLOSED)
    scheduler.submit(1.5, ticket("low", 2, name="low"))
    assert end(scheduler, 1.5) == {"low": Reason.SHED, "waits": Reason.DEPENDENCY_FAILED}


@pytest.mark.parametrize("begun", [False, True])
def test_an_engine_is_busy_in_a_mode_that_closes_its_band(*, begun: bool) -> None:
    scheduler = Scheduler(policy(ONE))
    (low,) = leases(scheduler.submit(0.0, ticket("low", 2))).values()
    scheduler.submit(0.5, ticket("high", 0))
    scheduler.set_policy(1.0, CLOSED)
    assert list(homes(scheduler.release(2.0, low, Requeue(begun=begun)))) == ["high"]
    if begun:
        assert scheduler.next_wakeup() is None
    else:
        assert end(scheduler, 2.0) == {"low": Reason.SHED}


@pytest.mark.parametrize("begun", [False, True])
def test_an_engine_fails_and_no_other_has_a_seat_in_a_mode_that_closes_its_band(*, begun: bool) -> None:
    two = BackendSpec("b", 1), BackendSpec("c", 1)
    scheduler = Scheduler(policy(*two))
    (low,) = leases(scheduler.submit(0.0, ticket("low", 2))).values()
    (high,) = leases(scheduler.submit(0.5, ticket("high", 0))).values()
    scheduler.set_policy(1.0, policy(*two, bands=changed(2, admit=False)))
    assert scheduler.release(2.0, low, Requeue(avoid=True, begun=begun)) == []
    if begun:
        assert scheduler.next_wakeup() is None
        assert list(homes(scheduler.release(3.0, high, Release()))) == ["low"]
    else:
        assert end(scheduler, 2.0) == {"low": Reason.SHED}


def test_nothing_is_shut_out_while_the_rules_are_only_observed() -> None:
    scheduler = Scheduler(replace(CLOSED, observe_only=True))
    (low,) = leases(scheduler.submit(0.0, ticket("low", 2))).values()
    scheduler.submit(0.5, ticket("high", 0))
    assert list(homes(scheduler.release(2.0, low, Requeue()))) == ["low"]
    assert scheduler.next_wakeup() is None


# -- what has begun, back in its own band ---------------------------------------------------------------------------


def returned() -> Scheduler:
    """Return a scheduler whose seat is taken; who waited for a request with a part of its answer has left."""
    scheduler = Scheduler(policy(ONE))
    (low,) = leases(scheduler.submit(0.0, ticket("low", 2, name="low"))).values()
    scheduler.submit(0.5, ticket("high", 0))
    scheduler.release(1.0, low, Requeue(begun=True))
    scheduler.observe(1.5, LENDS)
    scheduler.observe(2.0, replace(LENDS, waiting=False))
    return scheduler


def test_a_mode_leaves_it_where_it_is() -> None:
    scheduler = returned()
    assert refusals(scheduler.set_policy(3.0, CLOSED)) == {}
    assert homes(scheduler.release(4.0, 2, Release())) == {"low": "b"}


def test_a_newcomer_does_not_displace_it() -> None:
    scheduler = returned()
    scheduler.set_policy(3.0, policy(ONE, bands=changed(2, capacity=1, full=Full.EVICT_OLDEST)))
    assert refusals(scheduler.submit(4.0, ticket("new", 2))) == {"new": Reason.QUEUE_FULL}
    scheduler.set_policy(5.0, policy(ONE, queue_capacity=1))
    assert refusals(scheduler.submit(6.0, ticket("another", 1))) == {"another": Reason.QUEUE_FULL}


def test_others_expire_when_they_did() -> None:
    scheduler = returned()
    scheduler.submit(3.0, ticket("new", 2, ttl_s=4.0))
    assert scheduler.next_wakeup() == 7.0
    assert refusals(scheduler.tick(7.0)) == {"new": Reason.EXPIRED}


# -- names that nobody sends ----------------------------------------------------------------------------------------

OBSERVED = replace(policy(ONE), observe_only=True)


def test_observing_ends_the_wait_for_a_name_that_nobody_sends() -> None:
    scheduler = Scheduler(OBSERVED)
    scheduler.submit(0.0, ticket("waits", 2, depends_on=("nobody",)))
    assert scheduler.next_wakeup() == 2.0
    assert refusals(scheduler.tick(2.0)) == {"waits": Reason.DEPENDENCY_FAILED}
    assert scheduler.next_wakeup() is None


def test_observing_begins_while_a_name_is_awaited() -> None:
    scheduler = Scheduler(policy(ONE))
    scheduler.submit(0.0, ticket("waits", 2, depends_on=("nobody",)))
    scheduler.set_policy(1.0, OBSERVED)
    assert scheduler.next_wakeup() == 2.0
    assert refusals(scheduler.tick(2.0)) == {"waits": Reason.DEPENDENCY_FAILED}


def test_observing_waits_on_for_a_name_that_has_come() -> None:
    scheduler = Scheduler(OBSERVED)
    scheduler.submit(0.0, ticket("waits", 2, depends_on=("late",)))
    (lease,) = leases(scheduler.submit(1.0, ticket("late", 2, name="late"))).values()
    assert scheduler.tick(2.0) == []
    assert scheduler.next_wakeup() is None
    assert scheduler.tick(1000.0) == []
    assert list(homes(scheduler.release(2000.0, lease, Release()))) == ["waits"]


def test_observing_forgets_who_waits_no_more_for_a_name() -> None:
    scheduler = Scheduler(OBSERVED)
    scheduler.submit(0.0, ticket("waits", 2, depends_on=("nobody",)))
    scheduler.submit(0.5, ticket("too", 2, depends_on=("nobody",)))
    scheduler.cancel(1.0, "waits")
    assert scheduler.next_wakeup() == 2.5
    assert refusals(scheduler.tick(2.5)) == {"too": Reason.DEPENDENCY_FAILED}


def test_observing_ends_so_many_at_a_time() -> None:
    scheduler = Scheduler(OBSERVED)
    for number in range(300):
        scheduler.submit(0.0, ticket(str(number), 2, depends_on=("nobody",)))
    assert len(scheduler.tick(2.0)) == 255
    assert scheduler.next_wakeup() == 2.0
    assert len(scheduler.tick(2.0)) == 45
    assert scheduler.next_wakeup() is None


# -- a cache that is looked at no more ------------------------------------------------------------------------------


def test_a_cache_of_no_known_size_any_more_closes_no_band() -> None:
    marked = changed(2, kv_watermark=0.5, kv_resume=0.6)
    scheduler = Scheduler(policy(BackendSpec("b", 9, kv_tokens=100), BackendSpec("c", 0), bands=marked))
    scheduler.submit(0.0, ticket("large", 0, 90))
    assert scheduler.submit(1.0, ticket("waits", 2, 9)) == []
    scheduler.observe(1.5, Paused("c", 99.0))
    found = scheduler.set_policy(2.0, policy(BackendSpec("b", 9), BackendSpec("c", 0), bands=marked))
    assert homes(found) == {"waits": "b"}


# -- a model that is taken out of the settings ----------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_to_go_on_ends_with_its_model(when: str) -> None:
    scheduler = Scheduler(policy(ONE))
    (low,) = leases(scheduler.submit(0.0, ticket("low", 2))).values()
    scheduler.submit(0.0, ticket("high", 0))
    scheduler.submit(0.0, ticket("parked", 0, depends_on=("nobody",)))
    gone = {}
    if when == "after":
        scheduler.set_policy(0.5, policy(ONE, pools=()))
    assert refusals(scheduler.release(1.0, low, Requeue(begun=True))) == {}
    if when == "before":
        gone = refusals(scheduler.set_policy(1.5, policy(ONE, pools=())))
    assert (gone or end(scheduler, 1.0)) == {"low": Reason.NO_BACKEND}
    assert scheduler.next_wakeup() == 2.0
