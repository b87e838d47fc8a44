"""One mode and one policy on gateways that share a pool; on virtual time, with the ledger in memory."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from runtime.sharing_stage import Elsewhere, Gateway, started, stopped
from tidegate.config import parse_settings
from tidegate.stores.ledger_memory import MemoryLedger, MemoryLedgerStore, MemoryPool
from tidegate.stores.ledger_policy import pool_config
from tidegate.stores.ledger_protocol import LedgerUnavailable, PoolConfig
from tidegate.testing import run_virtual


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


TWO = "models: [{name: m, backends: [{url: 'http://a'}]}, {name: n, backends: [{url: 'http://b'}]}]\n"


def silent(ledger: MemoryLedger) -> None:
    """The server of this pool hangs: nobody is answered, nobody is refused."""

    async def never(*_: object) -> None:
        await asyncio.sleep(3600.0)

    for name in ("turn", "configuration", "configure", "leave", "view"):
        setattr(ledger, name, never)


@pytest.mark.parametrize("dead", ["m", "n"])
def test_a_pool_whose_server_is_away_holds_up_no_change_of_the_others(dead: str) -> None:
    """Pools may lie on different servers, in a cluster for one: mode and policy spread by any that answers."""

    async def story() -> None:
        store = MemoryLedgerStore()
        first, second = Gateway("r0", store, models=TWO), Gateway("r1", store, models=TWO)
        await started(first, second)
        silent(store.pool(f"default:{dead}"))
        first.live.switch("transactions_only", who="duty")
        await asyncio.sleep(0.9)
        assert second.live.mode == "transactions_only"
        alive = await store.pool("default:n" if dead == "m" else "default:m").configuration()
        assert alive is not None
        assert alive.mode == "transactions_only"
        third = Gateway("r2", store, models=TWO)
        await started(third)
        await asyncio.sleep(3.0)
        assert third.live.mode == "transactions_only"
        first.live.switch("normal", who="duty")
        await asyncio.sleep(0.9)
        assert (second.live.mode, third.live.mode) == ("normal", "normal")
        for each in (first, second, third):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(each.sharing.stop(), 5.0)

    run_virtual(story())


def test_what_nobody_has_foreseen_is_told_and_tried_again() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        gateway = Gateway("r0", store)
        ledger = gateway.replica.links["m"].ledger
        plain, broken = ledger.configuration, True

        async def configuration() -> PoolConfig | None:
            if broken:
                raise KeyError("as never before")
            return await plain()

        ledger.configuration = configuration  # type: ignore[method-assign]
        with capture_logs() as logs:
            await started(gateway)
            await asyncio.sleep(2.0)
            broken = False
            await asyncio.sleep(2.5)
        assert {line["what"] for line in logs if line["event"] == "cluster.fault"} == {"join"}
        config = await plain()
        assert config is not None
        assert config.document
        await stopped(gateway)

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


def test_of_each_pool_what_is_in_force_is_known_and_given_back_to_a_store_that_lost_it() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        models = "models:\n" + "".join(
            f"  - {{name: {name}, backends: [{{name: b{name}, url: 'http://a', seats: 8}}]}}\n" for name in "mno"
        )
        ways = [Elsewhere(store), Elsewhere(store)]
        first, second = (Gateway(f"r{at}", way, models=models) for at, way in enumerate(ways))
        await started(first, second)
        await asyncio.sleep(1.0)
        first.live.change(parse_settings(models.replace("8", "5"), source="f.yaml"), who="duty", action="reload")
        await asyncio.sleep(0.01)
        second.replica.scheduler.clients["n"].changed()  # as when work comes: one pool hears of it before the others
        second.replica.links["n"].changed()
        await asyncio.sleep(1.0)
        names = list(ways[1].handles)
        known = [ways[1].handles[name].known for name in names]
        in_force = [await store.pool(name).configuration() for name in names]
        assert known == in_force, "the picture of a pool is drawn by it"
        await stopped(first)
        for name in names:
            store.pool(name)._pool = MemoryPool()  # as a server that was started anew, empty
        await asyncio.sleep(3.0)
        assert [await store.pool(name).configuration() for name in names] == in_force
        await stopped(second)

    run_virtual(story())
