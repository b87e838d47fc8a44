"""A stage for ledgers: pools with the time in the test's hands, the same on every kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tidegate.stores.ledger_memory import MemoryLedgerStore, MemoryPool
from tidegate.stores.ledger_protocol import (
    PPM,
    BackendConfig,
    BandConfig,
    Bid,
    Grant,
    Head,
    Ledger,
    News,
    PoolConfig,
    PoolView,
    Reply,
    Report,
    Subscribed,
)
from tidegate.stores.ledger_socket import LedgerServer, SocketLedgerStore, serve_ledger

T = TypeVar("T")
START_MS = 1_700_000_000_000
FENCE_MS = 250
"""A replica ignores grants that are older."""

BANDS = (
    BandConfig(name="p0", weight_ppm=100 * PPM, aging_ppm=50_000, share=8),
    BandConfig(name="p1", weight_ppm=20 * PPM, aging_ppm=20_000, share=2),
    BandConfig(name="p2", weight_ppm=PPM, aging_ppm=5_000, floor_ppm=50_000, promote_after_ms=1_800_000),
)


def config(*seats: int, version: int = 1, **changes: object) -> PoolConfig:
    """Backends ``b0``, ``b1``, ... with these seats; open at once, unless told otherwise."""
    backends = tuple(BackendConfig(name=f"b{index}", seats=each) for index, each in enumerate(seats or (4,)))
    values: dict[str, object] = {
        "backends": backends,
        "bands": BANDS,
        "cap_ppm": 100_000,
        "heartbeat_ms": 1000,
        "rebuild_ms": 0,
    }
    return PoolConfig(version=version, **(values | changes))  # type: ignore[arg-type]


def bid(band: int, count: int = 1, *ages: int, tenant: str = "t", work: int = 1, **more: object) -> Bid:
    """A bid in order of arrival; ``ages`` of its heads, by default one of 0 ms."""
    heads = tuple(Head(age, tenant, work) for age in ages or (0,))
    return Bid(band, count, heads[0], heads, **more)  # type: ignore[arg-type]


def listens(replica: str, epoch: int, grant: Grant) -> bool:
    """Where the test has the time in its hands, nobody listens for a name with an x."""
    return not replica.startswith("x")


class Stage:
    """One pool on one kind of store. Synchronous: every call runs the event loop until it is answered."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.now = START_MS
        self.ledger: Ledger | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to its end."""
        return self.runner.run(work)

    def configure(self, *seats: int, **changes: object) -> None:
        """Put a configuration in force; see ``config``."""
        self.put(config(*seats, **changes))  # type: ignore[arg-type]

    def put(self, config: PoolConfig) -> None:
        """Put a configuration in force."""
        assert self.ledger is not None
        self.run(self.ledger.configure(config))

    def configuration(self) -> PoolConfig | None:
        """Return the configuration in force."""
        assert self.ledger is not None
        return self.run(self.ledger.configuration())

    def turn(self, replica: str, report: Report) -> Reply:
        """One turn, now."""
        raise NotImplementedError

    def leave(self, replica: str) -> None:
        """One replica leaves."""
        assert self.ledger is not None
        self.run(self.ledger.leave(replica))

    def view(self) -> PoolView:
        """The whole pool."""
        assert self.ledger is not None
        view = self.run(self.ledger.view())
        assert view is not None
        return view

    def wipe(self) -> None:
        """Take everything from the store, as a restart does."""
        raise NotImplementedError

    def forget(self) -> None:
        """Take from the store what it keeps in memory beside its keys, as a fail-over does."""

    def change_release(self) -> None:
        """Go on with another release of the code that decides; the same one again after two changes."""

    def replica(self, name: str) -> Replica:
        """A replica that obeys the protocol."""
        return Replica(self, name)

    def close(self) -> None:
        """Close connections."""
        self.runner.close()


class MemoryStage(Stage):
    """The model itself."""

    def __init__(self) -> None:
        super().__init__()
        self._fresh()

    def _fresh(self) -> None:
        self.pool = MemoryPool()

    def put(self, config: PoolConfig) -> None:
        self.pool.configure(config)
        self._config = config

    def configuration(self) -> PoolConfig | None:
        return self.pool.config

    def turn(self, replica: str, report: Report) -> Reply:
        return self.pool.turn(self.now, replica, report, listens)

    def leave(self, replica: str) -> None:
        self.pool.leave(replica)

    def view(self) -> PoolView:
        view = self.pool.view(self.now)
        assert view is not None
        return view

    def wipe(self) -> None:
        self._fresh()
        self.pool.configure(self._config)

    def wipe_all(self) -> None:
        """Take the configuration too."""
        self._fresh()


class SocketStage(Stage):
    """The model behind a socket, with real subscriptions."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.run(self._start())

    async def _start(self) -> None:
        self.server: LedgerServer = await serve_ledger(self.path, MemoryLedgerStore(clock=lambda: self.now))
        self.store: SocketLedgerStore = SocketLedgerStore(self.path)
        self.ledger = self.handle = self.store.pool("pool")
        self.subscribed: set[str] = set()

    def turn(self, replica: str, report: Report) -> Reply:
        async def work() -> Reply:
            assert self.ledger is not None
            if replica not in self.subscribed and not replica.startswith("x"):
                await subscribed(self.ledger, replica)
                self.subscribed.add(replica)
            return await self.ledger.turn(replica, report)

        return self.run(work())

    def wipe(self) -> None:
        known = self.handle.known
        self.run(self._stop())
        self.run(self._start())
        self.handle.known = known

    async def _stop(self) -> None:
        await self.store.close()
        await self.server.close()

    def close(self) -> None:
        self.run(self._stop())
        super().close()


async def subscribed(ledger: Ledger, replica: str, listener: Callable[[News], None] | None = None) -> Any:
    """Subscribe, and wait until it is so."""
    ready = asyncio.Event()

    def heard(news: News) -> None:
        if isinstance(news, Subscribed):
            ready.set()
        if listener is not None:
            listener(news)

    subscription = ledger.subscribe(replica, heard)
    async with asyncio.timeout(40):
        await ready.wait()
    return subscription


@dataclass
class Replica:
    """A replica that obeys the protocol: it acknowledges what it sees, and uses what it is granted."""

    stage: Stage
    name: str
    epoch: int = 0
    sequence: int = 0
    ack: int = 0
    used: dict[str, int] = field(default_factory=dict)
    reply: Reply | None = None

    def report(self, *bids: Bid, **more: object) -> Report:
        """The next report, not sent yet."""
        self.sequence += 1
        values: dict[str, object] = {"used": tuple(self.used.items()), "bids": bids}
        return Report(epoch=self.epoch, sequence=self.sequence, ack=self.ack, **(values | more))  # type: ignore[arg-type]

    def say(self, *bids: Bid, **more: object) -> tuple[Grant, ...]:
        """Report these bids; return the grants that are new, which are in use from now on."""
        self.reply = reply = self.stage.turn(self.name, self.report(*bids, **more))
        if reply.epoch != self.epoch:
            self.epoch, self.ack, self.sequence = reply.epoch, 0, 1
        unseen = [grant for grant in reply.grants if grant.number > self.ack]
        self.ack = max([self.ack, *(grant.number for grant in unseen)])
        fresh = tuple(grant for grant in unseen if self.stage.now - grant.at_ms <= FENCE_MS)
        for grant in fresh:
            self.used[grant.backend] = self.used.get(grant.backend, 0) + 1
        return fresh

    def fill(self, count: int, band: int = 1) -> None:
        """Take so many seats more, and confirm them."""
        for _ in range(count):
            assert len(self.say(bid(band, 1))) == 1
        self.say()

    def finish(self, count: int = 1, backend: str = "b0") -> None:
        """So many requests end; the next report tells."""
        self.used[backend] -= count

    def answer(self) -> Reply:
        """The last reply."""
        assert self.reply is not None
        return self.reply


KINDS = [
    "memory",
    pytest.param("socket", marks=pytest.mark.slow),
    pytest.param("valkey", marks=pytest.mark.services),
    pytest.param("postgres", marks=pytest.mark.services),
]


def make_stage(kind: str, request: pytest.FixtureRequest) -> Stage:
    """An empty pool of one kind. What needs a driver is imported only here."""
    if kind == "memory":
        return MemoryStage()
    if kind == "socket":
        folder: Path = request.getfixturevalue("tmp_path")
        return SocketStage(folder / "ledger")
    from conformance.ledger_servers import PostgresStage, ValkeyStage

    if kind == "valkey":
        return ValkeyStage(request.getfixturevalue("valkey_server"))
    return PostgresStage(request.getfixturevalue("postgres"))
