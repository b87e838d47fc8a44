"""Which backend takes a request, and seats and reserves that are found by measuring."""

from __future__ import annotations

from core.capacity_stage import changed, homes, leases, policy, ticket
from tidegate.core import AUTO, BackendSpec, Paused, Reading, Release, Scheduler

# -- choice of a backend -------------------------------------------------------------------------------------------


def test_shared_beginnings_go_to_one_backend_while_it_is_not_overloaded() -> None:
    specs = tuple(BackendSpec(name, 16) for name in "abcd")
    scheduler = Scheduler(policy(*specs))
    seen: list[str] = []
    for number in range(40):
        seen += homes(scheduler.submit(0.0, ticket(str(number), affinity=77 if number % 2 else 0))).values()
    mine = [name for number, name in enumerate(seen) if number % 2]
    favourite = max(set(mine), key=mine.count)
    assert mine.count(favourite) >= 10
    assert mine[:3] == [favourite] * 3 or mine.count(favourite) > 12
    loads = [backend.running for backend in scheduler.snapshot(0.0).backends]
    assert max(loads) <= 1.25 * sum(loads) / 4 + 1


def test_different_beginnings_spread() -> None:
    scheduler = Scheduler(policy(*(BackendSpec(name, 100) for name in "abcd")))
    seen = set()
    for number in range(1, 40):
        actions = scheduler.submit(0.0, ticket(str(number), affinity=number))
        seen.add(homes(actions)[str(number)])
        scheduler.release(0.0, leases(actions)[str(number)], Release())
    assert seen == set("abcd")


def test_with_every_near_backend_overloaded_the_least_loaded_takes_it() -> None:
    scheduler = Scheduler(policy(BackendSpec("a", 2), BackendSpec("b", 9)))
    for number in range(2):
        scheduler.submit(0.0, ticket(str(number), 1, 1000))
    scheduler.observe(0.0, Paused("b", 9.0))
    assert homes(scheduler.submit(0.0, ticket("x", affinity=5))) == {"x": "a"}


# -- seats and reserves found by themselves ------------------------------------------------------------------------


def test_auto_seats_follow_the_engine() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", AUTO)))
    for number in range(40):
        scheduler.submit(0.0, ticket(str(number)))
    assert scheduler.snapshot(0.0).backends[0].seats == 16
    grown = scheduler.observe(1.0, Reading("b", 1.0, 0.5, 16, 0, 0))
    assert len(leases(grown)) == 16
    scheduler.observe(2.0, Reading("b", 2.0, 0.5, 20, 12, 0))
    assert scheduler.snapshot(2.0).backends[0].seats == 21
    for lease in range(1, 16):
        scheduler.release(2.5, lease, Release())
    scheduler.observe(3.0, Paused("b", 4.0))
    assert scheduler.snapshot(3.0).backends[0].seats == 18


def test_auto_seats_without_pages_step_by_answers() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", AUTO)))
    for number in range(60):
        scheduler.submit(0.0, ticket(str(number)))
    scheduler.release(1.0, 1, Release(ttft_s=0.1))
    assert scheduler.snapshot(1.0).backends[0].seats > 16
    seats = scheduler.snapshot(1.0).backends[0].seats
    scheduler.release(1.5, 2, Release(ttft_s=0.1))  # not a second later
    assert scheduler.snapshot(1.5).backends[0].seats == seats


def test_auto_seats_keep_over_a_policy_change_and_give_way_to_a_number() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", AUTO)))
    for number in range(40):
        scheduler.submit(0.0, ticket(str(number)))
    scheduler.observe(1.0, Reading("b", 1.0, 0.5, 16, 0, 0))
    scheduler.set_policy(2.0, policy(BackendSpec("b", AUTO), queue_capacity=99))
    assert scheduler.snapshot(2.0).backends[0].seats == 32
    scheduler.set_policy(2.0, policy(BackendSpec("b", 5)))
    assert scheduler.snapshot(2.0).backends[0].seats == 5
    scheduler.set_policy(3.0, policy(BackendSpec("b", AUTO)))
    assert scheduler.snapshot(3.0).backends[0].seats == 5


def test_the_automatic_reserve_grows_with_the_guarded_arrivals() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 16), bands=changed(0, reserve=AUTO)))
    for number in range(30):
        scheduler.submit(0.0, ticket(f"low{number}", 2))
    assert scheduler.snapshot(0.0).running == 16
    for number in range(60):
        scheduler.submit(number * 0.05, ticket(f"v{number}", 0, ttl_s=0.04))
    scheduler.release(3.0, 1, Release())
    band = scheduler.snapshot(3.0).bands[0]
    assert band.reserve == 4  # a quarter at most
    assert band.reserve_short
    assert scheduler.snapshot(3.0).running == 15
    assert scheduler.release(3.0, 2, Release()) == []
    scheduler.set_policy(4.0, policy(BackendSpec("b", 16), bands=changed(0, reserve=AUTO), queue_capacity=9999))
    assert scheduler.snapshot(4.0).bands[0].reserve == 4
