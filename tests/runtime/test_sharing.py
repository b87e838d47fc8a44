"""One mode and one policy on gateways that share a pool; on virtual time, with the ledger in memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from tidegate.config import Settings, parse_settings, patch_policy
from tidegate.control import Audit, Keeper, Live, Sharing
from tidegate.core import Scheduler
from tidegate.runtime import Driver
from tidegate.runtime.replica_pools import Replica, ReplicaTerms
from tidegate.stores.ledger_memory import MemoryLedger, MemoryLedgerStore
from tidegate.stores.ledger_policy import pool_config
from tidegate.stores.ledger_protocol import LedgerUnavailable, PoolConfig
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock, run_virtual

MODELS = "models: [{name: m, backends: [{name: b, url: 'http://a', seats: 8}]}]\n"


def utc_now() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


class Gateway:
    """What of a gateway has to do with sharing."""

    def __init__(self, name: str, store: MemoryLedgerStore, more: str = "") -> None:
        settings = parse_settings(MODELS + more, source="f.yaml")
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


async def started(*gateways: Gateway) -> None:
    for each in gateways:
        await each.sharing.start()
        await asyncio.sleep(0.05)


async def stopped(*gateways: Gateway) -> None:
    for each in gateways:
        await each.sharing.stop()


def test_a_change_holds_on_all_within_a_second_and_is_recorded_there() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first, second = Gateway("r0", store), Gateway("r1", store)
        await started(first, second)
        first.live.switch("transactions_only", who="duty")
        await asyncio.sleep(0.9)
        assert second.live.mode == "transactions_only"
        assert second.audit.newest(1)[0].who == "duty at r0"
        second.patch(33)
        await asyncio.sleep(0.9)
        assert (first.weight, first.live.mode) == (33, "transactions_only")
        await stopped(first, second)

    run_virtual(story())


def test_who_starts_takes_what_is_in_force() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first = Gateway("r0", store)
        await started(first)
        first.patch(44)
        first.live.switch("transactions_only", who="duty")
        await asyncio.sleep(0.5)
        second = Gateway("r1", store)
        await started(second)
        assert (second.weight, second.live.mode) == (44, "transactions_only")
        await stopped(first, second)

    run_virtual(story())


def test_a_new_file_spreads_and_keeps_the_mode() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first = Gateway("r0", store)
        await started(first)
        first.live.switch("transactions_only", who="duty")
        await asyncio.sleep(0.5)
        second = Gateway("r1", store, "policy: {bands: {p1: {weight: 55}}}\n")
        await started(second)
        await asyncio.sleep(0.9)
        assert (first.weight, second.weight) == (55, 55)
        assert (first.live.mode, second.live.mode) == ("transactions_only", "transactions_only")
        await stopped(first, second)

    run_virtual(story())


def test_of_two_changes_at_once_one_holds_on_both() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first, second = Gateway("r0", store), Gateway("r1", store)
        await started(first, second)
        await asyncio.sleep(0.5)
        first.patch(61)
        second.patch(62)
        await asyncio.sleep(1.5)
        assert first.weight == second.weight
        await stopped(first, second)

    run_virtual(story())


def test_what_is_not_valid_on_another_gateway_changes_nothing_there() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first = Gateway("r0", store, "modes: {night: {admit: [p0, p1]}}\n")
        second = Gateway("r1", store)
        await started(first, second)
        first.live.switch("night", who="duty")
        await asyncio.sleep(0.9)
        assert (first.live.mode, second.live.mode) == ("night", "normal")
        config = await store.pool("default:m").configuration()
        assert config is not None
        strange = pool_config(
            second.replica.policy, second.replica.policy.pools[0], version=config.version + 1, document="?"
        )
        await store.pool("default:m").configure(strange)
        await asyncio.sleep(0.9)
        assert second.live.mode == "normal"
        await stopped(first, second)

    run_virtual(story())


def test_a_store_that_is_away_at_the_start_is_joined_when_it_comes() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first = Gateway("r0", store)
        ledger, there = store.pool("default:m"), False
        configure = ledger.configure

        async def away(config: PoolConfig) -> None:
            if not there:
                raise LedgerUnavailable("no")
            await configure(config)

        ledger.configure = away  # type: ignore[method-assign]
        await started(first)
        first.live.switch("transactions_only", who="duty")
        await asyncio.sleep(3.0)
        assert await MemoryLedger.configuration(ledger) is None
        there = True
        await asyncio.sleep(3.0)
        found = await ledger.configuration()
        assert found is not None
        assert found.mode == "transactions_only"
        document = await first.replica.document()
        assert document["pools"]["m"]["replicas"][0]["name"] == "r0"
        await stopped(first)

    run_virtual(story())


def test_models_that_come_and_go_are_joined_and_left() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first = Gateway("r0", store)
        await started(first)
        one = first.replica.policy
        two = parse_settings(
            "models: [{name: n, backends: [{name: c, url: 'http://a', seats: 8}]}]\n", source="f.yaml"
        ).core_policy()
        first.driver.set_policy(two)
        first.replica.obey(two)
        await asyncio.sleep(0.1)
        assert list(first.replica.links) == ["n"]
        first.driver.set_policy(one)
        first.replica.obey(one)
        assert first.replica.counts().calls >= 0
        await stopped(first)

    run_virtual(story())
