"""SQLite: one file, one writer, WAL, and every commit synchronised to the disk before it returns."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tidegate.stores.database import Record
from tidegate.stores.errors import Conflict, Full, StoreError, Unavailable

MEMORY: Final = ":memory:"
_BUSY_S: Final = 10.0
_OLDEST: Final = (3, 35, 0)  # RETURNING
_CACHE_KIB: Final = 32 * 1024
_WAL_KEEP_BYTES: Final = 64 * 2**20
_VACUUM_PAGES: Final = 2000
_REFUSED: Final = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""A write that failed, other than for want of room: SQLite does not tell quotas and limits of files from faults."""
_PRIMARY: Final = 0xFF  # the low byte of an extended result code is the primary one


class SqliteDatabase:
    """A connection to one SQLite file.

    ``max_bytes`` limits its size; beyond it calls raise ``Full``. ``busy_s`` is how long a call waits for another
    process that writes, before it raises ``Unavailable``. ``setting`` names it in errors.
    """

    spelling: Final = {
        "identity": "INTEGER PRIMARY KEY AUTOINCREMENT",  # numbers of deleted rows are not used again
        "row_id": "INTEGER PRIMARY KEY",
        "blob": "BLOB",
        "exact_text": "TEXT",
        "rows_options": "",
        "clustered": "WITHOUT ROWID",
    }
    for_update = ""
    skip_locked = ""
    wake_fd = None

    def __init__(
        self, path: str, *, max_bytes: int | None = None, busy_s: float = _BUSY_S, setting: str = "jobs.store"
    ) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StoreError(f"expected SQLite 3.35 or later, this Python has {sqlite3.sqlite_version}; see {setting}")
        self._path = path
        self._setting = setting
        with self._translated():
            self._connection = self._open(path, busy_s)
            try:
                self._set_up(max_bytes)
            except BaseException:
                self._connection.close()
                raise

    def _open(self, path: str, busy_s: float) -> sqlite3.Connection:
        if path != MEMORY:
            # Prompts may stand in it: nobody else reads it. SQLite gives its other files the same mode.
            try:
                os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise Unavailable(f"{self._setting}: cannot open {path}: {error.strerror}") from error
        return sqlite3.connect(path, timeout=busy_s, isolation_level=None, cached_statements=256)

    def _set_up(self, max_bytes: int | None) -> None:
        pragma = self._connection.execute
        pragma("PRAGMA auto_vacuum = INCREMENTAL")  # before anything else: it counts for an empty file only
        pragma("PRAGMA journal_mode = WAL")
        pragma("PRAGMA synchronous = FULL")
        pragma(f"PRAGMA cache_size = -{_CACHE_KIB}")
        pragma(f"PRAGMA journal_size_limit = {_WAL_KEEP_BYTES}")
        if max_bytes is not None:
            page = pragma("PRAGMA page_size").fetchone()[0]
            pragma(f"PRAGMA max_page_count = {max(1, max_bytes // page)}")

    def sync_folder(self) -> None:
        """Make the existence of a new file durable."""
        if self._path == MEMORY:
            return
        folder = os.open(Path(self._path).resolve().parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """IMMEDIATE: the right to write comes first, so that nothing read before it can be out of date."""
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # some errors have rolled back already
                    self._connection.execute("ROLLBACK")
                raise

    def lock_schema(self) -> None:
        """Nothing to do: an immediate transaction is alone."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Record]:
        """Run one statement and return its rows."""
        with self._translated():
            return self._connection.execute(sql, parameters).fetchall()

    def change(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement and return how many rows it changed."""
        with self._translated():
            return self._connection.execute(sql, parameters).rowcount

    def change_many(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run one statement for every set of parameters."""
        with self._translated():
            self._connection.executemany(sql, parameters)

    def insert_many(self, table: str, columns: str, records: Iterable[Sequence[Any]]) -> None:
        """Append records to a table."""
        marks = ", ".join("?" * (columns.count(",") + 1))
        with self._translated():
            self._connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", records)

    def within(self, column: str) -> str:
        """One parameter for any number of values, so that the statement is prepared once."""
        return f"{column} IN (SELECT value FROM json_each(?))"

    def members(self, numbers: Iterable[int]) -> str:
        """The numbers as JSON."""
        return json.dumps(list(numbers))

    def notify(self, batch_id: str) -> None:
        """Nobody else listens."""

    def drain_wakeups(self) -> frozenset[str]:
        """Nobody else speaks."""
        return frozenset()

    def utc(self) -> float | None:
        """That of this machine, where all who use the file are."""
        return None

    def size_bytes(self) -> int:
        """Pages in use, whether they are in the file or still in the log."""
        (pages,), (free,), (size,) = (
            self.execute(f"PRAGMA {name}")[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def give_back_space(self) -> int:
        """Shorten the file when a quarter of it is unused; less than that is taken up again by the next batch."""
        pages, free = (int(self.execute(f"PRAGMA {name}")[0][0]) for name in ("page_count", "freelist_count"))
        if free < _VACUUM_PAGES or free * 4 < pages:
            return 0
        with self._translated():
            # As a script: sqlite3 runs a statement without columns for one step only, which is one page.
            self._connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
        return _VACUUM_PAGES

    def close(self) -> None:
        """Write the log back into the file and close it."""
        with self._translated():
            self._connection.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        place = f"{self._setting} {self._path}"
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise Conflict(f"{place}: {error}") from error
        except sqlite3.Error as error:
            extended = getattr(error, "sqlite_errorcode", 0)
            code = extended & _PRIMARY
            if code == sqlite3.SQLITE_FULL:
                raise Full(f"{place}: no room left on the disk, or the store's size limit is reached") from error
            if extended in _REFUSED:
                raise Full(f"{place}: it may not grow (a quota, a limit), or the disk fails") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise Unavailable(f"{place}: another process is writing to it and does not end") from error
            kind = StoreError if code == sqlite3.SQLITE_ERROR else Unavailable  # such statements never succeed
            raise kind(f"{place}: {error}") from error
