"""This gateway as one of several: all its pools, each with its ledger, and what people are told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tidegate.core import Policy, PoolSpec, Scheduler, Signal
from tidegate.runtime.clock import Clock
from tidegate.runtime.replica import PoolLink
from tidegate.runtime.replica_watch import Watch, view_of
from tidegate.stores.ledger_client import Client, Counts, StoreLoss
from tidegate.stores.ledger_identity import Differences, doubled, key_of, name_of, pool_of, run_of
from tidegate.stores.ledger_policy import pool_config, terms_of
from tidegate.stores.ledger_protocol import LedgerStore, PoolConfig, PoolView, Reply
from tidegate.stores.replica_scheduler import SharedScheduler

Document = dict[str, Any]


@dataclass(slots=True, frozen=True)
class ReplicaTerms:
    """What is configured.

    Attributes:
        name: of this gateway, unique among those that share its pools.
        run: tells this run of it from those before, and from another gateway of the same name.
        group: those of one name share.
        ttl_s: ``lease_ttl``.
        on_store_loss: see ``StoreLoss``.
        first_part: of the seats, before a share was ever dealt.
    """

    name: str
    group: str = "default"
    ttl_s: float = 5.0
    on_store_loss: StoreLoss = StoreLoss.KEEP
    first_part: Fraction = Fraction(1, 8)
    run: str = ""


class Replica:
    """Shares the pools of a scheduler. Give ``scheduler`` to the driver in place of it, then ``join``."""

    def __init__(self, terms: ReplicaTerms, store: LedgerStore, scheduler: Scheduler, clock: Clock) -> None:
        self.terms = terms
        self.scheduler = SharedScheduler(scheduler, self._told)
        self.links: dict[str, PoolLink] = {}
        self.watch = Watch(self.links)
        self.answered: Callable[[PoolLink, Reply], None] = lambda _link, _reply: None
        self._store = store
        self._clock = clock
        self._observe: Callable[[Signal], None] = lambda _signal: None
        self._policy = scheduler.policy
        self._started = False
        self._leaving: set[asyncio.Task[None]] = set()

    def join(self, observe: Callable[[Signal], None]) -> None:
        """Learn how the scheduler is told something, and let no pool start anything unasked."""
        self._observe = observe
        self.obey(self._policy)

    def start(self) -> None:
        """Begin to speak to the store; call it inside the loop."""
        self._started = True
        for link in self.links.values():
            link.start()
        self.watch.start()

    async def stop(self) -> None:
        """Leave all pools, so that the seats are the others' at once."""
        self._started = False
        await self.watch.stop()
        await asyncio.gather(*(link.stop() for link in self.links.values()), *self._leaving)
        await self._store.close()

    def obey(self, policy: Policy) -> None:
        """Take pools that came, and let go of those that are gone; the scheduler has the policy already."""
        self._policy = policy
        specs = {spec.name: spec for spec in policy.pools}
        for name in [name for name in self.links if name not in specs]:
            link = self.links.pop(name)
            del self.scheduler.clients[name]
            if self._started:
                leaving = asyncio.get_running_loop().create_task(link.stop())
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
        for name, spec in specs.items():
            terms = terms_of(
                policy,
                spec,
                on_store_loss=self.terms.on_store_loss,
                ttl_s=self.terms.ttl_s,
                first_part=self.terms.first_part,
            )
            if name in self.links:
                self.links[name].client.terms = terms
            else:
                self._add(name, Client(name, terms))

    def config(self, spec: PoolSpec, *, version: int, mode: str, document: str) -> PoolConfig:
        """Return what the ledger of a pool is to obey, by the policy in force here."""
        return pool_config(self._policy, spec, version=version, mode=mode, document=document, ttl_s=self.terms.ttl_s)

    @property
    def policy(self) -> Policy:
        """The policy in force here."""
        return self._policy

    @property
    def degraded(self) -> bool:
        """Whether the store does not answer, for some pool."""
        return any(link.client.degraded for link in self.links.values())

    @property
    def namesakes(self) -> int:
        """How many other living gateways have this one's name."""
        return self.watch.namesakes

    @property
    def differing(self) -> int:
        """In how many pools other backends or seats are dealt than this gateway's file names."""
        return len(self.watch.differing)

    def counts(self) -> Counts:
        """Return what happened since the start, all pools together."""
        total = Counts()
        for each in (link.client.counts for link in self.links.values()):
            for field in Counts.__slots__:
                setattr(total, field, getattr(total, field) + getattr(each, field))
        return total

    async def document(self) -> Document:
        """Return the whole of each pool, a row for each replica, as the store has it; what it has not is ``None``."""
        names = list(self.links)
        links = [self.links[name] for name in names]
        views = await asyncio.gather(*(view_of(link) for link in links))
        return {
            "replica": self.terms.name,
            "group": self.terms.group,
            "run": self.terms.run,
            "degraded": self.degraded,
            "same_name": self.namesakes,
            "pools": {
                name: _pool(link, view, self.watch.differing.get(name, Differences()))
                for name, link, view in zip(names, links, views, strict=True)
            },
        }

    def _add(self, name: str, client: Client) -> None:
        client.observing = self._policy.observe_only
        self.scheduler.clients[name] = client
        link = self.links[name] = PoolLink(
            key_of(self.terms.name, self.terms.run),
            client,
            self._store.pool(pool_of(self.terms.group, name)),
            bids=self.scheduler.bids,
            observe=self._observe,
            clock=self._clock,
            answered=lambda link, reply: self.answered(link, reply),
        )
        for signal in client.look(self._clock.now()):
            self._observe(signal)
        if self._started:
            link.start()

    def _told(self, pool: str) -> None:
        self.links[pool].changed()


def _pool(link: PoolLink, view: PoolView | None, differing: Differences) -> Document:
    client, reply = link.client, link.client.reply
    document: Document = {
        "standing": str(client.standing),
        "solo_share": None if reply is None else reply.solo_share,
        "version": None if reply is None else reply.version,
        "backends": [],
        "granted": None,
        "differs": {
            "not_dealt": list(differing.not_dealt),
            "unknown": list(differing.unknown),
            "seats": [{"name": name, "here": here, "dealt": dealt} for name, here, dealt in differing.seats],
        }
        if differing
        else None,
        "replicas": [],
    }
    if view is None:
        return document
    rows = zip(view.backends, view.seats, view.held, strict=True)
    same, file = doubled(view), client.terms.file
    return document | {
        "version": view.version,
        "backends": [{"name": name, "seats": seats, "held": held} for name, seats, held in rows],
        "granted": view.granted,
        "replicas": [
            {
                "name": name_of(row.name),
                "run": run_of(row.name),
                "same_name": row.name in same,
                "differs": bool(row.file and file and row.file != file),
                "seen_s_ago": row.seen_ms_ago / 1000.0,
                "held": sum(row.held),
                "unconfirmed": row.unconfirmed,
                "waiting": list(row.waiting),
                "controller": row.controller,
            }
            for row in view.rows
        ],
    }
