"""What every handle on a ledger does alike: it listens, and keeps the newest configuration for a store that loses it.

A store may be wiped, or come back as an older copy. Whoever reports next puts in force what it knows; if that is not
the newest, a replica that knows better notices by the version in its next reply.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from tidegate.stores.errors import StoreError
from tidegate.stores.ledger_protocol import LedgerUnavailable, Lost, News, PoolConfig, Reply, Report, Subscribed

CALL_S: Final = 2.0
"""The longest that any call takes, seconds; callers set shorter limits of their own."""
RECONNECT_S: Final = 0.05
"""Pause before a connection is tried again, seconds; doubled up to the longest."""
RECONNECT_LONGEST_S: Final = 1.0

_INSIST_S: Final = 0.5

log = structlog.get_logger("tidegate.cluster")


@contextlib.contextmanager
def survived(what: str, *expected: type[Exception]) -> Iterator[None]:
    """Go on after any fault; one that is none of the ``expected`` is told in the log.

    For tasks that nobody waits for: when one of these ends, what it did is not done any more, and nobody hears of it.
    """
    try:
        yield
    except expected:
        pass
    except Exception:  # whatever it is
        log.exception("cluster.fault", what=what)


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended: a driver that is closing a connection may swallow the first word."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_INSIST_S)


class NoConfigurationError(LedgerUnavailable):
    """The store has none for this pool."""


class LedgerSubscription(ABC):
    """Hears what a ledger pushes, over a connection of its own, made again whenever it breaks or falls silent."""

    def __init__(self, listener: Callable[[News], None]) -> None:
        self._listener = listener
        self._subscribed = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End it; the listener is not told."""
        await end(self.task)

    @abstractmethod
    async def _hear(self) -> None:
        """Connect and ``_tell`` what comes, ``Subscribed`` first, until the connection breaks."""

    def _tell(self, news: News) -> None:
        self._subscribed = self._subscribed or isinstance(news, Subscribed)
        self._listener(news)

    async def _run(self) -> None:
        pause_s = RECONNECT_S
        while True:
            self._subscribed = False
            with survived(type(self).__name__, StoreError, OSError, EOFError):
                await self._hear()
            if self._subscribed:
                pause_s = RECONNECT_S
                with survived(type(self).__name__):
                    self._listener(Lost())
            await asyncio.sleep(pause_s)
            pause_s = min(RECONNECT_LONGEST_S, 2 * pause_s)


class LedgerHandle(ABC):
    """A handle on the ledger of one pool somewhere else."""

    def __init__(self) -> None:
        self.known: PoolConfig | None = None
        self._subscriptions: set[LedgerSubscription] = set()

    @abstractmethod
    async def _configuration(self) -> PoolConfig | None: ...

    @abstractmethod
    async def _configure(self, config: PoolConfig) -> None: ...

    @abstractmethod
    async def _turn(self, replica: str, report: Report) -> Reply: ...

    @abstractmethod
    def _subscription(self, replica: str, listener: Callable[[News], None]) -> LedgerSubscription: ...

    def subscribe(self, replica: str, listener: Callable[[News], None]) -> LedgerSubscription:
        """Have grants pushed."""
        subscription = self._subscription(replica, listener)
        self._subscriptions.add(subscription)
        subscription.task.add_done_callback(lambda _: self._subscriptions.discard(subscription))
        return subscription

    async def close(self) -> None:
        """End its subscriptions."""
        for subscription in list(self._subscriptions):
            await subscription.close()

    async def configuration(self) -> PoolConfig | None:
        """Return the configuration in force."""
        config = await self._configuration()
        if config is not None:
            self.known = config
        return config

    async def configure(self, config: PoolConfig) -> None:
        """Put a configuration in force."""
        await self._configure(config)
        self.known = config

    async def turn(self, replica: str, report: Report) -> Reply:
        """Take a report and answer."""
        try:
            reply = await self._turn(replica, report)
        except NoConfigurationError:
            if self.known is None and await self.configuration() is None:
                raise
            await self._restore()
            reply = await self._turn(replica, report)
        if self.known is not None and reply.version < self.known.version:
            await self._restore()
        return reply

    async def _restore(self) -> None:
        if self.known is not None:
            try:
                await self._configure(self.known)
            except LedgerUnavailable:
                raise
            except StoreError:
                pass  # somebody was faster, and knew better; or those who live have other bands
