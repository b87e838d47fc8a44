"""Many gateways on one pool keep the order of one, by the very code of gateway and ledger, on a simulated wire."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from tidegate.core import BackendSpec, Order, Policy, PoolSpec, Reading, Scheduler, Stoppable
from tidegate.core.policy import P0, P1, P2
from tidegate.simulation import Request
from tidegate.simulation.replicas import Replicas, by_band, in_turn
from tidegate.simulation.servers import FixedServer
from tidegate.simulation.world import Entry, World

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
