"""Several gateways on one pool, with calls that take time, get lost, or come to nothing; all on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from runtime.stories import Noting
from tidegate.core import BackendSpec, Lease, Policy, PoolSpec, Release, Scheduler, Ticket, WorkEstimate
from tidegate.runtime import Driver
from tidegate.runtime.replica import PoolLink
from tidegate.stores.ledger_client import Client, Standing
from tidegate.stores.ledger_memory import MemoryLedger, MemoryLedgerStore
from tidegate.stores.ledger_policy import pool_config, terms_of
from tidegate.stores.ledger_protocol import (
    LedgerUnavailable,
    News,
    PoolConfig,
    Pushed,
    Reply,
    Report,
    Subscription,
)
from tidegate.stores.replica_scheduler import SharedScheduler
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock

SEATS = 16
POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", SEATS),)),))


class Wire:
    """A ledger some milliseconds away. ``cut``: nothing passes; ``deaf``: pushes get lost."""

    def __init__(self, ledger: MemoryLedger, replica: str, one_way_s: float = 0.0005) -> None:
        self.ledger, self.replica, self.one_way_s = ledger, replica, one_way_s
        self.cut = self.deaf = self.refuses = False
        self.calls = 0
        self.at_once = 0
        self.most_at_once = 0
        self.listener: Callable[[News], None] | None = None

    async def turn(self, replica: str, report: Report) -> Reply:
        self.calls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.refuses:
                raise LedgerUnavailable("no")
            await asyncio.sleep(self.one_way_s)
            await self._pass()
            reply = await self.ledger.turn(replica, report)
            await asyncio.sleep(self.one_way_s)
            await self._pass()
            return reply
        finally:
            self.at_once -= 1

    async def _pass(self) -> None:
        while self.cut:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)

    async def leave(self, replica: str) -> None:
        await self.ledger.leave(replica)

    async def configuration(self) -> PoolConfig | None:
        return await self.ledger.configuration()

    async def configure(self, config: PoolConfig) -> None:
        await self.ledger.configure(config)

    async def view(self) -> Any:
        return await self.ledger.view()

    def subscribe(self, replica: str, listener: Callable[[News], None]) -> Subscription:
        self.listener = listener

        def later(news: News) -> None:
            if not (isinstance(news, Pushed) and (self.cut or self.deaf)):
                asyncio.get_running_loop().call_later(self.one_way_s, listener, news)

        return self.ledger.subscribe(replica, later)


class Gateway:
    """A driver whose pool is shared. ``hold_s`` is how long each lease is held."""

    def __init__(self, name: str, wire: Wire, policy: Policy = POLICY, hold_s: float = 0.2) -> None:
        loop = asyncio.get_running_loop()
        self.loop, self.wire, self.hold_s = loop, wire, hold_s
        self.shared = SharedScheduler(Scheduler(policy), lambda _: self.link.changed())
        self.client = self.shared.clients["m"] = Client("m", terms_of(policy, policy.pools[0]))
        self.driver = Driver(self.shared, LoopClock(), Recorder(policy))
        self.link = PoolLink(
            name, self.client, wire, bids=self.shared.bids, observe=self.driver.observe, clock=LoopClock()
        )
        self.waits: dict[int, list[float]] = {0: [], 1: [], 2: []}
        self.refused = 0
        self.count = 0

    def send(self, band: int, tenant: str = "t") -> None:
        self.count += 1
        ticket = Ticket(f"{id(self)}-{self.count}", "m", band, tenant, WorkEstimate(10, 10))
        self.driver.submit(ticket, Noting(on_lease=self._run, on_refusal=self._refuse))

    def _run(self, lease: Lease) -> None:
        self.waits[lease.ticket.band].append(lease.waited_s)
        self.loop.call_later(self.hold_s, self.driver.release, lease, Release())

    def _refuse(self, _: object) -> None:
        self.refused += 1

    @property
    def running(self) -> int:
        return self.driver.running


async def stage(count: int, **more: Any) -> tuple[MemoryLedgerStore, list[Gateway]]:
    """Gateways on a pool that is open."""
    store = MemoryLedgerStore()
    ledger = store.pool("m")
    await ledger.configure(pool_config(more.get("policy", POLICY), POLICY.pools[0], version=1))
    gateways = [Gateway(f"r{number}", Wire(ledger, f"r{number}"), **more) for number in range(count)]
    for each in gateways:
        each.link.start()
    await asyncio.sleep(2.5)
    assert all(each.client.standing is Standing.SHARED for each in gateways)
    return store, gateways


async def feed(each: Gateway, band: int, every_s: float, seconds: float) -> None:
    for _ in range(round(seconds / every_s)):
        each.send(band)
        await asyncio.sleep(every_s)


async def watch(gateways: list[Gateway], seconds: float) -> int:
    """Return the most that ran at once."""
    most = 0
    for _ in range(round(seconds / 0.01)):
        most = max(most, sum(each.running for each in gateways))
        await asyncio.sleep(0.01)
    return most


async def during(load: list[Coroutine[Any, Any, None]], story: Coroutine[Any, Any, Any]) -> Any:
    tasks = [asyncio.ensure_future(each) for each in load]
    found = await story
    for task in tasks:
        task.cancel()
    return found


def overload(first: Gateway, last: Gateway, seconds: float) -> list[Coroutine[Any, Any, None]]:
    """2.5 times what 16 seats of 0.2 s can do: all of p0 at one gateway, all of p2 at another."""
    return [feed(first, 0, 1 / 32, seconds), feed(first, 1, 1 / 40, seconds), feed(last, 2, 1 / 128, seconds)]


def p99(waits: list[float]) -> float:
    return sorted(waits)[int(0.99 * (len(waits) - 1))]
