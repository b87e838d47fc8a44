"""Everything that the control room writes down, as one part for ``assembly``: opened, kept up to date, closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime

import structlog

from tidegate.control.audit import Audit
from tidegate.control.keeper import Keeper
from tidegate.control.live import Live
from tidegate.control.tenants import Tenants
from tidegate.control.usage import UsageKeeper
from tidegate.stores import StoreError
from tidegate.telemetry.usage import UsageBook

FORGET_EVERY = 60
"""Old usage is forgotten once in so many rounds, about every ten minutes."""

log = structlog.get_logger("tidegate.control")


class Books:
    """The control store with the list of changes, the tenants and their usage."""

    def __init__(
        self, keeper: Keeper, audit: Audit, live: Live, usage: UsageBook, *, utc_now: Callable[[], datetime]
    ) -> None:
        self.keeper = keeper
        self.utc_now = utc_now
        self.audit = audit
        self.tenants = Tenants(live, audit, keeper, utc_now)
        self.usage = UsageKeeper(keeper, usage, utc_now)
        self._rounds: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the store, put its tenants in force, and begin to write.

        Raises:
            StoreError: the store cannot be opened.
            ConfigError: its tenants do not fit the settings.
        """
        await self.keeper.open()
        await self.tenants.load()
        self._rounds = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Write the rest and close the store."""
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)
            await self.audit.settled()
            await self.usage.write()
        with contextlib.suppress(StoreError):
            await self.keeper.close()

    async def _run(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(self.usage.next_s())
            try:
                await self._round(rounds)
            except Exception:  # nobody would write any more, nor say so
                log.exception("control.fault")
            rounds += 1

    async def _round(self, number: int) -> None:
        await self.usage.write()
        await self.audit.settled()
        await self.tenants.follow()
        await self.tenants.expire()
        if number % FORGET_EVERY == 0:
            await self.usage.forget()
