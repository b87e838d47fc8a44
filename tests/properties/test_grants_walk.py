"""Random walks with granted seats: every ticket ends once, no seat is lost or taken twice, nothing starts unasked."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction

import pytest

from tidegate.core import (
    AUTO,
    Action,
    BackendSpec,
    Capacity,
    Counters,
    Dispatch,
    Drain,
    Evict,
    Granted,
    Health,
    Outcome,
    Paused,
    Policy,
    PoolSpec,
    Reading,
    Reject,
    Release,
    Requeue,
    Scheduler,
    Seats,
    Signal,
    TenantSpec,
    Ticket,
    Turn,
    WorkEstimate,
)

P0, P1, P2 = Policy().bands
PLAN = Policy(
    bands=(dataclasses.replace(P0, reserve=AUTO), P1, dataclasses.replace(P2, ceiling=Fraction(4, 5))),
    pools=(PoolSpec("m", (BackendSpec("a", 6, requests_per_minute=900), BackendSpec("b", 5, kv_tokens=3000))),),
    tenants=(TenantSpec("t0", max_running=3),),
)
NAMES = ("a", "b")


class Walk:
    """One scheduler, told at random what may happen to a replica."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.scheduler = Scheduler(PLAN)
        self.lent: int | None = 0
        self.waiting: set[str] = set()
        self.leases: dict[int, tuple[str, str]] = {}
        self.ended: dict[str, int] = {}
        self.down: set[str] = set()
        self.numbers = 0
        self.scheduler.observe(0.0, Capacity("m", 0))

    def obey(self, actions: list[Action], granted: str | None = None) -> None:
        starts = [each for each in actions if isinstance(each, Dispatch)]
        if granted is not None and self.lent == 0:
            assert len(starts) <= 1
            assert all(each.lease.backend == granted for each in starts)
        elif granted is None and self.lent is not None and starts:
            running = sum(at not in self.down for _, at in self.leases.values())  # a seat that is down is none
            assert running + len(starts) <= self.lent
        for action in actions:
            if isinstance(action, Dispatch):
                self.waiting.remove(action.ticket.id)
                self.leases[action.lease.id] = action.ticket.id, action.lease.backend
            elif isinstance(action, Reject | Evict):
                self.waiting.remove(action.ticket.id)
                self.end(action.ticket.id)

    def end(self, ident: str) -> None:
        self.ended[ident] = self.ended.get(ident, 0) + 1

    def step(self) -> None:
        rng, scheduler = self.rng, self.scheduler
        self.now += rng.choice([0.0, 0.001, 0.02, 0.5])
        move = rng.random()
        if move < 0.35:
            self.numbers += 1
            ident = str(self.numbers)
            self.waiting.add(ident)
            work = WorkEstimate(rng.randrange(1, 300))
            ticket = Ticket(ident, "m", rng.randrange(3), f"t{rng.randrange(4)}", work, affinity=rng.randrange(3))
            self.obey(scheduler.submit(self.now, ticket))
        elif move < 0.6:
            name = rng.choice(NAMES)
            grant = Granted("m", rng.randrange(3), name, rng.choice(list(Turn)))
            self.obey(scheduler.observe(self.now, grant), name)
        elif move < 0.8 and self.leases:
            self.release()
        elif move < 0.85 and self.waiting:
            ident = rng.choice(sorted(self.waiting))
            self.obey(scheduler.tick(self.now))  # it may have expired by now
            if ident in self.waiting:
                self.waiting.remove(ident)
                self.end(ident)
                self.obey(scheduler.cancel(self.now, ident))
        elif move < 0.9:
            self.obey(scheduler.tick(self.now))  # what is due comes before the change
            self.lent = rng.choice([0, 0, 1, 4, 20, None])
            self.obey(scheduler.observe(self.now, Capacity("m", self.lent, share=3, wary=rng.random() < 0.3)))
        else:
            self.tell()

    def release(self) -> None:
        lease = self.rng.choice(sorted(self.leases))
        ident, _ = self.leases.pop(lease)
        endings: list[Release | Requeue] = [Release(), Release(Outcome.FAILED), Requeue(), Requeue(avoid=True)]
        ending = self.rng.choice(endings)
        if isinstance(ending, Requeue):
            self.waiting.add(ident)
        else:
            self.end(ident)
        self.obey(self.scheduler.release(self.now, lease, ending))

    def tell(self) -> None:
        rng, name = self.rng, self.rng.choice(NAMES)
        leads = tuple((f"t{number}", 100.0 * rng.random()) for number in range(3))
        signals: list[Signal] = [
            Health(name, up=rng.random() < 0.8),
            Paused(name, self.now + 0.2),
            Seats(name, rng.randrange(8)),
            Reading(name, self.now, kv_free=rng.random(), running=rng.randrange(8), waiting=0, kv_tokens=3000),
            Counters("m", rng.randrange(3), leads),
        ]
        signal = rng.choice(signals)
        if isinstance(signal, Health):
            (self.down.discard if signal.up else self.down.add)(name)
        self.obey(self.scheduler.observe(self.now, signal))

    def check(self) -> None:
        used = dict(self.scheduler.bids(self.now, "m").used)
        assert used == {name: sum(at == name for _, at in self.leases.values()) for name in NAMES}
        snapshot = self.scheduler.snapshot(self.now)
        assert (snapshot.queued, snapshot.running) == (len(self.waiting), len(self.leases))
        for bid in self.scheduler.bids(self.now, "m").bids:
            assert 1 <= len(bid.heads) <= bid.count <= len(self.waiting)

    def finish(self) -> None:
        self.obey(self.scheduler.observe(self.now, Drain()))
        while self.waiting:
            self.obey(self.scheduler.tick(self.now))
        while self.leases:
            self.release()
            while self.waiting:
                self.obey(self.scheduler.tick(self.now))
        assert self.ended == {str(number): 1 for number in range(1, self.numbers + 1)}
        assert dict(self.scheduler.bids(self.now, "m").used) == {"a": 0, "b": 0}


@pytest.mark.parametrize("seed", range(20))
def test_random_grants_keep_the_books(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(800):
        walk.step()
        walk.check()
    walk.finish()


def test_a_lent_part_leaves_no_seat_idle_while_work_waits() -> None:
    rng = random.Random(3)
    for _ in range(200):
        scheduler = Scheduler(Policy(pools=(PoolSpec("m", (BackendSpec("a", 6), BackendSpec("b", 5))),)))
        scheduler.observe(0.0, Capacity("m", 0))
        count = rng.randrange(1, 20)
        for number in range(count):
            scheduler.submit(0.0, Ticket(str(number), "m", rng.randrange(3), "t", WorkEstimate(9)))
        part = rng.randrange(12)
        started = scheduler.observe(1.0, Capacity("m", part))
        assert len(started) == min(part, count, 11)
