"""What every handle on a ledger does alike: it keeps the newest configuration for a store that loses its own.

A store may be wiped, or come back as an older copy. Whoever reports next puts in force what it knows; if that is not
the newest, a replica that knows better notices by the version in its next reply.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import Final

from tidegate.stores.ledger_protocol import LedgerConflict, LedgerUnavailable, PoolConfig, Reply, Report

CALL_S: Final = 2.0
"""The longest that any call takes, seconds; callers set shorter limits of their own."""
RECONNECT_S: Final = 0.05
"""Pause before a connection is tried again, seconds; doubled up to the longest."""
RECONNECT_LONGEST_S: Final = 1.0


_INSIST_S: Final = 0.5


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended: a driver that is closing a connection may swallow the first word."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_INSIST_S)


class NoConfigurationError(LedgerUnavailable):
    """The store has none for this pool."""


class LedgerHandle(ABC):
    """A handle on the ledger of one pool somewhere else."""

    def __init__(self) -> None:
        self.known: PoolConfig | None = None

    @abstractmethod
    async def _configuration(self) -> PoolConfig | None: ...

    @abstractmethod
    async def _configure(self, config: PoolConfig) -> None: ...

    @abstractmethod
    async def _turn(self, replica: str, report: Report) -> Reply: ...

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
            with contextlib.suppress(LedgerConflict):  # somebody was faster, and knew better
                await self._configure(self.known)
