"""Work that starts as it arrives, since nothing waits: the accounts that it leaves behind."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from tidegate.core import Action, BackendSpec, Dispatch, Lease, Policy, PoolSpec, Release, Scheduler, Ticket, Turn
from tidegate.core import WorkEstimate as Work
from tidegate.core.fairness import MOST_IDLE

POOLS = (PoolSpec("m", (BackendSpec("a", 2000),)),)


def lease_of(actions: list[Action]) -> Lease:
    (action,) = actions
    assert isinstance(action, Dispatch)
    return action.lease


def test_a_newcomer_whose_floor_is_due_runs_on_its_floor() -> None:
    pools = (PoolSpec("m", (BackendSpec("a", 1),)),)
    p0, p1, *_ = Policy(pools=pools).bands
    bands = (replace(p0, reserve=0, floor=Fraction(0)), replace(p1, reserve=0, floor=Fraction(1, 2)))
    core = Scheduler(Policy(bands=bands, pools=pools, overtake_cap=Fraction(1, 2)))
    first = lease_of(core.submit(0.0, Ticket("1", "m", 0, "t")))
    core.submit(0.0, Ticket("left out once", "m", 1, "t"))
    core.submit(0.0, Ticket("2", "m", 0, "t"))
    second = lease_of(core.release(0.0, first.id, Release()))
    assert second.kind is Turn.TURN
    assert core.cancel(0.0, "left out once") == []
    assert core.release(0.0, second.id, Release()) == []
    assert lease_of(core.submit(0.0, Ticket("3", "m", 1, "t"))).kind is Turn.FLOOR
    assert [row.floors for row in core.snapshot(0.0).bands] == [0, 1]


def test_debts_that_virtual_time_has_caught_up_with_are_forgiven_also_where_nothing_ever_waits() -> None:
    core = Scheduler(Policy(pools=POOLS))
    core.submit(0.0, Ticket("0", "m", 1, "runs on"))
    for number in range(MOST_IDLE + 50):
        ticket = Ticket(f"a{number}", "m", 1, f"t{number}", Work(10))
        core.release(0.0, lease_of(core.submit(0.0, ticket)).id, Release())
    queue = core._state.pools["m"].queues[1]
    assert len(queue.flows) == MOST_IDLE + 51
    for number in range(MOST_IDLE):
        core.submit(0.0, Ticket(f"b{number}", "m", 1, "t0", Work(10)))
    assert len(queue.flows) <= MOST_IDLE + 1
    assert "t0" in queue.flows
    assert "t0" in core._state.tenants.all
