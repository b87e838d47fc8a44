"""Random events, and after each the quick structures beside a plain walk over everything that waits."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from tidegate.core import (
    BackendSpec,
    BacklogOrder,
    Band,
    Discipline,
    Dispatch,
    Evict,
    Full,
    Health,
    Order,
    Outcome,
    Policy,
    PoolSpec,
    Reject,
    Release,
    Scheduler,
    Seats,
    Signal,
    TenantSpec,
    Ticket,
    Waiter,
    WorkEstimate,
)
from tidegate.core.gates import hold
from tidegate.core.ordering import RUNNING, WAITING, Entry
from tidegate.core.queues import BandQueue
from tidegate.core.state import State


def some_policy(rng: random.Random) -> Policy:
    bands = tuple(
        Band(
            f"p{index}",
            weight,
            alpha,
            floor=Fraction(0) if index == 0 else Fraction(rng.randint(0, 1), 10),
            order=rng.choice(list(Order)),
            backlog_order=rng.choice(list(BacklogOrder)),
            capacity=rng.choice([5, 40]),
            full=rng.choice(list(Full)),
            ttl_s=rng.choice([5.0, 50.0]),
            promote_after_s=rng.choice([None, 3.0]),
            reserve=rng.choice([0, 0, 1]),
            ceiling=rng.choice([Fraction(1), Fraction(1), Fraction(1, 2)]),
        )
        for index, (weight, alpha) in enumerate([(100, 0.05), (20, 0.02), (1, 0.005)])
    )
    return Policy(
        bands=bands,
        pools=(PoolSpec("m", (BackendSpec("b", 2), BackendSpec("c", 2))), PoolSpec("n", (BackendSpec("d", 2),))),
        tenants=(
            TenantSpec("t0", weight=2.0, max_running=1, max_queued=10),
            TenantSpec(
                "t1",
                max_running=rng.choice([None, 2]),
                allow_lending=True,
                requests_per_minute=100,
                tokens_per_minute=9000,
            ),
        ),
        discipline=rng.choice(list(Discipline)),
        overtake_cap=Fraction(3, 10),
        queue_capacity=rng.choice([20, 60]),
        queue_bytes=2000,
        max_flows=rng.choice([3, 100]),
        backlog_after_s=0.5,
        lend_limit=2,
        depends_timeout_s=4.0,
        dependency_grace_s=1.0,
    )


class World:
    """Drives a scheduler and keeps every ticket's outcome."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.number = 0
        self.waiting: set[str] = set()
        self.running: dict[str, int] = {}
        self.ended: set[str] = set()
        self.scheduler = Scheduler(some_policy(self.rng))

    def step(self) -> None:
        rng, scheduler = self.rng, self.scheduler
        self.now += rng.choice([0.0, 0.0, 0.01, 0.3])
        kinds = ["submit", "release", "cancel", "signal", "policy", "tick", "wait"]
        kind = rng.choices(kinds, [50, 40, 8, 2, 1, 5, 4])[0]
        if kind == "submit":
            actions = scheduler.submit(self.now, self.ticket())
        elif kind == "release" and self.running:
            name = rng.choice(sorted(self.running))
            lease = self.running.pop(name)
            self.ended.add(name)
            outcome = rng.choice([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED])
            actions = scheduler.release(self.now, lease, Release(outcome, output_tokens=rng.choice([None, 0, 500])))
        elif kind == "cancel" and self.waiting:
            name = rng.choice(sorted(self.waiting))
            actions = scheduler.cancel(self.now, name)
            if not any(action.ticket.id == name for action in actions):
                self.waiting.discard(name)
                self.ended.add(name)
        elif kind == "signal":
            backend = rng.choice(["b", "c", "d"])
            signals: list[Signal] = [Health(backend, True), Health(backend, False), Seats(backend, rng.randint(0, 4))]
            actions = scheduler.observe(self.now, rng.choice(signals))
        elif kind == "wait":
            name = f"t{rng.randrange(5)}/n{rng.randrange(6)}"
            waiter = Waiter(str(rng.randrange(4)), f"t{rng.randrange(5)}", rng.randrange(3), name, rng.random() < 0.7)
            actions = scheduler.observe(self.now, waiter)
        elif kind == "policy":
            actions = scheduler.set_policy(self.now, some_policy(rng))
        else:
            actions = scheduler.tick(self.now)
            assert scheduler.tick(self.now) == []
        for action in actions:
            self.note(action)

    def note(self, action: object) -> None:
        if isinstance(action, Dispatch):
            self.waiting.remove(action.ticket.id)
            self.running[action.ticket.id] = action.lease.id
        elif isinstance(action, (Reject, Evict)):
            self.waiting.remove(action.ticket.id)
            assert action.ticket.id not in self.ended
            self.ended.add(action.ticket.id)

    def ticket(self) -> Ticket:
        rng = self.rng
        self.number += 1
        name = str(self.number)
        self.waiting.add(name)
        return Ticket(
            name,
            rng.choice(["m", "m", "n"]),
            rng.randrange(3),
            f"t{rng.randrange(5)}",
            WorkEstimate(rng.randrange(100), rng.randrange(100)),
            flow=rng.choice(["", "", "f1", "f2"]),
            ttl_s=rng.choice([None, None, 1.0, 4.0]),
            deadline=rng.choice([None, self.now + 2.0]),
            arrived=rng.choice([None, None, None, self.now - 1.0]),
            size_bytes=rng.choice([1, 200]),
            name=rng.choice(["", f"n{rng.randrange(6)}"]),
            depends_on=tuple(
                rng.choice(["", "", "t1/"]) + f"n{rng.randrange(6)}" for _ in range(rng.choice([0, 0, 0, 1, 2]))
            ),
        )

    def check(self) -> None:
        state = self.scheduler._state
        live = list(state.live.values())
        waiting = [entry for entry in live if entry.state == WAITING]
        assert {entry.ticket.id for entry in waiting} == self.waiting
        assert {entry.ticket.id for entry in live if entry.state == RUNNING} == set(self.running)
        assert state.waiting.total == len(waiting)
        assert state.waiting.bytes == sum(entry.ticket.size_bytes for entry in waiting)
        due = min((entry.expires for entry in waiting), default=None)
        assert self.scheduler.next_wakeup() == (None if due is None else max(due, state.now))
        flows = [flow for pool in state.pools.values() for queue in pool.queues for flow in queue.flows.values()]
        assert state.tenants.flows == sum(flow.count > 0 or flow.running > 0 for flow in flows)
        self.check_lending(state, waiting)
        for tenant in state.tenants.all.values():
            assert tenant.queued == sum(entry.tenant is tenant for entry in waiting)
            assert tenant.running == sum(entry.tenant is tenant for entry in live) - tenant.queued
        for pool in state.pools.values():
            seating = pool.seating
            assert seating.free == sum(max(0, b.seats - b.running) for b in seating.backends if b.up)
            for queue in pool.queues:
                here = [entry for entry in live if entry.queue is queue and entry not in state.names.parked]
                self.check_queue(queue, here)
                if seating.free > 0:  # no seat idles while a ticket that may use it waits
                    assert queue.head() is None or hold(seating, queue.band) is not None

    def check_lending(self, state: State, waiting: list[Entry]) -> None:
        """Each waiting work runs in the best band of those who wait for it, up to the limit of each lender."""
        names = state.names
        assert not names.restless
        assert all(entry.state == WAITING for entry in names.parked)
        lenders = [*names.parked.values(), *names.callers.values()]
        for wait in lenders:
            assert wait.works or wait.entry is None
            low = [work for work in wait.works if work.entry and work.entry.state == WAITING]
            low = [work for work in low if work.entry and work.entry.ticket.band > wait.band]
            assert [wait in work.bids.get(wait.band, ()) for work in low[:2]] == [True] * len(low[:2])
            assert sum(wait in waits for work in wait.works for waits in work.bids.values()) == len(low[:2])
        for entry in waiting:
            work = names.work_of(entry)
            lent = [band for band, waits in work.bids.items() if waits] if work else []
            best = min([entry.ticket.band, *lent])
            parked = names.parked.get(entry)
            assert best == (entry.queue.band if parked is None else parked.band)

    def check_queue(self, queue: BandQueue, live: list[Entry]) -> None:
        waiting = [entry for entry in live if entry.state == WAITING]
        assert queue.count == len(waiting)
        assert queue.running == len(live) - len(waiting)
        runnable = [entry for entry in waiting if not entry.flow.tenant.parked]
        oldest = min(runnable, key=lambda entry: (entry.arrived, entry.seq), default=None)
        assert queue.head() is oldest
        if runnable:
            flows = {entry.flow for entry in runnable}
            assert queue.next_flow().tag == min(flow.tag for flow in flows)
        if waiting:
            assert queue.longest().count == max(flow.count for flow in queue.flows.values())
        for flow in queue.flows.values():
            mine = [entry for entry in waiting if entry.flow is flow]
            assert flow.count == len(mine)
            if mine:
                order = flow.rule.order
                assert flow.oldest() is min(mine, key=lambda entry: (entry.arrived, entry.seq))
                assert flow.newest() is max(mine, key=lambda entry: (entry.arrived, entry.seq))
                if order is not Order.FIFO:
                    assert flow.first() is min(mine, key=lambda entry: (flow.rule.key(entry), entry.seq))
                if order is Order.SJF:
                    assert flow.last() is max(mine, key=lambda entry: (flow.rule.key(entry), entry.seq))


@pytest.mark.parametrize("seed", range(10))
def test_quick_structures_agree_with_a_plain_walk(seed: int) -> None:
    world = World(seed)
    for _ in range(500):
        world.step()
        if world.rng.random() < 0.5:  # looking brings heaps up to date, so not after every step
            world.check()
    assert len(world.ended) > 100
