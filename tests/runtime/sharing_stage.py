"""Gateways that share mode and policy, as far as they have to do with that, with the ledger in memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from tidegate.config import Settings, parse_settings, patch_policy
from tidegate.control import Audit, Keeper, Live, Sharing
from tidegate.core import Scheduler
from tidegate.runtime import Driver
from tidegate.runtime.replica_pools import Replica, ReplicaTerms
from tidegate.stores.ledger_memory import MemoryLedger, MemoryLedgerStore
from tidegate.stores.ledger_protocol import LedgerUnavailable, PoolConfig, PoolView, Reply, Report
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


async def started(*gateways: Gateway) -> None:
    for each in gateways:
        await each.sharing.start()
        await asyncio.sleep(0.05)


async def stopped(*gateways: Gateway) -> None:
    for each in gateways:
        await each.sharing.stop()
