"""Ledgers on the wire: what is pushed, who counts as gone, and what a lost server looks like. Real servers and time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from conformance.ledger_stage import bid, config, subscribed
from conformance.ledger_wires import Ear, configure_soon, open_pool, two_stores
from tidegate.stores.errors import StoreError
from tidegate.stores.ledger_memory import MemoryLedgerStore
from tidegate.stores.ledger_protocol import (
    LedgerStore,
    LedgerUnavailable,
    News,
    Pushed,
    Report,
    Subscribed,
)
from tidegate.stores.ledger_socket import serve_ledger

WIRES = [
    "memory",
    pytest.param("socket", marks=pytest.mark.slow),
    pytest.param("valkey", marks=pytest.mark.services),
    pytest.param("cluster", marks=pytest.mark.services),
    pytest.param("postgres", marks=pytest.mark.services),
]
Wire = Callable[[], Any]


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest, tmp_path: Path) -> Wire:
    """Opens two stores, as two processes would, on one empty pool that is named after the test."""
    kind = request.param
    if kind == "memory":
        return _memory
    if kind == "socket":
        return lambda: _socket(tmp_path / "ledger")
    name = {"valkey": "valkey_server", "cluster": "valkey_cluster", "postgres": "postgres"}[kind]
    url = request.getfixturevalue(name).url
    return lambda: two_stores(url)


@asynccontextmanager
async def _memory() -> AsyncIterator[tuple[LedgerStore, LedgerStore]]:
    store = MemoryLedgerStore()
    yield store, store


@asynccontextmanager
async def _socket(path: Path) -> AsyncIterator[tuple[LedgerStore, LedgerStore]]:
    server = await serve_ledger(path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    async with two_stores(f"unix://{path}") as stores:
        yield stores
    await server.close()


def test_a_grant_is_pushed_to_the_replica_it_is_for(wire: Wire) -> None:
    async def story() -> None:
        async with wire() as stores:
            one, two = await open_pool(stores, "pushed")
            ear = Ear()
            await subscribed(one, "one")
            await subscribed(two, "two", ear)
            first = await one.turn("one", Report(bids=(bid(1, 2),)))
            waiting = await two.turn("two", Report(bids=(bid(1, 1),)))
            assert (len(first.grants), waiting.grants) == (2, ())
            await one.turn("one", Report(epoch=first.epoch, sequence=2, ack=2, used=(("b0", 1),)))
            pushed = await ear.until(Pushed)
            assert isinstance(pushed, Pushed)
            assert (pushed.epoch, pushed.grant.number) == (waiting.epoch, 1)
            again = await two.turn("two", Report(epoch=waiting.epoch, sequence=2, bids=(bid(1, 1),)))
            assert again.grants == (pushed.grant,)

    asyncio.run(story())


@pytest.mark.parametrize("wire", WIRES[1:], indirect=True)  # in memory nothing listens
def test_who_fails_to_hear_a_push_hears_the_next(wire: Wire) -> None:
    """A listener that raised ended the listening for good, without a word."""

    async def story() -> None:
        async with wire() as stores:
            one, two = await open_pool(stores, "deaf")
            ear, failed = Ear(), False

            def listen(news: News) -> None:
                nonlocal failed
                if isinstance(news, Subscribed) and not failed:
                    failed = True
                    raise KeyError("as never before")
                ear(news)

            two.subscribe("two", listen)
            await ear.until(Subscribed)
            assert failed
            await one.turn("one", Report())
            waiting = await two.turn("two", Report())
            assert waiting.replicas == 2

    with capture_logs() as logs:
        asyncio.run(story())
    assert [line["event"] for line in logs] == ["cluster.fault"]


def test_nothing_is_granted_to_a_replica_that_has_gone(wire: Wire) -> None:
    async def story() -> None:
        async with wire() as stores:
            one, two = await open_pool(stores, "gone")
            await subscribed(one, "one")
            last = await subscribed(two, "last")
            gone = await subscribed(two, "gone")
            first = await one.turn("one", Report(bids=(bid(1, 2),)))
            await two.turn("gone", Report(bids=(bid(1, 1, 900),)))
            left = await two.turn("last", Report(bids=(bid(1, 1),)))
            await gone.close()
            await asyncio.sleep(1.0)  # until its server has noticed
            await one.turn("one", Report(epoch=first.epoch, sequence=2, ack=2, used=(("b0", 1),)))
            after = await two.turn("last", Report(epoch=left.epoch, sequence=2, bids=(bid(1, 1),)))
            assert len(after.grants) == 1
            await last.close()

    asyncio.run(story())


def test_the_picture_and_the_configuration_are_the_same_from_everywhere(wire: Wire) -> None:
    async def story() -> None:
        async with wire() as stores:
            one, two = (store.pool("seen") for store in stores)
            assert await two.configuration() is None
            assert await two.view() is None
            with pytest.raises(LedgerUnavailable):
                await two.turn("two", Report())
            await configure_soon(one, config(2, mode="calm"))
            assert await two.configuration() == config(2, mode="calm")
            await one.turn("one", Report(bids=(bid(1, 1),)))
            view = await two.view()
            assert view is not None
            assert [(row.name, row.held) for row in view.rows] == [("one", (1,))]
            await two.leave("one")
            view = await two.view()
            assert view is not None
            assert view.rows == ()

    asyncio.run(story())


def test_two_pools_of_one_store_know_nothing_of_each_other(wire: Wire) -> None:
    async def story() -> None:
        async with wire() as stores:
            one, other = stores[0].pool("first"), stores[0].pool("second")
            assert stores[0].pool("first") is one
            await configure_soon(one, config(2))
            await configure_soon(other, config(3))
            reply = await one.turn("one", Report(bids=(bid(1, 2),)))
            assert len(reply.grants) == 2
            reply = await other.turn("one", Report(bids=(bid(1, 1),)))
            assert (len(reply.grants), reply.replicas) == (1, 1)

    asyncio.run(story())


@pytest.mark.slow
def test_a_fault_in_one_pool_of_a_served_ledger_hangs_up_on_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        store = MemoryLedgerStore()
        server = await serve_ledger(tmp_path / "ledger", store)
        async with two_stores(f"unix://{tmp_path / 'ledger'}") as (one, _):
            good, bad = one.pool("good"), one.pool("bad")
            await good.configure(config(2))

            async def broken(*_: object) -> None:
                raise KeyError("as never before")

            store.pool("bad").turn = broken  # type: ignore[method-assign, assignment]
            for _ in range(3):
                with pytest.raises(StoreError, match="fault"):
                    await bad.turn("one", Report())
                assert (await good.turn("one", Report())).replicas == 1
        await server.close()

    with capture_logs() as logs:
        asyncio.run(story())
    assert [line["event"] for line in logs] == ["cluster.fault"] * 3
