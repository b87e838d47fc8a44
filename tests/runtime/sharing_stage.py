"""Gateways that share mode and policy, as far as they have to do with that, with the ledger in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from tidegate.config import Settings, parse_settings, patch_policy
from tidegate.control import Audit, Keeper, Live, Sharing
from tidegate.core import Scheduler
from tidegate.runtime import Driver
from tidegate.runtime.replica_pools import Replica, ReplicaTerms
from tidegate.stores.ledger_handle import LedgerHandle, LedgerSubscription, NoConfigurationError
from tidegate.stores.ledger_memory import MemoryLedger, MemoryLedgerStore
from tidegate.stores.ledger_protocol import LedgerUnavailable, News, PoolConfig, PoolView, Reply, Report
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock

MODELS = "models: [{name: m, backends: [{name: b, url: 'http://a', seats: 8}]}]\n"


def utc_now() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


class Gateway:
    """What of a gateway has to do with sharing."""

    def __init__(self, name: str, store: MemoryLedgerStore, more: str = "", models: str = MODELS) -> None:
        settings = parse_settings(models + more, source="f.yaml")
        policy = settings.core_policy()
        self.replica = Replica(ReplicaTerms(name), store, Scheduler(policy), LoopClock())
        self.driver = Driver(self.replica.scheduler, LoopClock(), Recorder(policy))
        self.replica.join(self.driver.observe)
        self.audit = Audit(Keeper(None), utc_now)
        self.live = Live(settings, self._apply, self.audit, utc_now=utc_now)
        self.sharing = Sharing(self.replica, self.live)

    def _apply(self, settings: Settings, mode: str) -> None:
        self.driver.set_policy(settings.core_policy(mode))

    def patch(self, weight: float) -> None:
        after = patch_policy(self.live.settings, {"bands": {"p1": {"weight": weight}}})
        self.live.change(after, who="duty", action="policy")

    @property
    def weight(self) -> float:
        return self.live.settings.policy.bands["p1"].weight


class Line(MemoryLedgerStore):
    """A gateway's own way to a store: while it is ``cut`` the gateway reaches nothing."""

    def __init__(self, store: MemoryLedgerStore, *, cut: bool = False) -> None:
        super().__init__()
        self.store, self.cut = store, cut

    def pool(self, name: str) -> MemoryLedger:
        return _End(self, self.store.pool(name))


class _End(MemoryLedger):
    def __init__(self, line: Line, ledger: MemoryLedger) -> None:
        self._line, self._ledger = line, ledger
        self.subscribe = ledger.subscribe  # type: ignore[method-assign]

    def _there(self) -> MemoryLedger:
        if self._line.cut:
            raise LedgerUnavailable("cut")
        return self._ledger

    async def configuration(self) -> PoolConfig | None:
        return await self._there().configuration()

    async def configure(self, config: PoolConfig) -> None:
        await self._there().configure(config)

    async def turn(self, replica: str, report: Report) -> Reply:
        return await self._there().turn(replica, report)

    async def leave(self, replica: str) -> None:
        await self._there().leave(replica)

    async def view(self) -> PoolView | None:
        return await self._there().view()


class Elsewhere(MemoryLedgerStore):
    """A store in another process: each gateway has handles of its own on it, which keep what was last in force."""

    def __init__(self, store: MemoryLedgerStore) -> None:
        super().__init__()
        self.store = store
        self.handles: dict[str, Handle] = {}

    def pool(self, name: str) -> MemoryLedger:
        if name not in self.handles:
            self.handles[name] = Handle(self.store, name)
        return self.handles[name]  # type: ignore[return-value]  # a ledger as others are


class Handle(LedgerHandle):
    def __init__(self, store: MemoryLedgerStore, name: str) -> None:
        super().__init__()
        self._store, self._name = store, name

    async def _configuration(self) -> PoolConfig | None:
        return await self._store.pool(self._name).configuration()

    async def _configure(self, config: PoolConfig) -> None:
        await self._store.pool(self._name).configure(config)

    async def _turn(self, replica: str, report: Report) -> Reply:
        try:
            return await self._store.pool(self._name).turn(replica, report)
        except LedgerUnavailable as error:
            raise NoConfigurationError(str(error)) from error

    async def leave(self, replica: str) -> None:
        await self._store.pool(self._name).leave(replica)

    async def view(self) -> PoolView | None:
        return await self._store.pool(self._name).view()

    def subscribe(self, replica: str, listener: Callable[[News], None]) -> LedgerSubscription:
        return self._store.pool(self._name).subscribe(replica, listener)  # type: ignore[return-value]

    def _subscription(self, replica: str, listener: Callable[[News], None]) -> LedgerSubscription:
        raise NotImplementedError


async def started(*gateways: Gateway) -> None:
    for each in gateways:
        await each.sharing.start()
        await asyncio.sleep(0.05)


async def stopped(*gateways: Gateway) -> None:
    for each in gateways:
        await each.sharing.stop()
