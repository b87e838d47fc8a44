"""From the setting ``jobs.store`` to a store."""

from __future__ import annotations

from typing import Final

from tidegate.stores.database import Database
from tidegate.stores.errors import StoreError
from tidegate.stores.jobs_protocol import JobStore
from tidegate.stores.sql_store import SqlJobStore
from tidegate.stores.sqlite_database import SqliteDatabase

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")


def open_job_store(url: str, *, max_bytes: int | None = None) -> JobStore:
    """Open a job store and bring its tables up to date.

    Args:
        url: ``sqlite:///relative/path``, ``sqlite:////absolute/path``, ``sqlite:///:memory:`` (nothing is durable), or
            ``postgresql://user@host/database``, for which the extra ``postgres`` has to be installed.
        max_bytes: SQLite only: size at which the store counts as full.

    Raises:
        StoreError: another kind of URL, a store of a later version, a driver that is not installed.
        Unavailable: the file cannot be opened, or the server cannot be reached.
    """
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        sqlite = SqliteDatabase(url.removeprefix(_SQLITE), max_bytes=max_bytes)
        store = _made(sqlite)
        sqlite.sync_folder()
        return store
    if url.startswith(_POSTGRES):
        from tidegate.stores.postgres_database import PostgresDatabase  # the only place that needs the extra

        return _made(PostgresDatabase(url))
    raise StoreError(f"jobs.store: expected sqlite:///PATH or postgresql://…, came {url.partition(':')[0]!r}")


def _made(database: Database) -> SqlJobStore:
    try:
        return SqlJobStore(database)
    except BaseException:
        database.close()
        raise
