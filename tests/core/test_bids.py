"""What a scheduler that shares its seats asks for: its best tickets, in the order in which they would run."""

from __future__ import annotations

import random
from typing import Any

import pytest

from core.capacity_stage import changed, leases, policy
from tidegate.core import (
    MOST_HEADS,
    BackendSpec,
    BacklogOrder,
    Bid,
    Capacity,
    Dispatch,
    Drain,
    Granted,
    Health,
    Order,
    Paused,
    Policy,
    Reading,
    Release,
    Requeue,
    Scheduler,
    TenantSpec,
    Ticket,
    WorkEstimate,
)

SHARED = Capacity("m", 0, share=4)


def shared(plan: Policy) -> Scheduler:
    scheduler = Scheduler(plan)
    assert scheduler.observe(0.0, SHARED) == []
    return scheduler


def work(ident: str, tenant: str = "a", tokens: int = 100, band: int = 1, **more: Any) -> Ticket:
    return Ticket(ident, "m", band, tenant, WorkEstimate(tokens), **more)


def bid_of(scheduler: Scheduler, band: int = 1, now: float = 0.0) -> Bid:
    return next(bid for bid in scheduler.bids(now, "m").bids if bid.band == band)


def payers(bid: Bid) -> list[str]:
    return [head.payer for head in bid.heads]


def test_a_flow_that_returns_to_an_earlier_tag_bids_for_each_of_its_tickets_once() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 4)))
    scheduler.observe(0.0, Capacity("m", 1, share=4))
    (first,) = scheduler.submit(0.0, work("1", tokens=900))
    assert isinstance(first, Dispatch)
    for ident, tokens in (("2", 400), ("3", 300), ("4", 200)):
        scheduler.submit(0.0, work(ident, tokens=tokens))
    scheduler.release(1.0, first.lease.id, Release(input_tokens=500, output_tokens=0))  # 2 runs: the tag is 900 anew
    assert [head.cost for head in bid_of(scheduler, now=1.0).heads] == [300, 200]


def test_an_empty_pool_bids_nothing_and_says_what_it_uses() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 4), BackendSpec("c", 2)))
    scheduler.submit(0.0, work("1"))
    found = scheduler.bids(1.0, "m")
    assert sorted(found.used) == [("b", 1), ("c", 0)]
    assert found.bids == ()


def test_a_pool_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(KeyError):
        Scheduler(policy()).bids(0.0, "nowhere")


def test_heads_take_turns_between_flows_as_dispatches_would() -> None:
    scheduler = shared(policy())
    for number in range(3):
        scheduler.submit(0.1 * number, work(f"a{number}", "a"))
    scheduler.submit(1.0, work("b", "b"))
    bid = bid_of(scheduler, now=2.0)
    assert payers(bid) == ["a", "b", "a", "a"]
    assert [head.arrived for head in bid.heads] == [0.0, 1.0, 0.1, 0.2]
    assert (bid.count, bid.oldest.arrived, bid.backends) == (4, 0.0, ("b",))
    assert scheduler.waiting("m", 1) == 4


def test_more_than_eight_are_counted_but_not_listed() -> None:
    scheduler = shared(policy())
    for number in range(20):
        scheduler.submit(0.0, work(f"{number}", f"t{number}"))
    bid = bid_of(scheduler)
    assert (bid.count, len(bid.heads)) == (20, MOST_HEADS)


def test_shortest_first_lists_the_shortest_and_dies_not_of_the_dead() -> None:
    scheduler = shared(policy(bands=changed(1, order=Order.SJF), sjf_aging=0.0))
    for number, tokens in enumerate([500, 100, 300, 200, 400, 50]):
        scheduler.submit(0.01 * number, work(f"{number}", tokens=tokens))
    scheduler.cancel(0.1, "1")
    scheduler.cancel(0.1, "2")
    bid = bid_of(scheduler)
    assert [head.cost for head in bid.heads] == [50, 200, 400, 500]
    assert bid.oldest.cost == 500


def test_a_long_heap_is_looked_at_in_part() -> None:
    scheduler = shared(policy(bands=changed(1, order=Order.SJF), sjf_aging=0.0))
    for number in range(300):
        scheduler.submit(0.0, work(f"{number}", tokens=1 + number))
    for number in range(1, 90):  # dead ones, too few to be swept out, lie below the first
        scheduler.cancel(0.0, f"{number}")
    costs = [head.cost for head in bid_of(scheduler).heads]
    assert costs[0] == 1
    assert costs == sorted(costs)


def test_newest_first_lists_the_newest() -> None:
    plan = policy(bands=changed(1, backlog_order=BacklogOrder.NEWEST_FIRST))
    scheduler = shared(plan)
    for number in range(4):
        scheduler.submit(0.1 * number, work(f"{number}"))
    assert [head.arrived for head in bid_of(scheduler, now=0.5).heads] == [0.0, 0.1, 0.2, pytest.approx(0.3)]
    assert [head.arrived for head in bid_of(scheduler, now=2.0).heads] == [pytest.approx(0.3), 0.2, 0.1, 0.0]


def test_work_that_came_back_keeps_its_place() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1)))
    held = leases(scheduler.submit(0.0, work("1")))["1"]
    for number in range(2, 5):
        scheduler.submit(0.1 * number, work(f"{number}"))
    scheduler.observe(0.6, SHARED)
    scheduler.release(0.7, held, Requeue())
    assert [head.arrived for head in bid_of(scheduler, now=1.0).heads] == [0.0, 0.2, pytest.approx(0.3), 0.4]


def test_a_policy_changed_live_reorders_what_is_listed() -> None:
    scheduler = shared(policy())
    for number, tokens in enumerate([500, 100, 300]):
        scheduler.submit(0.01 * number, work(f"{number}", tokens=tokens))
    scheduler.set_policy(0.1, policy(bands=changed(1, order=Order.SJF)))
    assert [head.cost for head in bid_of(scheduler, now=0.1).heads] == [100, 300, 500]


def test_a_tenant_at_its_limit_does_not_bid() -> None:
    plan = policy(tenants=(TenantSpec("a", max_running=1),))
    scheduler = Scheduler(plan)
    scheduler.submit(0.0, work("1"))
    scheduler.observe(0.0, SHARED)
    scheduler.submit(0.0, work("2"))
    assert scheduler.bids(0.0, "m").bids == ()
    scheduler.submit(0.0, work("3", "b"))
    bid = bid_of(scheduler)
    assert (bid.count, payers(bid)) == (1, ["b"])


def test_a_named_tenant_pays_for_all_its_flows_and_others_for_each() -> None:
    scheduler = shared(policy(tenants=(TenantSpec("gold", weight=2.0),)))
    scheduler.submit(0.0, work("1", "gold", flow="x"))
    scheduler.submit(0.0, work("2", "iron", flow="x"))
    assert payers(bid_of(scheduler)) == ["gold", "iron\0x"]


def test_shared_beginnings_ask_for_the_backend_that_has_seen_them() -> None:
    scheduler = shared(policy(BackendSpec("b", 4), BackendSpec("c", 4)))
    for number in range(1, 9):
        scheduler.submit(0.0, work(f"{number}", affinity=number))
    asked = [head.prefer for head in bid_of(scheduler).heads]
    assert set(asked) == {"b", "c"}
    scheduler.submit(0.0, work("9", band=0))
    assert bid_of(scheduler, 0).heads[0].prefer is None


# -- gates ---------------------------------------------------------------------------------------------------------


def test_a_backend_that_is_down_or_pauses_is_not_asked_for() -> None:
    scheduler = shared(policy(BackendSpec("b", 4), BackendSpec("c", 4)))
    scheduler.submit(0.0, work("1"))
    assert bid_of(scheduler).backends == ("b", "c")
    scheduler.observe(0.0, Health("b", up=False))
    assert bid_of(scheduler).backends == ("c",)
    scheduler.observe(0.0, Paused("c", 5.0))
    assert scheduler.bids(1.0, "m").bids == ()
    assert bid_of(scheduler, now=6.0).backends == ("c",)


def test_a_watermark_stops_the_bids_of_its_band_alone() -> None:
    scheduler = shared(policy(bands=changed(2, kv_watermark=0.2, kv_resume=0.3)))
    scheduler.submit(0.0, work("1"))
    scheduler.submit(0.0, work("2", band=2))
    scheduler.observe(0.0, Reading("b", 0.0, kv_free=0.1, kv_tokens=10_000))
    assert [bid.band for bid in scheduler.bids(0.1, "m").bids] == [1]


def test_a_mode_that_closes_a_band_stops_its_bids() -> None:
    scheduler = shared(policy())
    scheduler.submit(0.0, work("1", band=2, patient=True))
    scheduler.set_policy(0.0, policy(bands=changed(2, admit=False)))
    assert scheduler.bids(0.0, "m").bids == ()


def test_nobody_bids_while_draining() -> None:
    scheduler = shared(policy())
    for number in range(400):
        scheduler.submit(0.0, work(f"{number}"))
    scheduler.observe(0.0, Drain())
    assert scheduler.bids(0.0, "m").bids == ()


def test_work_that_failed_elsewhere_asks_for_another_backend_first() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), BackendSpec("c", 1)))
    taken = scheduler.submit(0.0, work("1")) + scheduler.submit(0.0, work("2"))
    scheduler.observe(0.0, Capacity("m", 0))
    scheduler.submit(1.0, work("3", "z"))
    first = next(each.lease for each in taken if isinstance(each, Dispatch))
    other = {"b": "c", "c": "b"}[first.backend]
    scheduler.release(1.0, first.id, Requeue(avoid=True))
    scheduler.release(1.0, next(iter(leases(taken[1:]).values())), Release())
    bid = bid_of(scheduler, now=1.0)
    assert (payers(bid), bid.backends, bid.count) == (["a", "z"], (other,), 2)
    assert scheduler.waiting("m", 1) == 2
    scheduler.observe(1.0, Health(other, up=False))
    assert payers(bid_of(scheduler, now=1.0))[-1] == "z"


def test_work_that_failed_everywhere_else_leaves_the_others_their_bid() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 1), BackendSpec("c", 1)))
    taken = leases(scheduler.submit(0.0, work("1")))
    scheduler.observe(0.0, Capacity("m", 0))
    scheduler.submit(0.0, work("2", "z"))
    failed = next(name for name, running in scheduler.bids(0.0, "m").used if running)
    other = {"b": "c", "c": "b"}[failed]
    scheduler.release(0.5, taken["1"], Requeue(avoid=True))
    scheduler.observe(0.5, Paused(other, 9.0))
    bid = bid_of(scheduler, now=1.0)
    assert bid.backends == (failed,)
    scheduler.cancel(1.0, "2")
    assert scheduler.bids(1.0, "m").bids == ()


def test_many_that_failed_fill_the_bid() -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 9), BackendSpec("c", 9)))
    taken: list[Any] = []
    for number in range(18):
        taken += scheduler.submit(0.0, work(f"{number}"))
    scheduler.observe(0.0, Capacity("m", 0))
    scheduler.submit(0.0, work("last", "z"))
    for action in taken:
        if action.lease.backend == "b":
            scheduler.release(1.0, action.lease.id, Requeue(avoid=True))
        elif action.ticket.id in "13":
            scheduler.release(1.0, action.lease.id, Release())
    scheduler.release(1.0, next(each.lease.id for each in taken if each.lease.backend == "c"), Release())
    bid = bid_of(scheduler, now=1.0)
    assert (len(bid.heads), bid.count, bid.backends) == (8, 10, ("c",))
    assert "z" not in payers(bid)


@pytest.mark.parametrize("order", list(Order))
def test_grants_serve_in_the_order_that_was_bid(order: Order) -> None:
    rng = random.Random(4)
    for _ in range(30):
        scheduler = shared(policy(BackendSpec("b", 100), bands=changed(1, order=order)))
        for number in range(rng.randrange(1, 40)):
            tenant = f"t{rng.randrange(4)}"
            arrived = rng.choice([None, 0.5 * rng.random()])
            scheduler.submit(1.0 + 0.01 * number, work(f"{number}", tenant, rng.randrange(1, 500), arrived=arrived))
        for number in range(40):
            if rng.random() < 0.3:
                scheduler.cancel(2.0, f"{number}")
        for bid in scheduler.bids(3.0, "m").bids:
            served = [
                (action.ticket.tenant, action.ticket.work.input_tokens)
                for _ in range(len(bid.heads))
                for action in scheduler.observe(3.0, Granted("m", 1, "b"))
                if isinstance(action, Dispatch)
            ]
            assert served == [(head.payer, head.cost) for head in bid.heads]


def test_of_the_seats_in_use_those_of_the_highest_band_are_told_too() -> None:
    scheduler = shared(policy(BackendSpec("b", 9)))
    for number, band in enumerate((0, 0, 1)):
        scheduler.submit(0.0, work(str(number), band=band))
        scheduler.observe(0.0, Granted("m", band, "b"))
    found = scheduler.bids(0.0, "m")
    assert (found.used, found.top) == ((("b", 3),), 2)
    scheduler.release(1.0, 1, Release())
    assert scheduler.bids(1.0, "m").top == 1
    scheduler.release(1.0, 2, Requeue())
    assert scheduler.bids(1.0, "m").top == 0
