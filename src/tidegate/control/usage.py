"""What each tenant used, by the hour: taken from the recorder every few seconds and kept in the control store.

A process that is killed loses at most ``EVERY_S`` seconds of it. What the store cannot take waits in memory, for a
bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from itertools import islice

import structlog

from tidegate.control.keeper import Keeper
from tidegate.stores import HOUR_S, StoreError, UsageRow
from tidegate.telemetry.usage import UsageBook, Used

EVERY_S = 10.0
KEEP_S = 93 * 86_400
"""A quarter of a year, so that last month can be looked up on any day of this one."""

MOST_ROWS = {True: 5_000_000, False: 100_000}
"""Most tenant-hours in a durable store (about half a gigabyte), and in memory (about 20 MB)."""

MOST_WAITING_HOURS = 24
AT_ONCE = 500
"""Tenants written or read in one call: a few milliseconds, after which others are heard."""

log = structlog.get_logger("tidegate.control")


class UsageKeeper:
    """Moves usage from the recorder's book to the store, and reads it there."""

    def __init__(self, keeper: Keeper, book: UsageBook, utc_now: Callable[[], datetime]) -> None:
        self._keeper = keeper
        self._book = book
        self._utc_now = utc_now
        self._since = utc_now().timestamp()
        self._waiting: dict[int, dict[str, Used]] = {}
        self._lock = asyncio.Lock()

    def next_s(self) -> float:
        """Return the seconds until the next time to write: soon, but never over the end of an hour."""
        return min(EVERY_S, HOUR_S - self._utc_now().timestamp() % HOUR_S)

    async def write(self) -> bool:
        """Write what was used since the last time; ``False``: the store does not take it now."""
        async with self._lock:
            self._take()
            try:
                for hour in sorted(self._waiting):
                    await self._write_hour(hour, self._waiting[hour])
                    del self._waiting[hour]
            except StoreError as error:
                log.error("control.usage_waits", why=str(error), hours=len(self._waiting))
                return False
            return True

    def _take(self) -> None:
        """Take what was used since the last time: it belongs to the hour that it was then (see ``next_s``)."""
        hour, self._since = int(self._since // HOUR_S) * HOUR_S, self._utc_now().timestamp()
        taken = self._book.take()
        if not taken:
            return
        before = self._waiting.setdefault(hour, taken)
        if before is not taken:  # the store did not take it in time
            for tenant, used in taken.items():
                if tenant in before:
                    before[tenant].add(used)
                else:
                    before[tenant] = used
        while len(self._waiting) > MOST_WAITING_HOURS:
            lost = min(self._waiting)
            log.error("control.usage_lost", hour_utc=lost, tenants=len(self._waiting.pop(lost)))

    async def _write_hour(self, hour: int, used: dict[str, Used]) -> None:
        while used:
            part = {tenant: each.usage() for tenant, each in islice(used.items(), AT_ONCE)}
            await self._keeper.ask(lambda store, p=part: store.add_usage(hour, p))  # type: ignore[misc]
            for tenant in part:
                del used[tenant]
            await asyncio.sleep(0)

    async def forget(self) -> None:
        """Forget what is too old or too much; a bounded step."""
        before = int(self._utc_now().timestamp()) - KEEP_S
        most = MOST_ROWS[self._keeper.durable]
        try:
            await self._keeper.ask(lambda store: store.forget_usage(before, most_rows=most))
        except StoreError as error:
            log.error("control.usage_kept", why=str(error))

    async def rows(self, from_utc: int, to_utc: int, period_s: int | None) -> AsyncIterator[list[UsageRow]]:
        """Yield what tenants used in the hours from ``from_utc`` to before ``to_utc``, in pages.

        Raises:
            StoreError: the store does not answer.
        """
        after: tuple[int, str] | None = None
        while True:
            page = await self._keeper.ask(
                lambda store, a=after: store.usage(  # type: ignore[misc]
                    from_utc=from_utc, to_utc=to_utc, period_s=period_s, after=a, limit=AT_ONCE
                )
            )
            if page:
                yield page
            if len(page) < AT_ONCE:
                return
            after = (page[-1].start_utc, page[-1].tenant)
            await asyncio.sleep(0)
