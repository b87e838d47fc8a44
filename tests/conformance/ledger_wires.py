"""Stores as processes open them, for tests on the wire: with real time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from conformance.ledger_stage import config
from tidegate.stores.ledger_protocol import (
    Ledger,
    LedgerStore,
    LedgerUnavailable,
    News,
    PoolConfig,
    Reply,
    Report,
)
from tidegate.stores.open_ledger import open_ledger

LONG_S = 40.0


@asynccontextmanager
async def two_stores(url: str) -> AsyncIterator[tuple[LedgerStore, LedgerStore]]:
    one, two = open_ledger(url), open_ledger(url)
    try:
        yield one, two
    finally:
        await one.close()
        await two.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[LedgerStore]:
    store = open_ledger(url)
    try:
        yield store
    finally:
        await store.close()


class Ear:
    """Hears news, and waits for some."""

    def __init__(self) -> None:
        self.news: list[News] = []
        self._more = asyncio.Event()

    def __call__(self, news: News) -> None:
        self.news.append(news)
        self._more.set()

    async def until(self, kind: type[News], count: int = 1) -> News:
        async with asyncio.timeout(LONG_S):
            while sum(isinstance(each, kind) for each in self.news) < count:
                self._more.clear()
                await self._more.wait()
        return [each for each in self.news if isinstance(each, kind)][-1]


async def open_pool(stores: tuple[LedgerStore, LedgerStore], name: str) -> tuple[Ledger, Ledger]:
    one, two = (store.pool(name) for store in stores)
    await configure_soon(one, config(2))
    await two.configuration()
    return one, two


async def configure_soon(ledger: Ledger, config: PoolConfig) -> None:
    """The first call to a server may take long on a busy machine: a cluster is explored, the function is loaded."""
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                return await ledger.configure(config)
            except LedgerUnavailable:
                await asyncio.sleep(0.02)


async def turn_soon(ledger: Ledger, replica: str, report: Report) -> Reply:
    """Call until the ledger is there again."""
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                return await ledger.turn(replica, report)
            except LedgerUnavailable:
                await asyncio.sleep(0.02)
