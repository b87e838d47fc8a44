"""Many gateways on one pool keep the order of one, by the very code of gateway and ledger, on a simulated wire."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from tidegate.core import BackendSpec, Order, Policy, PoolSpec, Reading, Scheduler, Stoppable
from tidegate.core.policy import P0, P1, P2
from tidegate.simulation import Request
from tidegate.simulation.log import Entry
from tidegate.simulation.replicas import Replicas, by_band, in_turn
from tidegate.simulation.servers import FixedServer, RhythmServer
from tidegate.simulation.world import World
from tidegate.testing.replica_course import Course, course, difference, overload

SEATS, HOLD_S, UNTIL_S, WARM_S = 32, 2.0, 60.0, 10.0
LOAD = (0.40, 0.50, 1.60)
POLICY = Policy(
    bands=(
        replace(P0, order=Order.FIFO, may_preempt=False),
        replace(P1, floor=Fraction(0), shed_hopeless=False),
        replace(P2, capacity=10**6),
    ),
    pools=(PoolSpec("m", (BackendSpec("b", SEATS),)),),
    overtake_cap=Fraction(1, 10),
    queue_capacity=10**6,
)


def arrivals(part: float = 1.0) -> list[Request]:
    rng = random.Random(1)
    found = []
    for band, load in enumerate(LOAD):
        at = 0.0
        while (at := at + rng.expovariate(part * load * SEATS / HOLD_S)) < UNTIL_S:
            found.append(Request(at=at, band=band, tenant=f"t{band}", pool="m", prompt_tokens=10, output_tokens=10))
    return sorted(found, key=lambda request: request.at)


def service_s(request: Request) -> float:
    return HOLD_S * (0.5 + random.Random(request.at).random())


def run(count: int, one_way_s: float, part: float = 1.0) -> list[Entry]:
    """What was dispatched after the start, in order; without replicas by one scheduler."""
    scheduler = Replicas(POLICY, count, one_way_s=one_way_s, place=by_band(count)) if count else Scheduler(POLICY)
    log = World(scheduler, {"b": FixedServer(service_s)}, arrivals(part)).run(UNTIL_S)
    return [entry for entry in log.dispatched if (entry.dispatched or 0.0) >= WARM_S]


def wait_s(entries: list[Entry], part: float) -> float:
    waits = sorted(entry.wait_s for entry in entries if entry.request.band == 0)
    return waits[int(part * (len(waits) - 1))]


@pytest.mark.parametrize(("count", "one_way_s"), [(1, 0.0002), (4, 0.0005), (16, 0.002)])
def test_replicas_follow_one_scheduler_within_their_round_trips(count: int, one_way_s: float) -> None:
    alone, shared = run(0, 0.0), run(count, one_way_s)
    assert len(shared) >= 0.99 * len(alone)
    assert wait_s(shared, 0.5) <= 1.15 * wait_s(alone, 0.5) + 2 * 2 * one_way_s
    assert wait_s(shared, 0.99) <= 1.5 * wait_s(alone, 0.99) + 2 * 2 * one_way_s
    bands = [entry.request.band for entry in shared]
    assert min(bands[at : at + 100].count(2) for at in range(len(bands) - 100)) >= 4
    passed = [entry.passed for entry in shared]
    assert sum(passed) <= 0.13 * len(passed)


def p0_waits(plan: Course, seats: int, scheduler: Replicas | Scheduler) -> dict[int, float]:
    """Waits of p0 by the number of the request, where seats come back at the times of the plan."""
    requests = [
        Request(at=each.at, band=each.band, tenant=f"t{each.band}", pool="m", prompt_tokens=10, output_tokens=10)
        for each in plan.arrivals
    ]
    log = World(scheduler, {"b": RhythmServer(plan.ends)}, requests).run(plan.seconds)
    return {int(each.ticket.id): each.wait_s for each in log.dispatched if each.request.band == 0}


@pytest.mark.parametrize(
    ("gateways", "seats", "one_way_s"),
    [(3, 16, 0.0005), (3, 16, 0.002), (3, 16, 0.004), (16, 16, 0.001), (3, 64, 0.002)],
)
def test_p0_waits_two_round_trips_longer_at_most_than_its_like_at_one_gateway(
    gateways: int, seats: int, one_way_s: float
) -> None:
    """The same arrivals, and seats that come back at the same times: what is left is what coordination costs."""
    plan = course(overload(gateways), seats=seats, hold_s=1.0, seconds=960.0 / seats)
    policy = replace(POLICY, pools=(PoolSpec("m", (BackendSpec("b", seats),)),))
    place = iter([each.gateway for each in plan.arrivals])
    shared = Replicas(policy, gateways, one_way_s=one_way_s, place=lambda _ticket: next(place))
    found = difference(p0_waits(plan, seats, shared), p0_waits(plan, seats, Scheduler(policy)))
    assert found.count >= 300
    assert 0.5 * 2 * one_way_s <= found.mean, "a seat that came back is granted after a round trip"
    assert found.most <= 2 * 2 * one_way_s


def test_no_more_run_than_there_are_seats() -> None:
    running: list[float] = []
    for entry in run(4, 0.002):
        assert entry.dispatched is not None
        running = [end for end in running if end > entry.dispatched] + [entry.dispatched + service_s(entry.request)]
        assert len(running) <= SEATS


def test_below_capacity_a_wait_is_a_round_trip() -> None:
    shared = run(4, 0.0005, part=0.2)
    assert wait_s(shared, 0.5) <= 0.003


def test_the_same_seed_gives_the_same_order() -> None:
    first, second = ([entry.ticket.id for entry in run(4, 0.001, part=0.5)] for _ in range(2))
    assert first == second


def test_a_flood_at_one_replica_leaves_a_small_tenant_of_another_its_wait() -> None:
    """A tenant of 0.3 times the capacity beside one of three times: by arrival alone it would wait as long as that."""
    rng = random.Random(2)
    requests = []
    for tenant, load in (("small", 0.3), ("flood", 3.0)):
        at = 0.0
        while (at := at + rng.expovariate(load * SEATS / HOLD_S)) < UNTIL_S:
            requests.append(Request(at=at, band=1, tenant=tenant, pool="m", prompt_tokens=10, output_tokens=10))
    policy = replace(
        POLICY, bands=(POLICY.bands[0], replace(POLICY.bands[1], capacity=10**6, ttl_s=3600.0), POLICY.bands[2])
    )
    replicas = Replicas(policy, 2, one_way_s=0.001, place=lambda ticket: int(ticket.tenant == "flood"))
    requests.sort(key=lambda request: request.at)
    log = World(replicas, {"b": FixedServer(service_s)}, requests).run(UNTIL_S)
    waits: dict[str, list[float]] = {"small": [], "flood": []}
    for entry in log.dispatched:
        if (entry.dispatched or 0.0) >= WARM_S:
            waits[entry.request.tenant].append(entry.wait_s)
    small = sorted(waits["small"])
    assert len(small) > 200
    assert small[int(0.99 * len(small))] <= 2.0
    assert max(waits["flood"]) > 20.0


def test_as_one_scheduler_it_passes_on_what_concerns_one_or_all() -> None:
    plan = replace(POLICY, bands=(P0, P1, P2))
    place = in_turn(2)
    replicas = Replicas(plan, 2, one_way_s=0.001, place=place)
    world = World(replicas, {"b": FixedServer(service_s)}, arrivals(0.3), stoppable=Stoppable.ALWAYS)
    world.observe(0.0, Reading("b", 0.0, running=0))
    log = world.run(20.0)
    assert {entry.backend for entry in log.dispatched} == {"b"}
    assert replicas.calls > 100
    assert replicas.cancel(20.0, "nobody") == []
