"""Mode and policy of gateways that could not reach the store for a while, or have other bands; on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from runtime.sharing_stage import MODELS, Gateway, Line, started, stopped
from tidegate.config import TenantSettings, parse_settings
from tidegate.core import Scheduler
from tidegate.runtime.replica_pools import Replica, ReplicaTerms
from tidegate.stores.ledger_memory import MemoryLedgerStore
from tidegate.testing import LoopClock, run_virtual


async def make_tenant(gateway: Gateway) -> None:
    tenant = TenantSettings(name="new", keys=("sha256:" + 64 * "0",), band="p1", weight=3)
    await gateway.live.adopt(await gateway.live.ready({"new": tenant}))


@contextlib.asynccontextmanager
async def apart(
    store: MemoryLedgerStore | None = None, *, cut: bool = False
) -> AsyncIterator[tuple[Gateway, Gateway, Line]]:
    """Two gateways on one store; the line of the second to it can be cut, from the start if wished."""
    store = store or MemoryLedgerStore()
    line = Line(store, cut=cut)
    first, second = Gateway("r0", store), Gateway("r1", line)
    await started(first, second)
    yield first, second, line
    await stopped(first, second)


def test_a_mode_that_is_switched_before_the_store_was_ever_reached_is_not_taken_back_by_it() -> None:
    async def story() -> None:
        async with apart(cut=True) as (first, second, line):
            first.patch(44)
            second.live.switch("transactions_only", who="duty")
            await asyncio.sleep(1.0)
            line.cut = False
            await asyncio.sleep(4.0)
            assert (first.live.mode, second.live.mode) == ("transactions_only", "transactions_only")
            assert (first.weight, second.weight) == (44, 44), "what was changed elsewhere, and not here, stays"

    run_virtual(story())


def test_a_file_that_is_read_again_before_the_store_was_ever_reached_spreads() -> None:
    async def story() -> None:
        async with apart(cut=True) as (first, second, line):
            file = parse_settings(MODELS + "policy: {bands: {p1: {weight: 55}}}\n", source="f.yaml")
            second.live.change(file, who="duty", action="reload")
            line.cut = False
            await asyncio.sleep(4.0)
            assert (first.weight, second.weight) == (55, 55)

    run_virtual(story())


def test_a_mode_that_is_switched_while_the_store_is_away_spreads_when_it_is_back() -> None:
    async def story() -> None:
        async with apart() as (first, second, line):
            line.cut = True
            for weight in (41, 42, 43):
                first.patch(weight)
                await asyncio.sleep(0.2)
            second.live.switch("transactions_only", who="duty")
            await asyncio.sleep(1.0)
            line.cut = False
            await asyncio.sleep(4.0)
            assert (first.live.mode, second.live.mode) == ("transactions_only", "transactions_only")
            assert (first.weight, second.weight) == (43, 43)

    run_virtual(story())


@pytest.mark.parametrize("cut", [True, False])
def test_a_tenant_that_is_changed_elsewhere_takes_back_no_mode(cut: bool) -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        async with apart(store) as (first, second, line):
            line.cut = cut
            first.live.switch("transactions_only", who="duty")
            await make_tenant(second)
            await asyncio.sleep(1.0)
            line.cut = False
            await asyncio.sleep(4.0)
            assert (first.live.mode, second.live.mode) == ("transactions_only", "transactions_only")
            config = await store.pool("default:m").configuration()
            assert config is not None
            assert [each.name for each in config.tenants] == ["new"]

    run_virtual(story())


def test_a_tenant_that_is_changed_where_the_mode_is_unknown_takes_it_back_from_nobody() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        line = Line(store)
        first = Gateway("r0", store, "modes: {night: {admit: [p0, p1]}}\n")
        second = Gateway("r1", line, "modes: {day: {admit: [p0, p1]}}\n")
        await started(first, second)
        line.cut = True
        first.live.switch("night", who="duty")
        await make_tenant(second)
        await asyncio.sleep(0.5)
        line.cut = False
        await asyncio.sleep(4.0)
        assert (first.live.mode, second.live.mode) == ("night", "normal")
        await stopped(first, second)

    run_virtual(story())


def test_another_number_of_bands_comes_in_force_with_the_last_gateway_that_had_the_old_one() -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        first = Gateway("r0", store)
        second = Gateway("r1", store, "policy: {bands: {p0: {}, p1: {}, p2: {}, p3: {floor: 0}}}\n")
        with capture_logs() as logs:
            await started(first, second)
            await asyncio.sleep(4.0)
        why = [line["why"] for line in logs if line["event"] == "cluster.waits"]
        assert len(why) == 1, "it is tried again now and then, and told once"
        assert "policy.bands: expected 3 bands" in why[0]
        assert str(second.replica.links["m"].client.standing) == "solo"
        assert str(first.replica.links["m"].client.standing) == "shared"
        first.live.switch("transactions_only", who="duty")
        await asyncio.sleep(0.9)
        assert second.live.mode == "transactions_only"
        await stopped(first)
        await asyncio.sleep(5.0)
        config = await store.pool("default:m").configuration()
        assert config is not None
        assert (len(config.bands), config.mode) == (4, "transactions_only")
        assert str(second.replica.links["m"].client.standing) == "shared"
        await stopped(second)

    run_virtual(story())


def test_pools_of_other_groups_are_never_ours_whatever_their_names() -> None:
    async def story() -> None:
        store, ledgers = MemoryLedgerStore(), []
        for group, model in (("a", "b:c"), ("a:b", "c")):
            policy = parse_settings(MODELS.replace("name: m", f"name: '{model}'"), source="f.yaml").core_policy()
            replica = Replica(ReplicaTerms("r0", group=group), store, Scheduler(policy), LoopClock())
            replica.join(lambda _: None)
            ledgers.append(replica.links[model].ledger)
        assert ledgers[0] is store.pool("a:b:c")
        assert ledgers[1] is not ledgers[0]

    run_virtual(story())
