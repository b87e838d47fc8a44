"""What was changed while the gateway ran: who, when, from, to. Newest first.

Records go to the control store, and whoever made the change hears of it when its record is on disk. A store or a file
that cannot be written costs the record its durability and not the operator his change: in a sales peak the switch must
work even though the disk is full. Such records are written when the store is back; the log says so.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import structlog

from tidegate.config import ConfigError, Problem
from tidegate.control.keeper import PATIENCE_S, Keeper
from tidegate.stores import NewChange, StoredChange, StoreError

KEPT = 1000
"""Records in memory: those that wait to be written, and the last ones for whoever cannot wait."""

KEPT_IN_STORE = 100_000

Change = tuple[str, Any, Any]
"""What differs: its place, the value before, the value after; never a secret."""

log = structlog.get_logger("tidegate.control")


class Record(msgspec.Struct):
    """One change.

    Attributes:
        id: grows from record to record; ``None`` as long as it is not in the store.
        at_utc: when.
        who: the operator's name; ``local`` for a program on this machine, ``timer``, ``signal`` for those.
        action: ``mode``, ``policy``, ``backends``, ``tenant``, ``key``, ``reload``, ``drain``, ``cancel``,
            ``dead-letter`` or ``undo``.
        changes: what differs, each with ``what``, ``from`` and ``to``; never a secret.
        undoes: the record that this one took back.
        undone_by: the record that took this one back.
    """

    id: int | None
    at_utc: datetime
    who: str
    action: str
    changes: list[dict[str, Any]]
    undoes: int | None = None
    undone_by: int | None = None


class Audit:
    """The list of changes.

    Args:
        keeper: of the store.
        utc_now: the wall clock.
        path: file to append to as well; made readable by its owner only.
    """

    def __init__(self, keeper: Keeper, utc_now: Callable[[], datetime], path: Path | None = None) -> None:
        self._keeper = keeper
        self._utc_now = utc_now
        self._path = path
        self._recent: deque[Record] = deque(maxlen=KEPT)
        self._unwritten: deque[Record] = deque(maxlen=KEPT)
        self._writing: asyncio.Task[None] | None = None

    def new(self, who: str, action: str, changes: list[Change], *, undoes: int | None = None) -> Record:
        """Make a record that is not in the list yet."""
        rows = [{"what": what, "from": before, "to": after} for what, before, after in changes]
        return Record(None, self._utc_now(), who, action, rows, undoes)

    def add(self, who: str, action: str, changes: list[Change], *, undoes: int | None = None) -> Record:
        """Note a change and begin to write it down."""
        record = self.new(who, action, changes, undoes=undoes)
        self._unwritten.append(record)
        self.noted(record)
        self._write()
        return record

    def noted(self, record: Record) -> None:
        """Note a record that has been written, or will be."""
        self._recent.append(record)
        log.info("control.changed", who=record.who, action=record.action, changes=record.changes)
        if self._path is not None:
            self._append(self._path, record)

    def newest(self, limit: int) -> list[Record]:
        """Return the last records of this process, newest first."""
        return list(islice(reversed(self._recent), limit))

    async def page(self, before: int | None, limit: int) -> list[Record]:
        """Return a page of all records, newest first, those with ids below ``before``.

        Records that wait to be written come first, without an id.

        Raises:
            StoreError: the store does not answer.
        """
        await self.settled()
        first = [] if before is not None else list(reversed(self._unwritten))[:limit]
        stored = await self._keeper.ask(lambda store: store.changes(before=before, limit=limit - len(first)))
        return [*first, *map(record_of, stored)]

    async def find(self, record_id: int) -> Record:
        """Return one record.

        Raises:
            NotFound: there is none, or none any more.
            StoreError: the store does not answer.
        """
        return record_of(await self._keeper.ask(lambda store: store.change(record_id)))

    async def settled(self) -> None:
        """Wait until what was noted is written down, or could not be."""
        self._write()
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=PATIENCE_S)

    def _write(self) -> None:
        """Begin to write, unless somebody does."""
        if self._unwritten and (self._writing is None or self._writing.done()):
            writing = self._write_all()
            if self._keeper.waits:
                self._writing = asyncio.get_running_loop().create_task(writing)
            else:
                finish_now(writing)

    async def _write_all(self) -> None:
        while self._unwritten:
            record = self._unwritten[0]
            change = new_change(record)
            try:
                record.id = await self._keeper.ask(lambda store, c=change: store.append(c, keep=KEPT_IN_STORE))  # type: ignore[misc]
            except StoreError as error:
                log.error("control.audit_waits", why=str(error), records=len(self._unwritten))
                return
            if self._unwritten and self._unwritten[0] is record:
                self._unwritten.popleft()

    def _append(self, path: Path, record: Record) -> None:
        fields = msgspec.to_builtins(record)
        line = msgspec.json.encode({name: fields[name] for name in ("at_utc", "who", "action", "changes")}) + b"\n"
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            log.error("control.audit_lost", file=str(path), why=error.strerror)


def audit_file(path: str | None) -> Path | None:
    """Return the file that changes are appended to, once it is known to take lines. A full disk is no reason to stop.

    Raises:
        ConfigError: it cannot be opened.
    """
    if path is None:
        return None
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            expected = f"expected a file that lines can be appended to, {path}: {error.strerror}"
            raise ConfigError([Problem("control.audit_file", expected)]) from None
    return Path(path)


def new_change(record: Record) -> NewChange:
    """Return a record as the store takes it."""
    return NewChange(record.at_utc.timestamp(), record.who, record.action, record.changes, record.undoes)


def record_of(stored: StoredChange) -> Record:
    """Return a record as the store has it."""
    at = datetime.fromtimestamp(stored.at_utc, UTC)
    return Record(stored.id, at, stored.who, stored.action, stored.changes, stored.undoes, stored.undone_by)


def finish_now(work: Any) -> None:
    """Run a coroutine that never has to wait."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("a store in memory had to be waited for")
