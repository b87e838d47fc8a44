"""What is committed is there for others and after a crash; what a store cannot do it says by its own errors."""

from __future__ import annotations

import dataclasses
import os
import resource
import select
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from tidegate.stores import (
    Answer,
    Bury,
    Conflict,
    Full,
    GiveBack,
    JobStore,
    NewRow,
    StoreError,
    Unavailable,
    open_job_store,
)
from tidegate.stores.sql_store import SqlJobStore
from tidegate.stores.sqlite_database import SqliteDatabase
from tidegate.testing.jobs import (
    NOW,
    a_file,
    answered,
    assembling,
    created,
    ended,
    leased,
    some_rows,
    started,
    validating,
)


def test_everything_is_there_after_a_crash(place: Any) -> None:
    store = place.open()
    started(store, 4)
    one, two, three, four = leased(store, 4)
    store.settle([answered(one), GiveBack(two, NOW), Bury(three, Answer(code="x"))], now_utc=NOW)
    batch, letters, work = store.get_batch("batch-1", tenant=None), store.dead_letters(), store.work(NOW)

    again = place.open()
    assert again.get_batch("batch-1", tenant=None) == batch
    assert (again.dead_letters(), again.work(NOW)) == (letters, work)
    assert again.list_files(tenant=None) == store.list_files(tenant=None)
    assert again.settle([answered(four)], now_utc=NOW).accepted == 1, "a lease outlives the process that took it"
    assert [row.line for row in leased(again, 9)] == [2]


def test_two_handles_never_hold_the_same(place: Any) -> None:
    one, two = place.open(), place.open()
    created(one, "b1")
    claim = validating(one)
    assert two.claim_validation("other", now_utc=NOW, until_utc=NOW + 9) is None
    one.add_rows(claim, some_rows(6), next_line=7, next_offset=600)
    one.start_batch(claim, now_utc=NOW)
    mine, yours = leased(one, 2, "b1"), leased(two, 3, "b1", owner="other")
    assert [row.line for row in mine + yours] == [1, 2, 3, 4, 5]
    assert two.settle([answered(row) for row in yours], now_utc=NOW).accepted == 3
    rest = leased(two, 9, "b1")
    assert one.settle([answered(row) for row in mine + rest], now_utc=NOW).left == ("b1",)
    assert two.get_batch("b1", tenant=None).completed == 6
    assert (assembling(two) is None, assembling(one)) == (False, None)


def test_nothing_of_a_call_that_fails_is_kept(place: Any) -> None:
    store = place.open()
    created(store)
    claim = validating(store)
    store.add_rows(claim, some_rows(2), next_line=3, next_offset=200)
    with pytest.raises(Conflict):
        store.add_rows(claim, [NewRow(3, "new", 200, 1), NewRow(2, "there", 100, 1)], next_line=4, next_offset=201)
    store.add_rows(claim, some_rows(1, first=3), next_line=4, next_offset=300)
    assert store.start_batch(claim, now_utc=NOW).total == 3


def test_nobody_else_to_wake_up_an_sqlite_store(tmp_path: Path) -> None:
    store = open_job_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    created(store)
    assert store.wake_fd is None
    assert store.drain_wakeups() == frozenset()
    store.close()


@pytest.mark.services
def test_others_are_woken_when_something_happens_to_a_batch(postgres_place: Any) -> None:
    one, two = postgres_place.open(), postgres_place.open()
    assert not _woken(one, 0)
    assert not _woken(two, 0)
    started(two, 1)
    created(two, "batch-2")
    assert _told(one, "batch-2") == {"batch-1", "batch-2"}
    assert not _woken(one, 0)
    two.settle([answered(row) for row in leased(two, 1)], now_utc=NOW)
    created(two, "batch-3")
    assert _told(one, "batch-3") == {"batch-1", "batch-3"}
    created(one, "batch-4")
    assert _told(two, "batch-4") == {"batch-4"}, "what it did itself is no news"


@pytest.mark.services
def test_a_connection_that_is_cut_is_made_anew(postgres_place: Any) -> None:
    import psycopg

    store = postgres_place.open()
    started(store, 2)
    assert not _woken(store, 0)
    with psycopg.connect(postgres_place.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 40000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
    with pytest.raises(Unavailable):
        store.lease("batch-1", 1, owner="x", now_utc=NOW, until_utc=NOW)
    assert len(leased(store, 2)) == 2
    assert _woken(store), "by the end of the old connection"
    while _woken(store, 0):
        assert store.drain_wakeups() == frozenset()
    other = postgres_place.open()
    created(other, "batch-2")
    assert _told(store, "batch-2") == {"batch-2"}


def _told(store: JobStore, last: str) -> set[str]:
    """All that ``store`` is told until it hears of ``last``: the server may deliver several commits one by one."""
    told: set[str] = set()
    while last not in told:
        assert _woken(store)
        told |= store.drain_wakeups()
    return told


def _woken(store: JobStore, timeout_s: float = 40.0) -> bool:
    assert store.wake_fd is not None
    return bool(select.select([store.wake_fd], [], [], timeout_s)[0])


@pytest.mark.services
def test_no_server_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        open_job_store(f"postgresql://postgres@/postgres?host={tmp_path}")


def test_a_full_store_refuses_and_loses_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    small = open_job_store(url, max_bytes=256 * 1024)
    started(small, 8)
    rows = leased(small, 8)
    verdicts = [answered(row) for row in rows[:1]]
    verdicts += [type(v)(v.row, v.state, Answer(status=200, body=bytes(100_000))) for v in map(answered, rows[1:])]
    with pytest.raises(Full):
        small.settle(verdicts, now_utc=NOW)
    with pytest.raises(Full):
        for number in range(1000):
            small.add_file(dataclasses.replace(a_file(f"file-{number}"), name="x" * 10_000))
    assert small.get_batch("batch-1", tenant=None).completed == 0
    small.renew([rows[0].token], until_utc=NOW + 999)
    small.close()
    big = open_job_store(url)
    assert big.settle(verdicts, now_utc=NOW).accepted == 8
    _, records = ended(big)
    assert [len(record.answer.body) for record in records] == [len(verdict.answer.body) for verdict in verdicts]
    big.close()


def test_a_limit_of_the_system_on_the_file_is_a_full_store(tmp_path: Path) -> None:
    """A quota looks the same: the system refuses the write, and not for want of room on the disk."""
    store = open_job_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    try:
        with pytest.raises(Full):
            for number in range(1000):
                store.add_file(dataclasses.replace(a_file(f"file-{number}"), name="x" * 10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.add_file(a_file("file-after"))
    assert store.get_file("file-0", tenant=None).id == "file-0"
    store.close()


def test_space_is_given_back_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = open_job_store(f"sqlite:///{path}")
    empty = store.size_bytes()
    started(store, 200)
    body = os.urandom(100_000)
    finishes = [answered(row) for row in leased(store, 200)]
    store.settle([type(f)(f.row, f.state, Answer(status=200, body=body)) for f in finishes], now_utc=NOW)
    assert store.size_bytes() > 20_000_000
    ended(store)
    while store.sweep(ended_before_utc=0):
        pass
    assert store.size_bytes() < empty + 100_000
    store.close()
    assert path.stat().st_size < 12_000_000
    assert not path.with_name("jobs.db-wal").exists(), "closed cleanly"


def test_a_store_that_somebody_else_writes_to_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqlJobStore(SqliteDatabase(str(path), busy_s=0.05))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        store.add_file(a_file())
    assert store.list_files(tenant=None) == [], "reading goes on"
    other.execute("ROLLBACK")
    other.close()
    store.add_file(a_file())
    store.close()


def test_accepted_means_on_the_disk_and_private(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    database = SqliteDatabase(str(path))
    assert database.execute("PRAGMA synchronous") == [(2,)]
    assert database.execute("PRAGMA journal_mode") == [("wal",)]
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    database.close()


@pytest.mark.parametrize(
    "url",
    ["", "sqlite:///", "sqlite://jobs.db", "jobs.db", "mysql://host/db", "postgresql:/x", "file:jobs.db"],
)
def test_another_kind_of_url_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=r"jobs\.store: expected"):
        open_job_store(url)


def test_what_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        open_job_store(f"sqlite:///{tmp_path / 'no' / 'jobs.db'}")
    with pytest.raises(Unavailable):
        open_job_store(f"sqlite:///{tmp_path}")
    (tmp_path / "text").write_text("no database, but long enough for its head to be read " * 100)
    with pytest.raises(Unavailable, match="not a database"):
        open_job_store(f"sqlite:///{tmp_path / 'text'}")


def test_a_closed_store_is_unavailable(tmp_path: Path) -> None:
    store = open_job_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    store.close()
    with pytest.raises(Unavailable):
        store.list_files(tenant=None)


def test_what_never_succeeds_is_not_to_be_repeated(place: Any) -> None:
    store = place.open()
    store._db.execute("ALTER TABLE files RENAME TO lost")
    with pytest.raises(StoreError, match="files") as raised:
        store.list_files(tenant=None)
    assert not isinstance(raised.value, (Unavailable, Conflict))
