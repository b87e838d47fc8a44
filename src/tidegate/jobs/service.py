"""Batch jobs as one part: worker, pump and routes together, for ``assembly``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from starlette.types import ASGIApp

from tidegate.classify import Classifier
from tidegate.config import JobsSettings
from tidegate.core import Ticket
from tidegate.jobs.batch_routes import BatchRoutes
from tidegate.jobs.dependents import Dependents
from tidegate.jobs.endings import Endings
from tidegate.jobs.file_routes import FileRoutes
from tidegate.jobs.folder import OWNERS, Folder, new_batch_id
from tidegate.jobs.link import Link
from tidegate.jobs.messages import Ended, FromWorker, Rows, Settled, Setup, ToWorker, Work
from tidegate.jobs.objects import letter_object
from tidegate.jobs.owners import Presence
from tidegate.jobs.pump import Pump
from tidegate.jobs.retry import RetryPolicy
from tidegate.jobs.routes import build_app
from tidegate.jobs.steady import SteadyClock
from tidegate.runtime import Clock, Driver
from tidegate.runtime.rows import RowSender
from tidegate.stores import Batch, DeadLetter, Overview, Redriven, StoreError
from tidegate.telemetry.request_line import RequestLine

REDRIVE_WINDOW_S: Final = 86_400.0
SETTLE_S: Final = 5.0


class Jobs:
    """Runs batch jobs. ``app`` answers ``/v1/files`` and ``/v1/batches``.

    Args:
        settings: the block ``jobs``.
        driver: the scheduler.
        sender: sends rows.
        classifier: for bands.
        clock: wall-clock time.
        max_line: longest line of an input file, bytes.
        lend_limit: most waiting rows that one who waits lifts at a time.
        log: takes the line of a row that has ended.
        clamped: counts a batch that asked for a higher band than its tenant may use.

    Raises:
        StoreError: the folder of files cannot be used.
    """

    def __init__(
        self,
        settings: JobsSettings,
        *,
        driver: Driver,
        sender: RowSender,
        classifier: Classifier,
        clock: Clock,
        max_line: int,
        lend_limit: Callable[[], int],
        log: Callable[[RequestLine], None],
        clamped: Callable[[int], None],
    ) -> None:
        try:
            folder = Folder(settings.files)
            self._presence = Presence(folder.path / OWNERS)
        except OSError as error:
            raise StoreError(f"jobs.files: cannot use {settings.files}: {error.strerror or error}") from None
        self._endings = Endings()
        setup = Setup(
            store=settings.store,
            files=settings.files,
            owner=self._presence.owner,
            max_attempts=settings.max_attempts,
            max_lines=settings.max_lines,
            max_line=max_line,
            keep_s=settings.keep,
        )
        utc = SteadyClock(clock)
        self._link = Link(setup, heard=self._heard, hello=self._hello, utc=utc)
        policy = RetryPolicy(settings.max_attempts)
        self._pump = Pump(driver, sender, self._link.say, lend_limit=lend_limit, policy=policy, log=log)
        self._dependents = Dependents(driver, self._pump.lending, self._endings, self._find)
        self._stopped = False
        self.app: ASGIApp = build_app(
            FileRoutes(link=self._link, folder=folder, utc=utc, max_file=settings.max_file, keep_s=settings.keep),
            BatchRoutes(
                link=self._link,
                pump=self._pump,
                classifier=classifier,
                endings=self._endings,
                utc=utc,
                clamped=clamped,
            ),
        )

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker."""
        return self._link.pid

    async def start(self) -> None:
        """Open the store and begin to send rows.

        Raises:
            StoreError: the store cannot be opened.
        """
        await self._link.start()

    async def pause(self) -> None:
        """Give back the rows that wait, and wait until those that run have ended."""
        await self._pump.stop()

    async def stop(self) -> None:
        """End the rows that still run, see that all ends are on disk, end the worker. Does nothing the second time."""
        if self._stopped:
            return
        self._stopped = True
        self._pump.cancel()
        await self._pump.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while self._pump.unsettled:  # noqa: ASYNC110 - a few milliseconds, once
                    await asyncio.sleep(0.01)
        await self._link.stop()
        self._presence.leave()

    def waiting(self, ticket: Ticket) -> AbstractContextManager[None]:
        """Look after the batches among a ticket's dependencies, to be entered before it is submitted."""
        return self._dependents.waiting(ticket)

    async def _find(self, tenant: str, batch_id: str) -> Batch:
        batch: Batch = await self._link.ask(Batch, "get_batch", batch_id=batch_id, tenant=tenant)
        return batch

    # For the dashboard.

    def rows_waiting(self) -> Sequence[int]:
        """Rows that wait in the scheduler, by the index of their band."""
        counts = self._pump.waiting_by_band()
        return [counts[band] for band in range(max(counts, default=-1) + 1)]

    async def overview(self) -> dict[str, Any]:
        """Batches that have not ended with their counts, and how many dead letters there are.

        Raises:
            StoreError: as the store says.
        """
        found: Overview = await self._link.ask(Overview, "overview")
        return {
            "batches": [_summary(batch) for batch in found.batches],
            "unended": found.unended,
            "dead": found.dead,
            "waiting": self._pump.waiting_by_band().total(),
        }

    # Dead letters, for the control API.

    async def dead_letters(self, after: str | None, limit: int) -> list[dict[str, Any]]:
        """A page of dead letters, after the one with id ``after``.

        Raises:
            ValueError: ``after`` is no id.
            StoreError: as the store says.
        """
        place = None if after is None else _place(after)
        found: list[DeadLetter] = await self._link.ask(
            list[DeadLetter], "dead_letters", batch_id=None, after=place, limit=limit
        )
        return [letter_object(letter) for letter in found]

    async def redrive(self, letter: str) -> dict[str, Any]:
        """Send a dead letter again, or with the id of a batch all of it.

        Raises:
            ValueError: that is no id.
            StoreError: as the store says.
        """
        batch_id, lines = _target(letter)
        done: Redriven = await self._link.ask(
            Redriven,
            "redrive",
            batch_id=batch_id,
            lines=lines,
            new_batch_id=new_batch_id(),
            window_s=REDRIVE_WINDOW_S,
        )
        return {"batch_id": done.batch_id, "rows": done.rows}

    async def discard(self, letter: str) -> dict[str, Any]:
        """Take a dead letter off the list, or with the id of a batch all of it. Raises as ``redrive`` does."""
        batch_id, lines = _target(letter)
        count: int = await self._link.ask(int, "discard", batch_id=batch_id, lines=lines)
        return {"batch_id": batch_id, "rows": count}

    # Between worker and pump.

    def _heard(self, message: FromWorker) -> None:
        if isinstance(message, Rows):
            self._pump.rows(message)
        elif isinstance(message, Settled):
            self._pump.settled(message.id)
        elif isinstance(message, Work):
            self._pump.work(message)
        elif isinstance(message, Ended):
            self._endings.told(message.batch_id)

    def _hello(self) -> tuple[list[int], list[ToWorker]]:
        held, again = self._pump.hello()
        return held, [*again]


def _summary(batch: Batch) -> dict[str, Any]:
    return {
        "id": batch.id,
        "tenant": batch.tenant,
        "band": batch.band,
        "state": batch.state.value,
        "total": batch.total,
        "completed": batch.completed,
        "failed": batch.failed,
        "dead": batch.dead,
        "expires_at_utc": batch.expires_at_utc,
    }


def _place(letter: str) -> tuple[str, int]:
    batch_id, lines = _target(letter)
    if lines is None:
        raise ValueError(f"expected the id of a dead letter, got {letter[:80]!r}")
    return batch_id, lines[0]


def _target(letter: str) -> tuple[str, list[int] | None]:
    batch_id, dot, line = letter.partition(".")
    if not dot:
        return batch_id, None
    if not line.isascii() or not line.isdigit() or not 1 <= int(line[:12]) < 2**32:
        raise ValueError(f"expected the id of a dead letter, BATCH.LINE, or of a batch; got {letter[:80]!r}")
    return batch_id, [int(line)]
