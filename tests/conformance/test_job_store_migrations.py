"""A store that any earlier version wrote opens with all that is in it.

``fixtures/jobs_vN.sql`` is a store of version N as SQLite dumped it, tables and records. A new migration needs the
dump of its own version beside it; those that are there are never touched again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.stores import Answer, BatchState, Conflict, JobStore, StoreError, Unavailable, open_job_store
from tidegate.stores.database import Database
from tidegate.stores.schema import migrate, migrations, statements
from tidegate.stores.sqlite_database import SqliteDatabase
from tidegate.testing.jobs import LEASE_S, NOW, answered, ended, leased

_FIXTURES = Path(__file__).parent / "fixtures"
_RELEASED = {1: "b22100a8e57ef547"}
_TABLES = ("files", "batches", "rows", "answers", "waiting", "leases", "dead_letters")


def _dump(version: int) -> str:
    return (_FIXTURES / f"jobs_v{version}.sql").read_text(encoding="utf-8")


def _everything(store: JobStore) -> None:
    """The story that the fixtures tell, to its end."""
    running = store.get_batch("running", tenant="acme")
    assert (running.state, running.total, running.completed, running.failed, running.dead) == (
        "in_progress",
        6,
        1,
        1,
        1,
    )
    done = store.get_batch("done", tenant="acme")
    assert (done.state, done.completed, done.output_file_id) == (BatchState.COMPLETED, 2, "out-1000000.0")
    assert [file.id for file in store.list_files(tenant="other")] == ["input-of-new"]
    (letter,) = store.dead_letters()
    assert letter.answer == Answer(status=500, message="oops", body=b"\x00\xff")
    assert store.reap(NOW + LEASE_S) == 1
    rows = leased(store, 9, "running", now=NOW + LEASE_S)
    assert sorted((row.line, row.attempts, row.returns) for row in rows) == [(4, 1, 0), (5, 0, 1), (6, 0, 0)]
    assert store.settle([answered(row) for row in rows], now_utc=NOW).left == ("running",)
    batch, records = ended(store, now=NOW + LEASE_S)
    assert (batch.state, batch.completed, batch.failed, len(records)) == (BatchState.COMPLETED, 4, 2, 6)
    claim = store.claim_validation("me", now_utc=NOW, until_utc=NOW + 9)
    assert claim is not None
    assert claim.batch.id == "new"


@pytest.mark.parametrize("version", range(1, len(migrations()) + 1))
def test_a_store_of_every_version_opens_in_sqlite(version: int, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    old = sqlite3.connect(path)
    old.executescript(_dump(version))
    old.close()
    store = open_job_store(f"sqlite:///{path}")
    _everything(store)
    store.close()


@pytest.mark.services
@pytest.mark.parametrize("version", range(1, len(migrations()) + 1))
def test_a_store_of_every_version_opens_in_postgres(version: int, empty_postgres: Callable[[], str]) -> None:
    from tidegate.stores.postgres_database import PostgresDatabase

    url = empty_postgres()
    database = PostgresDatabase(url)
    migrate(database, migrations()[:version])
    with database.transaction():
        _load(database, version)
    database.close()
    store = open_job_store(url)
    _everything(store)
    store.close()


def _load(database: Database, version: int) -> None:
    """The records of a dump, and the numbers that come next."""
    for line in _dump(version).splitlines():
        if line.startswith(tuple(f'INSERT INTO "{table}"' for table in _TABLES)):
            database.execute(line.replace(",X'", ",'\\x"))
    for table in ("files", "batches"):
        database.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'no'), (SELECT MAX(no) FROM {table}))")


def test_a_released_migration_is_never_edited() -> None:
    seen = {n: hashlib.sha256(text.encode()).hexdigest()[:16] for n, text in enumerate(migrations(), 1)}
    assert seen == _RELEASED


def test_migrations_go_one_by_one_from_any_version(tmp_path: Path) -> None:
    steps = [
        "CREATE TABLE one (x $row_id);\nCREATE TABLE more (x BIGINT);\n",
        "DROP TABLE more;",
        "CREATE TABLE two (x $blob)",
    ]
    for start in range(len(steps)):
        path = str(tmp_path / f"{start}.db")
        for known in (start, len(steps), len(steps)):
            database = SqliteDatabase(path)
            migrate(database, steps[:known])
            assert database.execute("SELECT version FROM job_schema") == [(known,)]
            database.close()
        database = SqliteDatabase(path)
        tables = database.execute("SELECT name FROM sqlite_master WHERE name <> 'job_schema' ORDER BY name")
        assert tables == [("one",), ("two",)]
        database.close()


def test_a_migration_that_fails_leaves_the_version_before(tmp_path: Path) -> None:
    database = SqliteDatabase(str(tmp_path / "jobs.db"))
    migrate(database, migrations())
    with pytest.raises(StoreError, match="half"):
        migrate(database, [*migrations(), "CREATE TABLE half (x BIGINT);\nCREATE TABLE half (x BIGINT);"])
    assert database.execute("SELECT version FROM job_schema") == [(len(migrations()),)]
    assert database.execute("SELECT name FROM sqlite_master WHERE name = 'half'") == []
    database.close()


def test_a_store_of_a_later_version_is_refused(place: Any) -> None:
    store = place.open()
    store._db.execute("UPDATE job_schema SET version = 999")
    with pytest.raises(StoreError, match="later version") as raised:
        place.open()
    assert not isinstance(raised.value, (Unavailable, Conflict)), "to repeat it does not help"


def test_a_migration_is_split_into_its_statements() -> None:
    text = "-- why; not\nCREATE TABLE a (\n  x $blob\n);\n\nCREATE INDEX b ON a (x);\n"
    assert statements(text, {"blob": "BYTEA"}) == ["CREATE TABLE a (\n  x BYTEA\n)", "CREATE INDEX b ON a (x)"]
