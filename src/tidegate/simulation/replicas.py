"""Several gateways that share their pools, as one scheduler of a world: the code of gateway and ledger, and a wire.

Each replica has a scheduler of the core and the rules of ``stores.ledger_client``; between them and the ledger (its
reference model) every message takes ``one_way_s``, a little more or less by chance. Nothing else is simulated here:
who overtakes whom because messages cross is what comes out.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tidegate.core import (
    Action,
    Began,
    Declined,
    Dispatch,
    Lease,
    Policy,
    Preempt,
    Release,
    Requeue,
    Scheduler,
    Signal,
    Ticket,
)
from tidegate.stores import ledger_model
from tidegate.stores.ledger_client import Client
from tidegate.stores.ledger_policy import pool_config, terms_of
from tidegate.stores.ledger_protocol import Grant, Pushed, Reply, Report
from tidegate.stores.ledger_rules import Rules, rules_of
from tidegate.stores.ledger_state import State, new_state
from tidegate.stores.replica_scheduler import SharedScheduler

NEVER = float("inf")
JITTER = 0.3
"""By how much of itself the time of a message varies."""

Place = Callable[[Ticket], int]


def by_band(count: int) -> Place:
    """The hardest split: all of p0 at one replica, all of the last band at another, the rest spread in turn."""
    turn = itertools.count()

    def place(ticket: Ticket) -> int:
        return 0 if ticket.band == 0 else count - 1 if ticket.band >= 2 else next(turn) % count

    return place


def in_turn(count: int) -> Place:
    """As a balancer without a memory spreads them."""
    turn = itertools.count()
    return lambda _ticket: next(turn) % count


@dataclass(slots=True)
class _Pool:
    """The ledger of one pool."""

    rules: Rules
    state: State


@dataclass(slots=True)
class _Replica:
    name: str
    scheduler: SharedScheduler
    core: Scheduler


class Replicas:
    """Implements ``SchedulerLike``; see the module.

    Args:
        policy: of all replicas.
        count: of them.
        one_way_s: time that a message takes, on average.
        place: which replica a ticket comes to.
        seed: of the wire's chance.

    Attributes:
        calls: to the ledger so far.
    """

    def __init__(self, policy: Policy, count: int, *, one_way_s: float, place: Place, seed: int = 1) -> None:
        self.calls = 0
        self._one_way_s = one_way_s
        self._place = place
        self._rng = random.Random(seed)
        self._now = 0.0
        self._wire: list[tuple[float, int, Callable[[float], list[Action]]]] = []
        self._order = itertools.count()
        self._where: dict[str, int] = {}
        self._given: dict[int, Lease] = {}
        self._changed: dict[tuple[int, str], None] = {}
        self._looks: dict[tuple[int, str], float] = {}
        self._wakes = [NEVER] * count
        self._pools = {}
        for spec in policy.pools:
            rules = rules_of(pool_config(policy, spec, version=1))
            state = new_state(rules, 0)
            state.open = 0  # it was founded long ago
            self._pools[spec.name] = _Pool(rules, state)
        self._replicas = [self._make(number, policy) for number in range(count)]
        for number, each in enumerate(self._replicas):
            for name, client in each.scheduler.clients.items():
                self._look(0.0, number, name, client)

    def _make(self, number: int, policy: Policy) -> _Replica:
        core = Scheduler(policy)
        shared = SharedScheduler(core, lambda pool: self._changed.update({(number, pool): None}))
        for spec in policy.pools:
            shared.clients[spec.name] = Client(spec.name, terms_of(policy, spec))
        return _Replica(f"r{number}", shared, core)

    # As one scheduler.

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        """Bring a ticket to its replica."""
        number = self._place(ticket)
        self._where[ticket.id] = number
        return self._after(now, self._own(number, self._replicas[number].scheduler.submit(now, ticket)))

    def release(self, now: float, lease_id: int, release: Release | Requeue) -> list[Action]:
        """Give a lease back where it was given out."""
        own, number = divmod(lease_id, len(self._replicas))
        lease = self._given.pop(lease_id, None)
        if lease is not None and isinstance(release, Release):
            self._where.pop(lease.ticket.id, None)
        return self._after(now, self._own(number, self._replicas[number].scheduler.release(now, own, release)))

    def cancel(self, now: float, ticket_id: str) -> list[Action]:
        """Forget a ticket."""
        number = self._where.get(ticket_id, 0)
        return self._after(now, self._own(number, self._replicas[number].scheduler.cancel(now, ticket_id)))

    def observe(self, now: float, signal: Signal) -> list[Action]:
        """Tell the replica that a fact concerns, or all."""
        actions: list[Action] = []
        if isinstance(signal, Began | Declined):
            own, number = divmod(signal.lease, len(self._replicas))
            actions += self._own(number, self._replicas[number].scheduler.observe(now, replace(signal, lease=own)))
        else:
            for number, each in enumerate(self._replicas):
                actions += self._own(number, each.scheduler.observe(now, signal))
        return self._after(now, actions)

    def tick(self, now: float) -> list[Action]:
        """Do what is due: messages that arrive, looks of clients, expiry."""
        self._now = max(now, self._now)
        actions: list[Action] = []
        while self._wire and self._wire[0][0] <= now:
            at, _, arrive = heapq.heappop(self._wire)
            actions += self._after(at, arrive(at))
        if min(self._looks.values()) <= now:
            for (number, pool), at in list(self._looks.items()):
                if at <= now:
                    actions += self._look(now, number, pool, self._replicas[number].scheduler.clients[pool])
        if min(self._wakes) <= now:
            for number, each in enumerate(self._replicas):
                if self._wakes[number] <= now:
                    actions += self._own(number, each.scheduler.tick(now))
        return self._after(now, actions)

    def next_wakeup(self) -> float | None:
        """Return when something is due next. There always is: give the world an end."""
        wake = min(min(self._wakes), min(self._looks.values()))
        if self._wire:
            wake = min(wake, self._wire[0][0])
        return max(self._now, wake)

    # Between them.

    def _after(self, now: float, actions: list[Action]) -> list[Action]:
        """Send what changed, and forget who has gone."""
        self._now = max(now, self._now)
        while self._changed:
            number, pool = next(iter(self._changed))
            del self._changed[number, pool]
            actions += self._look(now, number, pool, self._replicas[number].scheduler.clients[pool])
        return actions

    def _look(self, now: float, number: int, pool: str, client: Client) -> list[Action]:
        actions = self._obey(now, number, client.look(now))
        if client.due(now):
            self._ask(now, number, pool, client.report(now, self._replicas[number].core.bids(now, pool)))
        self._looks[number, pool] = max(client.wakes_at(), now + 1e-6)
        return actions

    def _ask(self, now: float, number: int, pool: str, report: Report) -> None:
        self._send(now, lambda at: self._at_ledger(at, number, pool, report))

    def _at_ledger(self, now: float, number: int, pool: str, report: Report) -> list[Action]:
        reply = self._turn(now, number, pool, report)
        self._send(now, lambda at: self._answered(at, number, pool, reply))
        return []

    def _turn(self, now: float, number: int, pool: str, report: Report) -> Reply:
        self.calls += 1
        ledger = self._pools[pool]

        def push(name: str, epoch: int, grant: Grant) -> bool:
            return self._push(now, int(name[1:]), pool, Pushed(epoch, grant))

        name = self._replicas[number].name
        return ledger_model.turn(ledger.state, ledger.rules, round(now * 1000), name, report, push)

    def _push(self, now: float, to: int, pool: str, news: Pushed) -> bool:
        self._send(now, lambda at: self._pushed(at, to, pool, news))
        return True

    def _answered(self, now: float, number: int, pool: str, reply: Reply) -> list[Action]:
        client = self._replicas[number].scheduler.clients[pool]
        return self._obey(now, number, client.answered(now, reply)) + self._look(now, number, pool, client)

    def _pushed(self, now: float, number: int, pool: str, news: Pushed) -> list[Action]:
        client = self._replicas[number].scheduler.clients[pool]
        return self._obey(now, number, client.pushed(now, news)) + self._look(now, number, pool, client)

    def _obey(self, now: float, number: int, signals: list[Signal]) -> list[Action]:
        actions: list[Action] = []
        for signal in signals:
            actions += self._own(number, self._replicas[number].scheduler.observe(now, signal))
        return actions

    def _send(self, now: float, arrive: Callable[[float], list[Action]]) -> None:
        self._schedule(now + self._one_way_s * self._rng.uniform(1.0 - JITTER, 1.0 + JITTER), arrive)

    def _schedule(self, at: float, arrive: Callable[[float], list[Action]]) -> None:
        heapq.heappush(self._wire, (at, next(self._order), arrive))

    def _own(self, number: int, actions: list[Action]) -> list[Action]:
        """Give leases ids that are unique over all replicas, and note when that replica is to be woken."""
        wake = self._replicas[number].scheduler.next_wakeup()
        self._wakes[number] = NEVER if wake is None else wake
        return [self._numbered(number, action) for action in actions]

    def _numbered(self, number: int, action: Action) -> Action:
        if isinstance(action, Dispatch | Preempt):
            return replace(action, lease=self._lease(number, action))
        return action

    def _lease(self, number: int, action: Dispatch | Preempt) -> Lease:
        number += action.lease.id * len(self._replicas)
        if number not in self._given:
            self._given[number] = replace(action.lease, id=number)
        return self._given[number]
