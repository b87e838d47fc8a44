"""Random walks through pauses, quotas, readings, modes and lost leases: every ticket ends once, nothing gets stuck."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from fractions import Fraction

import pytest

from tidegate.core import (
    AUTO,
    Action,
    BackendSpec,
    Dispatch,
    Evict,
    Health,
    Outcome,
    Paused,
    Policy,
    PoolSpec,
    RateLimit,
    Reading,
    Reject,
    Release,
    Requeue,
    Saturated,
    Scheduler,
    TenantSpec,
    Ticket,
    WorkEstimate,
)

P0, P1, P2 = Policy().bands
NORMAL = Policy(
    bands=(
        dataclasses.replace(P0, reserve=AUTO),
        dataclasses.replace(P1, when_saturated=Saturated.SHED),
        dataclasses.replace(P2, ceiling=Fraction(4, 5), ttl_s=200.0),
    ),
    pools=(
        PoolSpec(
            "m",
            (
                BackendSpec("a", 6, tokens_per_minute=30_000, requests_per_minute=400),
                BackendSpec("b", 5, kv_tokens=3000),
                BackendSpec("c", AUTO),
            ),
        ),
    ),
    tenants=(TenantSpec("t0", max_running=3),),
    dependency_grace_s=1.0,
)
MODES = (
    NORMAL,
    NORMAL,
    dataclasses.replace(NORMAL, bands=(NORMAL.bands[0], *(dataclasses.replace(b, admit=False) for b in (P1, P2)))),
    dataclasses.replace(NORMAL, observe_only=True),
)


class Walk:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.scheduler = Scheduler(NORMAL)
        self.now = 0.0
        self.numbers = 0
        self.leases: dict[int, Ticket] = {}
        self.waiting: dict[str, Ticket] = {}
        self.ended: Counter[str] = Counter()
        self.requeued: Counter[str] = Counter()

    def obey(self, actions: list[Action]) -> None:
        for action in actions:
            ident = action.ticket.id
            if isinstance(action, Dispatch):
                assert self.waiting.pop(ident) is action.ticket
                self.leases[action.lease.id] = action.ticket
            elif isinstance(action, Reject | Evict):
                del self.waiting[ident]
                self.ended[ident] += 1

    def submit(self) -> None:
        draw = self.draw
        self.numbers += 1
        name = f"n{draw.randrange(40)}" if draw.random() < 0.2 else ""
        ticket = Ticket(
            str(self.numbers),
            "m",
            draw.choice((0, 0, 1, 2, 2)),
            f"t{draw.randrange(4)}",
            WorkEstimate(draw.randrange(1, 300), draw.randrange(1, 300)),
            deadline=self.now + draw.uniform(1, 60) if draw.random() < 0.2 else None,
            name=name,
            depends_on=(f"n{draw.randrange(40)}",) if draw.random() < 0.1 else (),
            affinity=draw.choice((0, 7, 8)),
            patient=draw.random() < 0.1,
        )
        self.waiting[ticket.id] = ticket
        self.obey(self.scheduler.submit(self.now, ticket))

    def release(self) -> None:
        if not self.leases:
            return
        lease = self.draw.choice(list(self.leases))
        ticket = self.leases.pop(lease)
        what = self.draw.random()
        if what < 0.3:
            self.waiting[ticket.id] = ticket
            self.requeued[ticket.id] += 1
            self.obey(self.scheduler.release(self.now, lease, Requeue(avoid=what < 0.15)))
            return
        used = self.draw.choice((None, ticket.work.input_tokens))
        release = Release(Outcome.COMPLETED, used, self.draw.randrange(400), ttft_s=0.2, tpot_s=0.03)
        self.ended[ticket.id] += 1
        self.obey(self.scheduler.release(self.now, lease, release))

    def observe(self) -> None:
        draw = self.draw
        name = draw.choice("abc")
        signal = draw.choice(
            (
                Paused(name, self.now + draw.uniform(0, 30)),
                RateLimit(name, draw.randrange(3), draw.randrange(3000), draw.uniform(0, 60)),
                Health(name, up=draw.random() < 0.8),
                Reading(name, self.now, draw.random(), draw.randrange(9), draw.randrange(4), 0, 10_000),
                Reading(name, self.now, None, 3, 0, 0),
            )
        )
        self.obey(self.scheduler.observe(self.now, signal))

    def cancel(self) -> None:
        if self.waiting:
            ident = self.draw.choice(list(self.waiting))
            del self.waiting[ident]
            self.ended[ident] += 1
            self.obey(self.scheduler.cancel(self.now, ident))

    def mode(self) -> None:
        self.obey(self.scheduler.set_policy(self.now, self.draw.choice(MODES)))

    def advance(self, until: float) -> None:
        """Obey the scheduler's own wake-ups up to ``until``; each gets somewhere."""
        for _ in range(10_000):
            wake = self.scheduler.next_wakeup()
            if wake is None or wake > until:
                self.now = until
                return
            assert wake >= self.now
            self.now = wake
            self.obey(self.scheduler.tick(wake))
        raise AssertionError(f"the scheduler wakes for ever at {self.now}")

    def books_agree(self) -> None:
        seen = self.scheduler.snapshot(self.now)
        assert seen.queued == len(self.waiting)
        assert seen.running == len(self.leases)
        assert sum(backend.running for backend in seen.backends) == len(self.leases)
        assert all(row.running >= 0 and row.depth >= 0 for row in seen.bands)
        assert all(0 <= (row.budget_level or 0) <= 1 for row in seen.backends)

    def run(self, steps: int) -> None:
        moves = (self.submit, self.release, self.observe, self.cancel, self.mode)
        for _ in range(steps):
            self.draw.choices(moves, (10, 9, 2, 0.5, 0.2))[0]()
            if self.draw.random() < 0.5:
                self.advance(self.now + self.draw.expovariate(4.0))
            self.books_agree()

    def finish(self) -> None:
        """Bring everything up and let all work end."""
        self.obey(self.scheduler.set_policy(self.now, NORMAL))
        for name in "abc":
            self.obey(self.scheduler.observe(self.now, Health(name, up=True)))
        for _ in range(5000):
            self.advance(self.now + 1.0)
            for lease in list(self.leases):
                self.ended[self.leases.pop(lease).id] += 1
                self.obey(self.scheduler.release(self.now, lease, Release()))
            if not self.waiting and not self.leases:
                return
        raise AssertionError(f"{len(self.waiting)} tickets wait for ever")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_every_ticket_ends_once_and_nothing_gets_stuck(seed: int) -> None:
    walk = Walk(seed)
    walk.run(2500)
    walk.finish()
    walk.books_agree()
    assert set(walk.ended.values()) == {1}
    assert len(walk.ended) == walk.numbers
    assert walk.requeued.total() > 30
    snapshot = walk.scheduler.snapshot(walk.now + 61)
    assert all(band.running == 0 and band.depth == 0 for band in snapshot.bands)
    assert [backend.budget_level for backend in snapshot.backends] == [1.0, None, None]
