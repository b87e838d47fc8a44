"""What leaves from the middle is forgotten: the structures stay within a constant of what waits."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from tidegate.core import (
    BackendSpec,
    BacklogOrder,
    Band,
    Dispatch,
    Full,
    Order,
    Outcome,
    Policy,
    PoolSpec,
    Progress,
    Release,
    Scheduler,
    TenantSpec,
    Ticket,
    Waiter,
    WorkEstimate,
)
from tidegate.core.fairness import MOST_IDLE
from tidegate.core.names import MOST_REMEMBERED, Names
from tidegate.core.queues import BandQueue


def scheduler_of(order: Order = Order.FIFO, **changes: object) -> Scheduler:
    bands = (Band("p0", 100, 0.05), Band("p1", 20, 0.02, order=order))
    plain = Policy(bands=bands, pools=(PoolSpec("m", (BackendSpec("b", 1),)),))
    scheduler = Scheduler(dataclasses.replace(plain, **changes))  # type: ignore[arg-type]
    scheduler.submit(0.0, Ticket("run", "m", 0, "run"))
    return scheduler


def queue_of(scheduler: Scheduler) -> BandQueue:
    return scheduler._state.pools["m"].queues[1]


def test_an_overtake_may_serve_a_flow_whose_turn_it_is_not() -> None:
    scheduler = scheduler_of(overtake_cap=Fraction(1))
    for name, tenant in (("a0", "a"), ("a1", "a"), ("b0", "b")):
        scheduler.submit(0.0, Ticket(name, "m", 1, tenant, WorkEstimate(10)))
    seen = []
    for lease in range(1, 4):
        scheduler.submit(9000.0, Ticket(f"v{lease}", "m", 0, "v"))
        action = scheduler.release(9000.0, lease, Release())[0]
        assert isinstance(action, Dispatch)
        seen.append((action.ticket.id, action.lease.kind.value))
    # By age: a's second before b's first, whose turn it would be.
    assert seen == [("a0", "overtake"), ("a1", "overtake"), ("b0", "overtake")]
    assert queue_of(scheduler).virtual == 0.0  # b is still at its start


def test_an_overtake_may_empty_the_band_whose_flow_owes() -> None:
    scheduler = scheduler_of(overtake_cap=Fraction(1))
    scheduler.submit(0.0, Ticket("a0", "m", 1, "a", WorkEstimate(10)))
    scheduler.submit(0.0, Ticket("a1", "m", 1, "a", WorkEstimate(10)))
    scheduler.release(0.0, 1, Release())  # a0 runs
    scheduler.submit(9000.0, Ticket("v", "m", 0, "v"))
    (action,) = scheduler.release(9000.0, 2, Release(input_tokens=30, output_tokens=0))
    assert isinstance(action, Dispatch)
    assert (action.ticket.id, action.lease.kind.value) == ("a1", "overtake")
    assert queue_of(scheduler).virtual == 30.0
    assert queue_of(scheduler).order == []


def test_observing_counts_nothing_while_there_is_room() -> None:
    scheduler = scheduler_of(observe_only=True, tenants=(TenantSpec("a", max_queued=5),))
    assert scheduler.submit(0.0, Ticket("a0", "m", 1, "a")) == []
    assert not scheduler._state.pools["m"].would


@pytest.mark.parametrize("order", list(Order))
def test_cancelling_behind_a_head_that_stays(order: Order) -> None:
    scheduler = scheduler_of(order)
    scheduler.submit(0.0, Ticket("stays", "m", 1, "a", WorkEstimate(1), deadline=1.0e6))
    scheduler.submit(0.0, Ticket("early", "m", 1, "a", WorkEstimate(1), deadline=1.0e6, arrived=-5.0))
    for number in range(2000):
        name = str(number)
        scheduler.submit(0.0, Ticket(name, "m", 1, "a", WorkEstimate(9), ttl_s=50.0, arrived=-1.0 * (number % 2)))
        scheduler.cancel(0.0, name)
    flow = queue_of(scheduler).flows["a"]
    assert flow.count == 2
    assert len(flow.line) + len(flow.early) + len(flow.heap or ()) < 300
    assert len(scheduler._state.waiting._early) < 300
    assert scheduler.next_wakeup() == 86400.0


def test_flows_that_come_and_go() -> None:
    scheduler = scheduler_of()
    for number in range(2000):
        name = str(number)
        scheduler.submit(0.0, Ticket("keeps" + name, "m", 1, "z", WorkEstimate(5)))
        scheduler.cancel(0.0, "keeps" + str(number - 1))
        scheduler.submit(0.0, Ticket(name, "m", 1, name, WorkEstimate(5)))
        scheduler.cancel(0.0, name)
    queue = queue_of(scheduler)
    assert len(queue.flows) <= MOST_IDLE + 1
    assert len(scheduler._state.tenants.all) <= MOST_IDLE + 2
    assert len(queue.order) + len(queue._ages) + len(queue._longest) < 10 * MOST_IDLE
    assert scheduler._state.tenants.flows == 2


def test_a_served_flow_is_kept_while_it_owes() -> None:
    """A tenant that goes idle owing tokens finds its debt when it comes back soon, and not later."""
    scheduler = scheduler_of()
    lease = 1
    for number in range(3):
        scheduler.submit(0.0, Ticket(f"a{number}", "m", 1, "a", WorkEstimate(10)))
    scheduler.submit(0.0, Ticket("big", "m", 1, "b", WorkEstimate(25)))

    def next_one() -> str:
        nonlocal lease
        action = scheduler.release(1.0, lease, Release())[0]
        assert isinstance(action, Dispatch)
        lease = action.lease.id
        return action.ticket.id

    assert [next_one(), next_one(), next_one()] == ["a0", "big", "a1"]
    scheduler.submit(1.0, Ticket("more", "m", 1, "b", WorkEstimate(1)))
    assert [next_one(), next_one()] == ["a2", "more"]
    assert scheduler.release(2.0, lease, Release()) == []
    queue = queue_of(scheduler)
    assert all(flow.tag <= queue.virtual for flow in queue.flows.values())  # idle: nobody owes any more


def test_idle_flows_that_owe_are_kept_until_virtual_time_has_passed() -> None:
    scheduler = scheduler_of()
    queue = queue_of(scheduler)
    lease = 1
    scheduler.submit(0.0, Ticket("owes", "m", 1, "owes", WorkEstimate(900)))
    for number in range(1000):
        scheduler.submit(0.0, Ticket(str(number), "m", 1, f"t{number}", WorkEstimate(1)))
    for number in range(3000):
        scheduler.submit(0.0, Ticket(f"z{number}", "m", 1, "z", WorkEstimate(1)))
    for _ in range(1700):
        lease = scheduler.release(1.0, lease, Release())[0].lease.id  # type: ignore[union-attr]
    assert "owes" in queue.flows
    assert len(queue.flows) < MOST_IDLE + 3
    for number in range(1000):
        scheduler.submit(1.0, Ticket(f"w{number}", "m", 1, f"w{number}", WorkEstimate(1)))
    for _ in range(3200):
        lease = scheduler.release(2.0, lease, Release())[0].lease.id  # type: ignore[union-attr]
    assert "owes" not in queue.flows


def test_a_reawakened_flow_is_not_forgotten_for_its_old_debt() -> None:
    scheduler = scheduler_of()
    scheduler.submit(0.0, Ticket("a", "m", 1, "a", WorkEstimate(10)))
    for number in range(9):
        scheduler.submit(0.0, Ticket(f"z{number}", "m", 1, "z", WorkEstimate(10)))
    scheduler.release(1.0, 1, Release())
    scheduler.release(1.0, 2, Release())  # a is idle now and owes ten
    scheduler.submit(1.0, Ticket("a2", "m", 1, "a", WorkEstimate(10)))
    for number in range(400):
        scheduler.submit(1.0, Ticket(str(number), "m", 1, str(number), WorkEstimate(1)))
        scheduler.cancel(1.0, str(number))
    assert "a" in queue_of(scheduler).flows
    for lease in range(3, 12):
        scheduler.release(1.0, lease, Release())
    assert scheduler.snapshot(1.0).queued == 0


def test_the_same_expiry_twice() -> None:
    scheduler = scheduler_of(max_flows=1)
    for name in "abc":
        scheduler.submit(0.0, Ticket(name, "m", 1, name, ttl_s=5.0))
        scheduler.submit(0.0, Ticket(name + "2", "m", 1, name))
    assert [action.ticket.id for action in scheduler.tick(5.0)] == ["a", "b", "c"]


def test_ended_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_REMEMBERED == 100_000
    names = Names()
    tickets = [Ticket(str(number), "m", 0, "a", name=f"n{number % 150_000}") for number in range(300)]
    scheduler = scheduler_of()
    for ticket in tickets:
        scheduler.submit(0.0, ticket)
        scheduler.cancel(0.0, ticket.id)
    done = scheduler._state.names
    assert done.outcome("a/n0", 0.0) == Outcome.CANCELLED
    assert names.is_unknown("a/n0", 0.0)
    monkeypatch.setattr("tidegate.core.names.MOST_REMEMBERED", 100)
    assert done.outcome("a/n0", 0.0) is None
    assert done.outcome("a/n299", 0.0) == Outcome.CANCELLED


def test_names_that_come_back_are_remembered_by_their_latest_end() -> None:
    scheduler = scheduler_of()
    for at in (0.0, 300.0):
        scheduler.submit(at, Ticket("x", "m", 1, "a", name="x"))
        scheduler.cancel(at, "x")
    assert scheduler.status(700.0, "a/x").outcome == Outcome.CANCELLED
    assert scheduler.status(900.0, "a/x").outcome is None


def test_an_older_bearer_of_a_name_may_still_be_lent_to() -> None:
    scheduler = scheduler_of()
    scheduler.submit(0.0, Ticket("old", "m", 1, "a", name="x"))
    scheduler.submit(0.0, Ticket("top", "m", 0, "a", depends_on=("x",)))
    scheduler.submit(0.0, Ticket("new", "m", 1, "a", name="x"))
    scheduler.cancel(0.0, "top")  # old goes home; the name is not its any more
    assert scheduler.status(0.0, "a/x").ticket_id == "new"
    assert scheduler.snapshot(0.0).bands[1].depth == 2


def test_early_expiries_that_were_cancelled_are_swept() -> None:
    scheduler = scheduler_of()
    scheduler.submit(0.0, Ticket("long", "m", 1, "a"))
    scheduler.submit(0.0, Ticket("first", "m", 1, "a", ttl_s=1.0))
    for number in range(1000):
        scheduler.submit(0.0, Ticket(str(number), "m", 1, "a", ttl_s=2.0 + number))
        scheduler.cancel(0.0, str(number))
    assert len(scheduler._state.waiting._early) < 200
    assert scheduler.next_wakeup() == 1.0


def test_newest_first_looks_past_what_was_cancelled() -> None:
    scheduler = scheduler_of()
    bands = tuple(dataclasses.replace(band, backlog_order=BacklogOrder.NEWEST_FIRST) for band in scheduler.policy.bands)
    scheduler.set_policy(0.0, dataclasses.replace(scheduler.policy, bands=bands, backlog_after_s=0.0))
    for name, arrived in (("a", -1.0), ("b", 0.0), ("c", -3.0), ("d", -2.0)):
        scheduler.submit(0.0, Ticket(name, "m", 1, "a", arrived=arrived))
    for name in ("b", "a", "d"):
        scheduler.cancel(0.0, name)
    assert scheduler.release(1.0, 1, Release())[0].ticket.id == "c"


def test_sweeping_an_sjf_line_that_was_displaced_from() -> None:
    scheduler = scheduler_of(Order.SJF, queue_capacity=2)
    scheduler.submit(0.0, Ticket("small", "m", 1, "a", WorkEstimate(1)))
    scheduler.submit(0.0, Ticket("large", "m", 1, "a", WorkEstimate(5000)))
    assert scheduler.submit(0.0, Ticket("v", "m", 0, "v"))[0].ticket.id == "large"
    for number in range(200):
        scheduler.cancel(0.0, "v" if not number else str(number - 1))
        scheduler.submit(0.0, Ticket(str(number), "m", 1, "a", WorkEstimate(100 + number)))
    assert scheduler.submit(0.0, Ticket("v2", "m", 0, "v"))[0].ticket.id == "199"


def test_waits_leave_nothing_behind() -> None:
    scheduler = scheduler_of()
    names = scheduler._state.names
    scheduler.submit(0.0, Ticket("job", "m", 1, "a", name="job"))
    scheduler.submit(0.0, Ticket("w1", "m", 0, "a", depends_on=("job", "ghost")))
    scheduler.submit(0.0, Ticket("w2", "m", 0, "a", depends_on=("ghost",)))
    scheduler.observe(0.0, Waiter("c", "a", 0, "a/job", waiting=True))
    scheduler.observe(0.0, Waiter("c", "a", 1, "a/job", waiting=True))
    scheduler.cancel(0.0, "w1")
    scheduler.cancel(0.0, "w2")
    scheduler.observe(0.0, Waiter("c", "a", 1, "a/job", waiting=False))
    assert (names.works, names._unknown, names.callers, names.parked) == ({}, {}, {}, {})
    assert scheduler.snapshot(0.0).bands[1].depth == 1  # back in its own band


def test_names_that_ended_ten_minutes_ago_go_as_others_end() -> None:
    scheduler = scheduler_of()
    names = scheduler._state.names
    scheduler.release(0.0, 1, Release())
    for now in (0.0, 1.0, 700.0):
        (dispatch,) = scheduler.submit(now, Ticket(f"t{now}", "m", 0, "a", name=f"job{now}"))
        assert isinstance(dispatch, Dispatch)
        scheduler.release(now, dispatch.lease.id, Release())
    assert [name for _, name in names._order] == list(names._done) == ["a/job700.0"]


def test_a_caller_waits_for_work_that_then_ends() -> None:
    scheduler = scheduler_of()
    scheduler.submit(0.0, Ticket("job", "m", 1, "a", name="job"))
    scheduler.submit(0.0, Ticket("job2", "m", 1, "a", name="job"))
    scheduler.observe(0.0, Waiter("c", "a", 0, "a/job", waiting=True))
    scheduler.cancel(0.0, "job")  # the older one of the name: nobody waits for it
    scheduler.cancel(0.0, "job2")
    assert scheduler.status(0.0, "a/job").progress == Progress.DONE
    assert scheduler.observe(0.0, Waiter("c", "a", 0, "a/job", waiting=False)) == []


def test_lent_chains_follow_when_the_waiter_leaves() -> None:
    """p0 waits for a parked p1, which waits for two of p2: both run in p0, and go home when the p0 leaves."""
    bands = (Band("p0", 100, 0.05), Band("p1", 20, 0.02), Band("p2", 1, 0.005))
    scheduler = scheduler_of(bands=bands)
    for name in ("x", "y"):
        scheduler.submit(0.0, Ticket(name, "m", 2, "a", name=name))
    scheduler.submit(0.0, Ticket("z", "m", 2, "a", name="z", depends_on=("x",)))
    scheduler.submit(0.0, Ticket("mid", "m", 1, "a", name="mid", depends_on=("z", "y")))
    depths = [row.depth for row in scheduler.snapshot(0.0).bands]
    assert depths == [0, 2, 0]
    scheduler.submit(0.0, Ticket("top", "m", 0, "a", depends_on=("mid",)))
    assert [row.depth for row in scheduler.snapshot(0.0).bands] == [2, 0, 0]
    scheduler.cancel(0.0, "top")
    assert [row.depth for row in scheduler.snapshot(0.0).bands] == [0, 2, 0]
    scheduler.cancel(0.0, "mid")
    assert [row.depth for row in scheduler.snapshot(0.0).bands] == [0, 0, 2]


def test_a_name_that_appears_is_lent_to_at_once() -> None:
    scheduler = scheduler_of()
    scheduler.submit(0.0, Ticket("top", "m", 0, "a", depends_on=("late",)))
    scheduler.submit(1.0, Ticket("late", "m", 1, "a", name="late"))
    assert [row.depth for row in scheduler.snapshot(1.0).bands] == [1, 0]
    late = scheduler_of()
    late.submit(0.0, Ticket("top", "m", 0, "a", depends_on=("late",)))
    late.submit(0.0, Ticket("base", "m", 1, "a", name="base"))
    late.submit(1.0, Ticket("late", "m", 1, "a", name="late", depends_on=("base",)))
    assert [row.depth for row in late.snapshot(1.0).bands] == [1, 0]
    assert late.tick(2.0) == []  # the grace was for the unknown name only


def test_a_seat_kept_for_p0_is_open_to_what_p0_waits_for() -> None:
    bands = (Band("p0", 100, 0.05, reserve=1), Band("p1", 20, 0.02))
    scheduler = scheduler_of(bands=bands, pools=(PoolSpec("m", (BackendSpec("b", 2),)),))
    assert scheduler.submit(0.0, Ticket("job", "m", 1, "a", name="job")) == []
    actions = scheduler.submit(0.0, Ticket("top", "m", 0, "a", depends_on=("job",)))
    assert [type(action).__name__ for action in actions] == ["Promote", "Dispatch"]


def test_lent_work_is_not_the_oldest_to_evict() -> None:
    bands = (Band("p0", 100, 0.05), Band("p1", 20, 0.02, capacity=2, full=Full.EVICT_OLDEST))
    scheduler = scheduler_of(bands=bands)
    scheduler.submit(0.0, Ticket("job", "m", 1, "a", name="job"))
    scheduler.submit(0.0, Ticket("next", "m", 1, "a"))
    scheduler.submit(0.0, Ticket("top", "m", 0, "a", depends_on=("job",)))
    assert [action.ticket.id for action in scheduler.submit(1.0, Ticket("new", "m", 1, "a"))] == ["next"]


def test_displacing_from_an_sjf_band_takes_what_would_be_served_last() -> None:
    scheduler = scheduler_of(Order.SJF, queue_capacity=3)
    for name, tokens in (("small", 10), ("large", 9000), ("medium", 500)):
        scheduler.submit(0.0, Ticket(name, "m", 1, "a", WorkEstimate(tokens)))
    gone = [scheduler.submit(0.0, Ticket(f"v{number}", "m", 0, "v"))[0].ticket.id for number in range(2)]
    assert gone == ["large", "medium"]


def test_displacing_takes_from_the_longest_backlog_over_pools() -> None:
    pools = (PoolSpec("m", (BackendSpec("b", 1),)), PoolSpec("n", (BackendSpec("c", 1),)))
    scheduler = scheduler_of(queue_capacity=6, pools=pools)
    scheduler.submit(0.0, Ticket("runs too", "n", 0, "run"))
    for name, pool, tenant in (("1", "m", "a"), ("2", "n", "b"), ("3", "n", "b"), ("4", "n", "b"), ("5", "n", "c")):
        scheduler.submit(0.0, Ticket(name, pool, 1, tenant))
    scheduler.cancel(0.0, "3")
    scheduler.cancel(0.0, "5")
    for number in range(6):
        scheduler.submit(0.0, Ticket(f"v{number}", "m", 0, "v"))
    gone = [row.depth for row in scheduler.snapshot(0.0).bands]
    assert gone == [6, 0, 0, 0]


def test_raising_the_tenants_weight_live_changes_its_share() -> None:
    scheduler = scheduler_of()
    for number in range(30):
        for tenant in "ab":
            scheduler.submit(0.0, Ticket(f"{tenant}{number}", "m", 1, tenant))
    policy = dataclasses.replace(scheduler.policy, tenants=(TenantSpec("a", weight=4.0),))
    scheduler.set_policy(0.0, policy)
    served = [scheduler.release(1.0, lease, Release())[0].ticket.tenant for lease in range(1, 21)]
    assert served.count("a") == 16
    assert Fraction(served.count("b"), 20) == Fraction(1, 5)
