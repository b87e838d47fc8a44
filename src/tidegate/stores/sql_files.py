"""The list of files, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.stores.database import Database, Record
from tidegate.stores.errors import Conflict, NotFound
from tidegate.stores.job_records import Order, StoredFile
from tidegate.stores.sql_common import OPEN_STATES, SqlPart, after_number, clean, page

_COLUMNS: Final = "id, tenant, purpose, name, size, created_at, expires_at"
_UNREAD: Final = f"NOT EXISTS (SELECT 1 FROM batches b WHERE b.input_file_id = files.id AND b.state IN {OPEN_STATES})"


class SqlFiles(SqlPart):
    """See ``FileStore``."""

    def add_file(self, file: StoredFile) -> None:
        """See ``FileStore``."""
        with self._db.transaction():
            insert_file(self._db, file)

    def get_file(self, file_id: str, *, tenant: str | None) -> StoredFile:
        """See ``FileStore``."""
        return _file_of(find_file(self._db, file_id, tenant=tenant))

    def list_files(
        self,
        *,
        tenant: str | None,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        order: Order = Order.NEWEST_FIRST,
    ) -> list[StoredFile]:
        """See ``FileStore``."""
        found = page(
            self._db,
            "files",
            _COLUMNS,
            wanted={"tenant": tenant, "purpose": clean(purpose)},
            after=after_number(self._db, "files", after, tenant),
            limit=limit,
            newest_first=order is Order.NEWEST_FIRST,
        )
        return [_file_of(record) for record in found]

    def delete_file(self, file_id: str, *, tenant: str | None) -> None:
        """See ``FileStore``."""
        with self._db.transaction():
            find_file(self._db, file_id, tenant=tenant, lock=self._db.for_update)
            if not self._db.change(f"DELETE FROM files WHERE id = ? AND {_UNREAD}", (file_id,)):
                raise Conflict(f"file {file_id!r} is the input of a batch that has not ended")

    def expired_files(self, now_utc: float, *, limit: int = 100) -> list[StoredFile]:
        """See ``FileStore``."""
        sql = f"SELECT {_COLUMNS} FROM files WHERE expires_at <= ? AND {_UNREAD} ORDER BY no LIMIT ?"
        return [_file_of(record) for record in self._db.execute(sql, (now_utc, limit))]

    def known_files(self, file_ids: Sequence[str]) -> frozenset[str]:
        """See ``FileStore``."""
        # The plans of ended batches are not asked for: what they wrote is in the list, or was deleted from it.
        planned = self._db.execute(f"SELECT planned_output, planned_error FROM batches WHERE state IN {OPEN_STATES}")
        known = {name for pair in planned for name in pair}
        listed = "SELECT 1 FROM files WHERE id = ?"
        return frozenset(name for name in file_ids if name in known or self._db.execute(listed, (name,)))


def find_file(database: Database, file_id: str, *, tenant: str | None, lock: str = "") -> Record:
    """The columns of one file. Raises ``NotFound``."""
    found = database.execute(f"SELECT {_COLUMNS} FROM files WHERE id = ?{lock}", (clean(file_id),))
    if not found or tenant not in (None, found[0][1]):
        raise NotFound(f"there is no file {file_id!r}")
    return found[0]


def insert_file(database: Database, file: StoredFile) -> None:
    """List a file, unless it is listed already.

    Raises:
        Conflict: the id is taken by another file.
    """
    values = (
        file.id,
        file.tenant,
        file.purpose,
        clean(file.name),
        file.bytes,
        file.created_at_utc,
        file.expires_at_utc,
    )
    sql = f"INSERT INTO files ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
    if not database.change(sql, values) and find_file(database, file.id, tenant=None) != values:
        raise Conflict(f"file id {file.id!r} is taken")


def _file_of(record: Record) -> StoredFile:
    identity, tenant, purpose, name, size, created_at, expires_at = record
    return StoredFile(
        id=identity,
        tenant=tenant,
        purpose=purpose,
        name=name,
        bytes=size,
        created_at_utc=created_at,
        expires_at_utc=expires_at,
    )
