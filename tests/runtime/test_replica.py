"""Several gateways on one pool, with calls that take time, get lost, or come to nothing; all on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from runtime.stories import Noting
from tidegate.core import BackendSpec, Lease, Policy, PoolSpec, Release, Requeue, Scheduler, Ticket, WorkEstimate
from tidegate.runtime import Driver
from tidegate.runtime.replica import PoolLink
from tidegate.stores.ledger_client import Client, Standing
from tidegate.stores.ledger_memory import MemoryLedger, MemoryLedgerStore
from tidegate.stores.ledger_policy import pool_config, terms_of
from tidegate.stores.ledger_protocol import (
    LedgerUnavailable,
    Lost,
    News,
    PoolConfig,
    Pushed,
    Reply,
    Report,
    Subscribed,
    Subscription,
)
from tidegate.stores.replica_scheduler import SharedScheduler
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock, run_virtual

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


def test_replicas_keep_one_order_and_the_seats() -> None:
    async def story() -> None:
        _, gateways = await stage(3)
        most = await during(overload(gateways[0], gateways[2], 20.0), watch(gateways, 20.0))
        assert most == SEATS
        first, last = gateways[0], gateways[2]
        assert p99(first.waits[0]) < 0.3
        done = sum(len(waits) for each in gateways for waits in each.waits.values())
        assert done >= 0.97 * 20.0 * SEATS / 0.2
        assert len(last.waits[2]) >= 0.05 * done
        for each in gateways:
            assert each.wire.most_at_once == 1
            assert each.client.counts.solo_s < 2.5

    run_virtual(story())


def test_without_pushes_waiting_work_is_granted_by_asking() -> None:
    async def story() -> None:
        _, (a, b) = await stage(2)
        b.wire.deaf = True
        for _ in range(SEATS):
            a.send(0)
        b.send(1)
        await asyncio.sleep(0.35)
        assert len(b.waits[1]) == 1

    run_virtual(story())


@pytest.mark.parametrize("way", ["cut", "refuses"])
def test_in_an_outage_each_goes_on_with_its_share_and_back(way: str) -> None:
    async def story() -> None:
        _, gateways = await stage(3)
        load = overload(gateways[0], gateways[2], 60.0)

        async def events() -> None:
            await asyncio.sleep(15.0)
            shares = [each.client.reply.solo_share for each in gateways if each.client.reply]
            assert sum(shares) <= SEATS
            for each in gateways:
                setattr(each.wire, way, True)
            before = sum(len(waits) for each in gateways for waits in each.waits.values())
            most = await watch(gateways, 10.0)
            assert most <= SEATS + 1
            assert all(each.client.degraded for each in gateways)
            done = sum(len(waits) for each in gateways for waits in each.waits.values()) - before
            assert done >= 0.75 * 10.0 * SEATS / 0.2
            for each in gateways:
                setattr(each.wire, way, False)
            most = await watch(gateways, 5.0)
            assert most <= SEATS + 1
            assert all(each.client.standing is Standing.SHARED for each in gateways)

        await during(load, events())
        assert max(gateways[0].waits[0]) < 10.0  # none was lost, none expired

    run_virtual(story())


def test_a_ledger_that_hangs_makes_no_request_wait_a_tenth_of_a_second_for_it() -> None:
    """Below capacity, so that nothing but the ledger makes anybody wait; over its end and its return."""

    async def story() -> None:
        _, gateways = await stage(3)
        load = [feed(each, band, 1 / 5, 30.0) for each in gateways for band in range(3)]

        async def events() -> None:
            await asyncio.sleep(10.0)
            for _ in range(3):
                for each in gateways:
                    each.wire.cut = True
                await asyncio.sleep(1.6)
                for each in gateways:
                    each.wire.cut = False
                await asyncio.sleep(3.0)

        await during(load, events())
        waits = [wait for each in gateways for band in each.waits.values() for wait in band]
        assert len(waits) > 900
        assert max(waits) <= 0.1
        assert sum(each.refused for each in gateways) == 0

    run_virtual(story())


def test_a_ledger_that_stumbles_again_and_again_costs_neither_seats_nor_throughput() -> None:
    async def story() -> None:
        _, gateways = await stage(3)

        async def events() -> None:
            await asyncio.sleep(10.0)
            before = sum(len(waits) for each in gateways for waits in each.waits.values())
            watching = asyncio.ensure_future(watch(gateways, 10.0))
            for _ in range(25):
                for each in gateways:
                    each.wire.cut = True
                await asyncio.sleep(0.15)
                for each in gateways:
                    each.wire.cut = False
                await asyncio.sleep(0.25)
            assert await watching <= SEATS + 2  # one for each that is below its share, and one of the three is not
            done = sum(len(waits) for each in gateways for waits in each.waits.values()) - before
            assert done >= 0.85 * 10.0 * SEATS / 0.2
            assert not any(each.client.degraded for each in gateways)

        await during(overload(gateways[0], gateways[2], 40.0), events())

    run_virtual(story())


def test_that_an_answer_is_late_is_not_logged_and_that_the_ledger_is_away_is() -> None:
    async def story() -> list[str]:
        _, (a, _) = await stage(2)
        with capture_logs() as logs:
            for seconds in (0.1, 0.6):
                a.wire.cut = True
                a.send(0)
                await asyncio.sleep(seconds)
                assert a.client.standing is Standing.SOLO
                a.wire.cut = False
                await asyncio.sleep(0.5)
        assert a.client.counts.grants + len(a.waits[0]) >= 2
        return [entry["event"] for entry in logs if entry["event"].startswith("cluster.")]

    assert run_virtual(story()) == ["cluster.solo", "cluster.shared"]


def test_the_end_of_being_alone_is_logged_once_when_seats_are_dealt_again() -> None:
    async def story() -> tuple[list[str], list[str]]:
        store, (a, _) = await stage(2)
        with capture_logs() as wiped:
            store.pool("m")._pool.state = None  # as a server that was started anew, empty
            await asyncio.sleep(4.0)
        with capture_logs() as away:
            a.wire.cut = True
            await asyncio.sleep(1.5)
            store.pool("m")._pool.state = None
            a.wire.cut = False
            await asyncio.sleep(0.5)
            a.wire.cut = True  # late once more before the pool opens: one outage
            await asyncio.sleep(0.2)
            a.wire.cut = False
            await asyncio.sleep(4.0)
        assert a.client.standing is Standing.SHARED
        return [each["event"] for each in wiped], [each["event"] for each in away]

    for told in run_virtual(story()):
        assert told == ["cluster.solo"] * 2 + ["cluster.shared"] * 2, "once for each of the two gateways"


def test_why_the_ledger_does_not_answer_is_logged_once_and_again_when_it_is_another_reason() -> None:
    async def story() -> list[str]:
        _, (a, _) = await stage(2)
        with capture_logs() as logs:
            for refuses, cut, seconds in (
                (True, False, 30.0),
                (False, True, 30.0),
                (False, False, 4.0),
                (True, False, 1.0),
            ):
                a.wire.refuses, a.wire.cut = refuses, cut
                await asyncio.sleep(seconds)
        return [entry["why"] for entry in logs if entry["event"] == "cluster.no_answer"]

    assert run_virtual(story()) == ["no", "it took too long", "no"]


def test_a_wiped_ledger_starts_nothing_twice() -> None:
    async def story() -> None:
        store, gateways = await stage(3)

        async def events() -> None:
            await asyncio.sleep(10.0)
            store.pool("m")._pool.state = None  # as a server that was started anew, empty
            most = await watch(gateways, 6.0)
            assert most <= SEATS + 2
            assert all(each.client.standing is Standing.SHARED for each in gateways)
            view = await gateways[0].wire.view()
            assert sum(view.held) <= SEATS

        await during(overload(gateways[0], gateways[2], 30.0), events())

    run_virtual(story())


def test_a_replica_cut_off_keeps_within_its_share_and_the_others_get_its_seats() -> None:
    async def story() -> None:
        _, gateways = await stage(3)

        async def events() -> None:
            await asyncio.sleep(15.0)
            lost = gateways[0]
            assert lost.client.reply is not None
            share = lost.client.reply.solo_share
            lost.wire.cut = True
            most = await watch(gateways, 15.0)
            assert most <= SEATS + share
            assert lost.running <= share
            assert p99(lost.waits[0]) < 0.5
            lost.wire.cut = False
            await asyncio.sleep(1.0)
            assert await watch(gateways, 5.0) <= SEATS

        await during(overload(gateways[0], gateways[2], 60.0), events())

    run_virtual(story())


def test_a_replica_that_leaves_frees_its_seats_at_once() -> None:
    async def story() -> None:
        _, (a, b) = await stage(2, hold_s=5.0)
        for _ in range(SEATS):
            a.send(0)
        await asyncio.sleep(0.1)
        assert a.running == SEATS
        await a.link.stop()
        await a.link.stop()
        b.send(1)
        await asyncio.sleep(0.2)
        assert b.running == 1
        a.link.changed()
        a.link.go_on()
        a.link._hear(Subscribed())
        a.link._hear(Lost())

    run_virtual(story())


def test_what_is_used_beyond_the_estimate_is_charged_and_corrected() -> None:
    async def story() -> None:
        _, (a, _) = await stage(2)
        waiter = Noting()
        a.driver.submit(Ticket("1", "m", 1, "t", WorkEstimate(10, 10)), waiter)
        await asyncio.sleep(0.1)
        a.driver.release(waiter.leases[0], Release(input_tokens=10, output_tokens=500))
        again = Noting()
        a.driver.submit(Ticket("2", "m", 1, "t", WorkEstimate(10, 10)), again)
        await asyncio.sleep(0.1)
        a.driver.requeue(again.leases[0], Requeue(), Noting(on_lease=a._run))
        await asyncio.sleep(0.5)
        assert a.client.reply is not None
        assert a.client.reply.charged == 2

    run_virtual(story())


def test_an_idle_pool_costs_a_heartbeat_and_no_more() -> None:
    async def story() -> None:
        _, (a, b) = await stage(2)
        before = a.wire.calls
        await asyncio.sleep(10.0)
        assert 20 <= a.wire.calls - before <= 24
        b.driver.set_policy(POLICY)
        b.driver.cancel("nobody")
        await asyncio.sleep(0.1)

    run_virtual(story())
