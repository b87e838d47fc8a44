"""Gateways that share a pool, and what befalls them: a store that hangs, dies or comes back empty, a gateway that
freezes, dies or is cut off. All on virtual time, with the very code of gateway and ledger.

What the machine around them does is as with real processes: a hung store answers what reached it when it goes on, in
order; a dead one refuses at once; a call is given up after ``CALL_S`` and its late answer means nothing; what is said
to a frozen gateway waits for it, ends of its work included; pushes reach nobody until a connection is made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from tidegate.core import Action, Dispatch, Evict, Policy, Preempt, Reason, Reject, Release, Requeue, Ticket
from tidegate.simulation.replicas import NEVER, Place, Replicas
from tidegate.stores.ledger_client import Client, Standing
from tidegate.stores.ledger_protocol import Pushed, Reply, Report
from tidegate.stores.ledger_state import new_state

CALL_S = 2.0
"""A call without an answer is given up, as ``runtime.replica`` does."""
NOTICED_S = 1.0
"""A connection for pushes that is silent for so long is made anew."""

Arrive = Callable[[float], list[Action]]


class Store(Enum):
    """How it stands with the store."""

    UP = "up"
    HUNG = "hung"
    DOWN = "down"


class FaultyReplicas(Replicas):
    """As ``Replicas``; have faults happen with ``plan``.

    Attributes:
        longest_s: of each band, the longest time that one of its tickets stood first in line at a gateway whose share
            had room, and did not start, while the store was away for that gateway and until the pool was as before.
        lost: tickets that waited at a gateway that died.
        shares: that each gateway was dealt last, when the first fault came.
    """

    def __init__(self, policy: Policy, count: int, *, one_way_s: float, place: Place, seed: int = 1) -> None:
        self.longest_s = [0.0] * len(policy.bands)
        self.lost: set[str] = set()
        self.shares: tuple[int, ...] = ()
        self._store = Store.UP
        self._backlog: list[Arrive] = []
        self._calls: dict[tuple[int, str], int] = {}
        self._last_call = 0
        self._frozen: dict[int, list[Arrive]] = {}
        self._cut: dict[int, list[Arrive]] = {}
        self._dead: set[int] = set()
        self._deaf: set[int] = set()
        self._away: set[int] = set()
        self._since: dict[int, tuple[float, int]] = {}
        self._tickets: dict[str, Ticket] = {}
        super().__init__(policy, count, one_way_s=one_way_s, place=self._alive(place, count), seed=seed)

    def _alive(self, place: Place, count: int) -> Place:
        """As a balancer does that asks who is ready."""

        def choose(ticket: Ticket) -> int:
            number = place(ticket)
            while number in self._dead:
                number = (number + 1) % count
            return number

        return choose

    # What befalls them.

    def plan(self, at: float, fault: Arrive) -> None:
        """Have something happen at a time: one of the methods below, or what calls one."""

        def befall(now: float) -> list[Action]:
            if not self.shares:
                self.shares = tuple(client.reply.solo_share if client.reply else 0 for client in self._clients())
            return fault(now)

        self._schedule(at, befall)

    def hang_store(self, now: float) -> list[Action]:  # noqa: ARG002
        """It answers nothing more; what it is told waits."""
        self._store = Store.HUNG
        self._away |= set(range(len(self._replicas)))
        self._deaf |= self._away
        return []

    def wake_store(self, now: float) -> list[Action]:
        """It answers what has come meanwhile, and goes on."""
        self._store = Store.UP
        backlog, self._backlog = self._backlog, []
        actions = [action for arrive in backlog for action in arrive(now)]
        self._listen_soon(now)
        return actions

    def kill_store(self, now: float) -> list[Action]:
        """It refuses; what it knew is lost."""
        self.hang_store(now)
        self._store = Store.DOWN
        backlog, self._backlog = self._backlog, []
        return [action for arrive in backlog for action in arrive(now)]

    def start_store(self, now: float) -> list[Action]:
        """It is there again, empty."""
        for pool in self._pools.values():
            pool.state = new_state(pool.rules, round(now * 1000))
        return self.wake_store(now)

    def freeze(self, number: int, now: float) -> list[Action]:  # noqa: ARG002
        """A gateway stands still; its work in the engine goes on."""
        self._frozen[number] = []
        self._rest(number, NEVER)
        return []

    def wake(self, number: int, now: float) -> list[Action]:
        """It goes on, and hears what it missed."""
        missed = self._frozen.pop(number)
        self._rest(number, now)
        return [action for arrive in missed for action in arrive(now)]

    def cut(self, number: int, now: float) -> list[Action]:  # noqa: ARG002
        """Nothing passes between a gateway and the store."""
        self._cut[number] = []
        self._away.add(number)
        self._deaf.add(number)
        return []

    def mend(self, number: int, now: float) -> list[Action]:
        """What was on the wire arrives."""
        for arrive in self._cut.pop(number):
            self._send(now, arrive)
        self._listen_soon(now)
        return []

    def kill(self, number: int, now: float) -> list[Action]:  # noqa: ARG002
        """A gateway dies, with all that waits there."""
        self._dead.add(number)
        self._deaf.add(number)
        self._away.discard(number)
        self._rest(number, NEVER)
        waited = [ticket for ticket in self._tickets.values() if self._where.get(ticket.id) == number]
        self.lost |= {ticket.id for ticket in waited}
        for ticket in waited:
            del self._tickets[ticket.id]
        return [Evict(ticket, Reason.UPSTREAM_ERROR) for ticket in waited]

    # As one scheduler.

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        """See ``Replicas``."""
        self._tickets[ticket.id] = ticket
        number = self._where[ticket.id] = self._place(ticket)
        return self._noted(now, self._reach(number, now, lambda at: self._submitted(at, number, ticket)))

    def _submitted(self, now: float, number: int, ticket: Ticket) -> list[Action]:
        return self._after(now, self._own(number, self._replicas[number].scheduler.submit(now, ticket)))

    def release(self, now: float, lease_id: int, release: Release | Requeue) -> list[Action]:
        """See ``Replicas``."""
        plain = super().release
        number = lease_id % len(self._replicas)
        return self._noted(now, self._reach(number, now, lambda at: plain(at, lease_id, release)))

    def tick(self, now: float) -> list[Action]:
        """See ``Replicas``."""
        return self._noted(now, super().tick(now))

    # Between them.

    def _reach(self, number: int, now: float, arrive: Arrive) -> list[Action]:
        """Have something arrive at a gateway, or wait until it goes on; a dead one hears nothing."""
        if number in self._dead:
            return []
        if number in self._frozen:
            self._frozen[number].append(arrive)
            return []
        return arrive(now)

    def _ask(self, now: float, number: int, pool: str, report: Report) -> None:
        self._last_call += 1
        call = self._calls[number, pool] = self._last_call

        def give_up(at: float) -> list[Action]:
            return self._reach(number, at, lambda then: self._failed(then, number, pool, call))

        self._pass(now, number, lambda at: self._at_store(at, number, pool, report, call))
        self._schedule(now + CALL_S, give_up)

    def _at_store(self, now: float, number: int, pool: str, report: Report, call: int) -> list[Action]:
        if self._store is Store.HUNG:
            self._backlog.append(lambda at: self._at_store(at, number, pool, report, call))
            return []
        if self._store is Store.DOWN:
            self._pass(
                now, number, lambda at: self._reach(number, at, lambda then: self._failed(then, number, pool, call))
            )
            return []
        reply = self._turn(now, number, pool, report)
        self._pass(
            now, number, lambda at: self._reach(number, at, lambda then: self._heard(then, number, pool, call, reply))
        )
        return []

    def _pass(self, now: float, number: int, arrive: Arrive) -> None:
        """Send something between a gateway and the store, in either direction."""
        if number in self._cut:
            self._cut[number].append(arrive)
        else:
            self._send(now, lambda at: self._passed(at, number, arrive))

    def _passed(self, now: float, number: int, arrive: Arrive) -> list[Action]:
        if number in self._cut:
            self._cut[number].append(arrive)
            return []
        return arrive(now)

    def _heard(self, now: float, number: int, pool: str, call: int, reply: Reply) -> list[Action]:
        if self._calls.get((number, pool)) != call:
            return []  # it was given up
        del self._calls[number, pool]
        return self._answered(now, number, pool, reply)

    def _failed(self, now: float, number: int, pool: str, call: int) -> list[Action]:
        if self._calls.get((number, pool)) != call:
            return []
        del self._calls[number, pool]
        client = self._client(number, pool)
        return self._obey(now, number, client.failed(now)) + self._look(now, number, pool, client)

    def _push(self, now: float, to: int, pool: str, news: Pushed) -> bool:
        if to in self._deaf:
            return False
        self._send(now, lambda at: self._reach(to, at, lambda then: self._pushed(then, to, pool, news)))
        return True

    def _listen_soon(self, now: float) -> None:
        """Connections for pushes are made anew, one after another, where the store can be reached."""
        able = [number for number in self._deaf if number not in self._cut and number not in self._dead]
        for number in able if self._store is Store.UP else ():
            self._schedule(now + self._rng.uniform(0.0, NOTICED_S), lambda at, each=number: self._listens(at, each))  # type: ignore[misc]

    def _listens(self, now: float, number: int) -> list[Action]:
        if self._store is not Store.UP or number in self._cut:
            return []
        self._deaf.discard(number)
        return self._reach(number, now, lambda at: self._subscribed(at, number))

    def _subscribed(self, now: float, number: int) -> list[Action]:
        actions: list[Action] = []
        for pool, client in self._replicas[number].scheduler.clients.items():
            actions += self._obey(now, number, client.subscribed(now)) + self._look(now, number, pool, client)
        return actions

    # What comes of it.

    def _noted(self, now: float, actions: list[Action]) -> list[Action]:
        """Note who stood first in line while there was room, at gateways for which the store is away."""
        for number in list(self._away):
            away = self._store is not Store.UP or number in self._cut
            client = next(iter(self._replicas[number].scheduler.clients.values()))
            if number in self._frozen or (not away and client.standing is Standing.SHARED):
                self._since.pop(number, None)
                self._away.discard(number)
                continue
            if any(isinstance(each, Dispatch) and each.lease.id % len(self._replicas) == number for each in actions):
                self._since.pop(number, None)
            band = self._first(now, number, client)
            if band is None:
                self._since.pop(number, None)
                continue
            since, before = self._since.get(number, (now, band))
            if band < before:  # one that goes before it has come
                since = now
            self._since[number] = since, band
            self.longest_s[band] = max(self.longest_s[band], now - since)
        return actions

    def _first(self, now: float, number: int, client: Client) -> int | None:
        """Return the band of whoever is first in line where there is room, ``None`` where there is none."""
        bids = self._replicas[number].core.bids(now, client.pool)
        share = min(client.share, sum(seats for _, seats in bids.seats))
        return bids.bids[0].band if bids.bids and sum(used for _, used in bids.used) < share else None

    def waiting(self) -> set[str]:
        """Return the tickets that wait at a living gateway."""
        return set(self._tickets)

    def _numbered(self, number: int, action: Action) -> Action:
        if isinstance(action, Dispatch | Reject | Evict):
            self._tickets.pop(action.ticket.id, None)
        if isinstance(action, Preempt):
            raise NotImplementedError("nothing is preempted where gateways fail")
        return super()._numbered(number, action)

    def _rest(self, number: int, until: float) -> None:
        self._wakes[number] = until
        for key in self._looks:
            if key[0] == number:
                self._looks[key] = until

    def _client(self, number: int, pool: str) -> Client:
        return self._replicas[number].scheduler.clients[pool]

    def _clients(self) -> list[Client]:
        return [client for each in self._replicas for client in each.scheduler.clients.values()]


def where(number: int, fault: Callable[[int, float], list[Action]]) -> Arrive:
    """Return what befalls one gateway, for ``plan``."""
    return lambda now: fault(number, now)
