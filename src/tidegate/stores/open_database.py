"""From a setting that names a store to the database behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from tidegate.stores.database import Database
from tidegate.stores.errors import StoreError
from tidegate.stores.sqlite_database import SqliteDatabase

S = TypeVar("S")

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")


def open_on_database(url: str, make: Callable[[Database], S], *, setting: str, max_bytes: int | None = None) -> S:
    """Open the database of a URL and make a store on it; a store that cannot be made leaves nothing open.

    Args:
        url: ``sqlite:///relative/path``, ``sqlite:////absolute/path``, ``sqlite:///:memory:`` (nothing is durable), or
            ``postgresql://user@host/database``, for which the extra ``postgres`` has to be installed.
        make: brings the store's tables up to date.
        setting: its name in the file, for errors.
        max_bytes: SQLite only: size at which the store counts as full.

    Raises:
        StoreError: another kind of URL, a store of a later version, a driver that is not installed.
        Unavailable: the file cannot be opened, or the server cannot be reached.
    """
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        sqlite = SqliteDatabase(url.removeprefix(_SQLITE), max_bytes=max_bytes, setting=setting)
        store = _made(sqlite, make)
        sqlite.sync_folder()
        return store
    if url.startswith(_POSTGRES):
        from tidegate.stores.postgres_database import PostgresDatabase  # the only place that needs the extra

        return _made(PostgresDatabase(url, setting=setting), make)
    raise StoreError(f"{setting}: expected sqlite:///PATH or postgresql://…, came {url.partition(':')[0]!r}")


def _made(database: Database, make: Callable[[Database], S]) -> S:
    try:
        return make(database)
    except BaseException:
        database.close()
        raise
