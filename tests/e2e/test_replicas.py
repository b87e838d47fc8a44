"""Three gateways in processes of their own on a real Valkey, under 2.5 times what their engine can do.

What ran at once is read from the engine's own record. Bounds are wide: they hold on a machine that does much else. What
faults of 20 s may cost is held, strictly and in virtual time, by ``tests/simulation/test_replica_faults.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.config import key_digest
from tidegate.testing.gateway_process import GatewayProcess
from tidegate.testing.grant_journal import GrantJournal, least_of, most_passing
from tidegate.testing.replica_course import course, overload, play
from tidegate.testing.replicas import NO_RESERVE, Pool, for_a_while, quantile, replica_pool
from tidegate.testing.valkey import ValkeyProcess, valkey_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.anyio,
    pytest.mark.timeout(60),  # of which a machine that does much else needs most to start five processes
]

SEATS, HOLD_S = 16, 1.0
SPARE = 3
"""Above the seats in a fault, as documented."""


@contextlib.asynccontextmanager
async def stage(folder: Path, **more: Any) -> AsyncIterator[tuple[Pool, ValkeyProcess]]:
    with valkey_process() as store:
        url = f"valkey://127.0.0.1:{{port}}#{store.port}"
        async with replica_pool(folder, url, seats=SEATS, hold_s=HOLD_S, **more) as pool:
            yield pool, store


async def wait_for(pool: Pool, seconds: float) -> tuple[float, float]:
    """Let time pass; return when it began and ended."""
    began = time.monotonic()
    await asyncio.sleep(seconds)
    return began, time.monotonic()


def post(gateway: GatewayProcess, path: str, body: dict[str, Any], method: str = "POST") -> int:
    request = urllib.request.Request(
        gateway.control + path, json.dumps(body).encode(), {"content-type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=40) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def get(gateway: GatewayProcess, path: str) -> str:
    with urllib.request.urlopen(gateway.control + path, timeout=40) as answer:
        return str(answer.read().decode())


def ready(gateway: GatewayProcess) -> bool:
    with urllib.request.urlopen(gateway.control + "/readyz", timeout=40) as answer:
        return int(answer.status) == 200


async def replicas_at(gateway: GatewayProcess) -> list[dict[str, Any]]:
    (pool,) = (await asyncio.to_thread(gateway.state))["cluster"]["pools"].values()
    return list(pool["replicas"])


async def test_a_pool_of_three_keeps_one_order(tmp_path: Path) -> None:
    async with stage(tmp_path) as (pool, store):
        with contextlib.closing(GrantJournal(store)) as journal:
            plan = course(overload(3), seats=SEATS, hold_s=HOLD_S, seconds=7.0)
            began = await play(pool, plan)
            since, until = began + 2.0, began + plan.seconds
            grants = journal.grants(since, until)
        most, used = pool.running(since, until)
        assert most <= SEATS + 1
        assert used >= 0.4
        assert quantile(pool.waits(0, since, until - 1.5), 0.5) <= 1.5
        least, windows = least_of(grants, 2, 20)
        assert windows > 0
        assert least >= 1, "the floor of p2, one in twenty, is exact in the order of grants"
        assert most_passing(grants, 20) <= 3 + 1, "and so is the cap of overtakes"
        assert len(pool.order(since, until)) <= len(grants) + SEATS
        assert pool.twice() == []
        assert pool.failed == 0


async def test_a_store_that_hangs_costs_no_request(tmp_path: Path) -> None:
    async with stage(tmp_path) as (pool, store):

        async def story() -> None:
            await asyncio.sleep(3.0)
            store.pause()
            began, ended = await wait_for(pool, 5.0)
            assert all([await asyncio.to_thread(ready, each) for each in pool.gateways])
            metrics = await asyncio.to_thread(pool.gateways[0].metrics)
            assert metrics["tidegate_store_degraded"] == 1.0
            most, used = pool.running(began + 1.0, ended)
            assert most <= SEATS + SPARE
            assert used >= 0.4
            store.resume()
            await pool.opened()
            assert pool.running(ended, time.monotonic())[0] <= SEATS + SPARE
            assert (pool.failed, pool.twice()) == (0, [])

        await for_a_while(pool.overload(), story)


async def test_a_store_that_comes_back_empty_is_filled_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as (pool, store):

        async def story() -> None:
            await asyncio.sleep(3.0)
            began = time.monotonic()
            store.kill()
            await asyncio.sleep(1.0)
            await asyncio.to_thread(store.start)
            await pool.opened()
            most, used = pool.running(began, time.monotonic())
            assert most <= SEATS + SPARE
            assert used >= 0.4
            assert (pool.failed, pool.twice()) == (0, [])

        await for_a_while(pool.overload(), story)


async def test_seats_of_a_killed_gateway_come_back(tmp_path: Path) -> None:
    async with stage(tmp_path, cluster=", lease_ttl: 2s") as (pool, _):

        async def story() -> None:
            await asyncio.sleep(3.0)
            began = time.monotonic()
            pool.gateways[2].signal(signal.SIGKILL)  # the one with all the batch work
            await asyncio.sleep(3.5)
            later = time.monotonic()
            await asyncio.sleep(3.0)
            async with asyncio.timeout(20):
                while {row["name"] for row in await replicas_at(pool.gateways[0])} != {"r0", "r1"}:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            most, _ = pool.running(began, time.monotonic())
            assert most <= SEATS + SPARE
            assert pool.waits(0, later, time.monotonic()) != []

        await for_a_while([pool.feed(0, 0, 0.6), pool.feed(1, 1, 1.0), pool.feed(2, 2, 1.0)], story)


async def test_a_gateway_that_was_frozen_starts_nothing_of_the_past(tmp_path: Path) -> None:
    async with stage(tmp_path, cluster=", lease_ttl: 2s") as (pool, _):

        async def story() -> None:
            await asyncio.sleep(3.0)
            frozen = pool.gateways[1]
            os.kill(frozen.pid, signal.SIGSTOP)
            await asyncio.sleep(4.0)
            woken = time.monotonic()
            os.kill(frozen.pid, signal.SIGCONT)
            await pool.opened()
            await asyncio.sleep(1.5)
            assert pool.running(woken + HOLD_S, time.monotonic())[0] <= SEATS + 1
            assert pool.twice() == []

        await for_a_while(pool.overload(), story)


async def test_a_gateway_that_is_cut_off_keeps_to_its_share(tmp_path: Path) -> None:
    async with stage(tmp_path, cluster=", lease_ttl: 2s", cut=True) as (pool, _):

        async def story() -> None:
            await asyncio.sleep(4.0)
            lost = pool.gateways[0]
            (found,) = (await asyncio.to_thread(lost.state))["cluster"]["pools"].values()
            pool.wires[0].cut = True
            began, ended = await wait_for(pool, 5.0)
            assert pool.running(began, ended)[0] <= SEATS + found["solo_share"] + 1
            assert quantile(pool.waits(0, began, ended - 1.2, 0), 0.5) <= 3.0
            assert (await asyncio.to_thread(lost.state))["cluster"]["degraded"]
            pool.wires[0].cut = False
            await pool.opened()
            assert (pool.failed, pool.twice()) == (0, [])

        await for_a_while(pool.overload(), story)


async def test_what_is_switched_on_one_holds_on_all(tmp_path: Path) -> None:
    async with stage(tmp_path) as (pool, _):
        first, second, third = pool.gateways

        async def all_say(what: Any) -> float:
            began = time.monotonic()
            while time.monotonic() < began + 20.0:
                if all([await asyncio.to_thread(what, each) for each in pool.gateways]):
                    return time.monotonic() - began
                await asyncio.sleep(0.02)
            raise AssertionError([(await asyncio.to_thread(each.state))["mode"] for each in pool.gateways])

        def weight(gateway: GatewayProcess) -> float:
            with urllib.request.urlopen(gateway.control + "/admin/policy", timeout=40) as answer:
                return float(json.load(answer)["bands"]["p1"]["weight"])

        assert await asyncio.to_thread(post, first, "/admin/mode", {"mode": "transactions_only"}) == 200
        assert await all_say(lambda each: each.state()["mode"] == "transactions_only") <= 15.0
        assert await asyncio.to_thread(post, third, "/admin/mode", {"mode": "normal"}) == 200
        assert await all_say(lambda each: each.state()["mode"] == "normal") <= 15.0
        change = {"bands": {"p1": {"weight": 33}}}
        assert await asyncio.to_thread(post, second, "/admin/policy", change, "PATCH") == 200
        assert await all_say(lambda each: weight(each) == 33.0) <= 15.0
        broken = {"bands": {"p1": {"weight": -1}}}
        assert await asyncio.to_thread(post, second, "/admin/policy", broken, "PATCH") == 400
        await asyncio.sleep(1.0)
        assert {await asyncio.to_thread(weight, each) for each in pool.gateways} == {33.0}
        assert "at r1" in await asyncio.to_thread(get, third, "/admin/audit")


async def test_a_flood_at_one_gateway_leaves_a_small_tenant_of_another_its_share(tmp_path: Path) -> None:
    tenants = ", ".join(
        f'{{name: {name}, keys: ["{key_digest(f"key-{name}")}"], band: p1}}' for name in ("small", "flood")
    )
    async with stage(tmp_path, more=f"{NO_RESERVE}tenants: [{tenants}]\n") as (pool, _):

        async def story() -> None:
            await asyncio.sleep(3.0)
            began, ended = await wait_for(pool, 7.0)
            small, flood = pool.waits(1, began, ended - 2.5, 0), pool.waits(1, began - 2.0, ended - 1.0, 1)
            assert quantile(flood, 0.99) > 2.0
            assert quantile(small, 0.5) <= 0.6 * quantile(flood, 0.99), "by arrival alone both would wait alike"

        load = [pool.feed(0, 1, 0.3, key="key-small"), pool.feed(1, 1, 3.0, key="key-flood")]
        await for_a_while(load, story)
