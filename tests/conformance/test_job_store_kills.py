"""``kill -9`` at random moments, of the worker and of PostgreSQL: nothing lost, nothing twice, counts never back."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import job_store_worker
from conformance.job_store_worker import LEASE_GROUP, ROWS
from tidegate.stores import Batch, BatchState, JobStore, Unavailable, open_job_store
from tidegate.testing.jobs import created
from tidegate.testing.postgres import PostgresProcess, postgres_process

pytestmark = pytest.mark.slow

_KILLS = 6
_SERVER_KILLS = 3
_CALLS = 120  # about as many bytes as a whole run without kills has


class Watched:
    """A worker process whose progress can be followed byte by byte."""

    def __init__(self, url: str, folder: Path) -> None:
        command = [sys.executable, job_store_worker.__file__, url, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def follow(self, count: int) -> bool:
        """Wait for so many bytes of progress; false when it ended before."""
        assert self.process.stdout is not None
        return all(os.read(self.process.stdout.fileno(), 1) for _ in range(count))

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            with self.process.stdout as progress:
                progress.read()
        return self.process.wait(40)


def _never_backwards(before: Batch, now: Batch) -> None:
    assert now.total >= before.total
    assert now.completed >= before.completed
    assert now.failed >= before.failed
    assert now.completed + now.failed + now.dead <= now.total


def _check(store: JobStore, folder: Path, *, kills: int) -> None:
    batch = store.get_batch("batch-1", tenant=None)
    assert batch.state is BatchState.COMPLETED
    output, errors = (
        (folder / str(name)).read_text().splitlines() for name in (batch.output_file_id, batch.error_file_id)
    )
    assert Counter(line.split()[0] for line in output + errors) == {f"request-{n}": 1 for n in range(1, ROWS + 1)}
    failures = sum(1 for n in range(1, ROWS + 1) if n % 13 == 0 or n % 5 == 0)
    assert (batch.total, batch.completed, batch.failed) == (ROWS, ROWS - failures, failures)
    assert (len(output), len(errors)) == (ROWS - failures, failures)
    letters = store.dead_letters(limit=ROWS)
    assert [letter.line for letter in letters] == [n for n in range(1, ROWS + 1) if n % 13 == 0]
    sent = (folder / "sent").read_text().split()
    meant = ROWS + ROWS // 7 + ROWS // 11
    assert len(sent) <= meant + kills * LEASE_GROUP, "at most the rows in flight at a kill are sent again"
    listed = {file.id for file in store.list_files(tenant=None)} - {"input-of-batch-1"}
    assert listed == {batch.output_file_id, batch.error_file_id}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_worker_killed_at_any_moment_leaves_each_row_one_record(place: Any, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = place.open()
    batch = created(store)
    for _ in range(_KILLS):
        worker = Watched(place.url, tmp_path)
        worker.follow(chance.randrange(1, _CALLS // 3))
        worker.kill()
        _never_backwards(batch, batch := store.get_batch("batch-1", tenant=None))
    assert Watched(place.url, tmp_path).end() == 0
    _check(store, tmp_path, kills=_KILLS)


@pytest.fixture
def own_postgres() -> Iterator[PostgresProcess]:
    with postgres_process() as server:
        yield server


@pytest.mark.services
def test_a_server_killed_at_any_moment_leaves_each_row_one_record(
    own_postgres: PostgresProcess, tmp_path: Path
) -> None:
    chance = random.Random(3)
    store = open_job_store(own_postgres.url)
    batch = created(store)
    worker = Watched(own_postgres.url, tmp_path)
    end = time.monotonic() + 40
    try:
        for _ in range(_SERVER_KILLS):
            worker.follow(chance.randrange(10, _CALLS // _SERVER_KILLS))
            own_postgres.kill()
            with pytest.raises(Unavailable):
                while time.monotonic() < end:  # its children outlive it for a moment
                    store.get_batch("batch-1", tenant=None)
            own_postgres.start()
            _never_backwards(batch, batch := store.get_batch("batch-1", tenant=None))
        assert worker.end() == 0
    finally:
        worker.kill()
    _check(store, tmp_path, kills=_SERVER_KILLS)
    store.close()
