"""The tables of a store and the way from every earlier version to the present one.

The version stands in a table of its own, ``job_schema`` or ``knob_schema``: both stores may share a database. A
migration and its version number are one transaction, so a process that is killed in between leaves the version it came
from.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Final

from tidegate.stores.database import Database
from tidegate.stores.errors import StoreError

_COMMENT: Final = "--"


def migrations(folder_name: str = "migrations") -> list[str]:
    """The texts of all migrations of a store; the first makes version 1."""
    folder = resources.files("tidegate.stores") / folder_name
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(folder / name).read_text(encoding="utf-8") for name in names]


def statements(migration: str, spelling: dict[str, str]) -> list[str]:
    """The single statements of a migration, in the spelling of one database."""
    text = "\n".join(line for line in migration.splitlines() if not line.lstrip().startswith(_COMMENT))
    parts = Template(text).substitute(spelling).split(";\n")
    return [statement for part in parts if (statement := part.strip().rstrip(";"))]


def migrate(
    database: Database, steps: Sequence[str], *, table: str = "job_schema", setting: str = "jobs.store"
) -> None:
    """Bring a store to version ``len(steps)``.

    Raises:
        StoreError: the store was written by a later version of tidegate.
    """
    for _ in range(len(steps) + 1):
        with database.transaction():
            database.lock_schema()
            version = _version(database, table)
            if version > len(steps):
                raise StoreError(
                    f"{setting} has schema version {version}, this tidegate knows versions up to {len(steps)}: "
                    "it was written by a later version; install that, or name another store"
                )
            if version == len(steps):
                return
            for statement in statements(steps[version], database.spelling):
                database.execute(statement)
            database.execute(f"UPDATE {table} SET version = ?", (version + 1,))


def _version(database: Database, table: str) -> int:
    database.execute(f"CREATE TABLE IF NOT EXISTS {table} (version BIGINT NOT NULL)")
    found = database.execute(f"SELECT version FROM {table}")
    if found:
        return int(found[0][0])
    database.execute(f"INSERT INTO {table} (version) VALUES (0)")
    return 0
