"""What starts at once where nothing waits is decided as if it had been queued first.

The twin has quotas that are never reached. They decide nothing, but with any quota every newcomer is queued and dealt.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from properties.machine_policies import TENANTS, make_policy
from tidegate.core import Action, Dispatch, Lease, Outcome, Policy, Release, Requeue, Scheduler, Stoppable, Ticket
from tidegate.core import WorkEstimate as Work

NEVER_REACHED = 10**12


def with_quotas(policy: Policy) -> Policy:
    pools = tuple(
        replace(pool, backends=tuple(replace(each, requests_per_minute=NEVER_REACHED) for each in pool.backends))
        for pool in policy.pools
    )
    return replace(policy, pools=pools)


class Twins:
    """Two schedulers that are told the same; ``at_once`` counts the dispatches of newcomers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        policy = make_policy(self.rng.randrange(10_000))
        self.quick, self.queued = Scheduler(policy), Scheduler(with_quotas(policy))
        self.now, self.number, self.at_once = 0.0, 0, 0
        self.leases: dict[int, Lease] = {}

    def agree(self, actions: list[Action], others: list[Action]) -> None:
        assert list(map(repr, actions)) == list(map(repr, others))
        self.leases |= {action.lease.id: action.lease for action in actions if isinstance(action, Dispatch)}

    def submit(self) -> None:
        rng, self.number = self.rng, self.number + 1
        ticket = Ticket(
            f"t{self.number}",
            rng.choice("ab"),
            rng.randrange(3),
            rng.choice(TENANTS),
            Work(rng.randrange(900), rng.randrange(200)),
            flow=rng.choice(["", "", "x"]),
            ttl_s=rng.choice([None, None, 0.5]),
            arrived=rng.choice([None, None, self.now - 1.0]),
            size_bytes=rng.choice([0, 2_000]),
            name=rng.choice(["", f"n{rng.randrange(9)}"]),
            stoppable=rng.choice(list(Stoppable)),
        )
        actions = self.quick.submit(self.now, ticket)
        self.agree(actions, self.queued.submit(self.now, ticket))
        self.at_once += any(isinstance(action, Dispatch) and action.ticket is ticket for action in actions)

    def release(self) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(self.rng.choice(list(self.leases)))
        tokens = self.rng.choice([None, 0, 50, 2_000])
        end: Release | Requeue = Release(self.rng.choice(list(Outcome)), tokens, tokens)
        if self.rng.random() < 0.1:
            end = Requeue(avoid=self.rng.random() < 0.5)
        self.agree(self.quick.release(self.now, lease.id, end), self.queued.release(self.now, lease.id, end))

    def wait(self) -> None:
        self.now += self.rng.choice([0.001, 0.05, 0.3, 2.0, 30.0])
        self.agree(self.quick.tick(self.now), self.queued.tick(self.now))

    def change_policy(self) -> None:
        policy = make_policy(self.rng.randrange(10_000))
        self.agree(self.quick.set_policy(self.now, policy), self.queued.set_policy(self.now, with_quotas(policy)))


@pytest.mark.parametrize("seed", range(40))
def test_who_starts_at_once_is_decided_as_if_queued_first(seed: int) -> None:
    twins = Twins(seed)
    departures = twins.rng.choice([0.3, 1.0, 3.0])
    moves = [twins.submit, twins.release, twins.wait, twins.change_policy]
    for _ in range(400):
        twins.rng.choices(moves, [1.0, departures, 0.5, 0.02])[0]()
        states = [core.snapshot(twins.now).bands for core in (twins.quick, twins.queued)]
        assert [replace(row, gate=None) for row in states[0]] == [replace(row, gate=None) for row in states[1]]
    assert twins.at_once or departures < 1.0
