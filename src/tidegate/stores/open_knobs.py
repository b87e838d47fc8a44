"""From the setting ``control.store`` to a store."""

from __future__ import annotations

from typing import Final

from tidegate.stores.database import Database
from tidegate.stores.errors import StoreError
from tidegate.stores.knobs_protocol import KnobStore
from tidegate.stores.sql_knobs import SETTING, SqlKnobStore
from tidegate.stores.sqlite_database import SqliteDatabase

MEMORY_URL: Final = "sqlite:///:memory:"
_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")


def open_knob_store(url: str) -> KnobStore:
    """Open a control store and bring its tables up to date. It may share a database with the job store.

    Args:
        url: as for ``open_job_store``.

    Raises:
        StoreError: another kind of URL, a store of a later version, a driver that is not installed.
        Unavailable: the file cannot be opened, or the server cannot be reached.
    """
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        sqlite = SqliteDatabase(url.removeprefix(_SQLITE), setting=SETTING)
        store = _made(sqlite)
        sqlite.sync_folder()
        return store
    if url.startswith(_POSTGRES):
        from tidegate.stores.postgres_database import PostgresDatabase  # the only place that needs the extra

        return _made(PostgresDatabase(url, setting=SETTING))
    raise StoreError(f"{SETTING}: expected sqlite:///PATH or postgresql://…, came {url.partition(':')[0]!r}")


def _made(database: Database) -> SqlKnobStore:
    try:
        return SqlKnobStore(database)
    except BaseException:
        database.close()
        raise
