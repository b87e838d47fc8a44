"""A worker that does all of one batch, and may be killed at any moment: ``python job_store_worker.py URL FOLDER``.

It writes a byte to its output before every call of the store, so that whoever watches can kill it in the middle of one.
Every row that it would send to an engine is noted in ``sent``. Rows on lines divisible by 7 are given back once, those
divisible by 11 fail once, those divisible by 13 die, those divisible by 5 are failures. Files are written as the jobs
do it: aside, synchronised, then renamed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tidegate.stores import (
    Answer,
    Bury,
    Claim,
    Conflict,
    Finish,
    GiveBack,
    JobStore,
    LeasedRow,
    RecordKind,
    Retry,
    RowState,
    Unavailable,
    Verdict,
    open_job_store,
)
from tidegate.testing.jobs import NOW, a_file, some_rows

_T = TypeVar("_T")

ROWS = 200
IMPORT_GROUP = 40
LEASE_GROUP = 9
LONG_S = 1e9  # leases end because the next worker says that its predecessor is gone, not by time


def verdict_on(row: LeasedRow) -> Verdict:
    answer = Answer(status=200, request_id=f"r{row.line}", body=b'{"answer":%d}' % row.line)
    if row.line % 7 == 0 and not row.returns:
        return GiveBack(row, NOW, "429")
    if row.line % 11 == 0 and not row.attempts:
        return Retry(row, NOW, "500")
    if row.line % 13 == 0:
        return Bury(row, answer)
    return Finish(row, RowState.FAILED if row.line % 5 == 0 else RowState.COMPLETED, answer)


class Worker:
    def __init__(self, store: JobStore, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.owner = f"worker-{os.getpid()}"
        self.sent = os.open(folder / "sent", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def step(self) -> bool:
        """Do what is next; false when there is nothing left to do."""
        os.write(1, b".")
        if claim := self.store.claim_validation(self.owner, now_utc=NOW, until_utc=NOW + LONG_S):
            self._import(claim)
        elif work := self.store.work(NOW):
            self._answer(work[0].batch_id)
        elif claim := self._claim_assembly():
            self._assemble(claim)
        else:
            return False
        return True

    def _import(self, claim: Claim) -> None:
        for first in range(claim.next_line, ROWS + 1, IMPORT_GROUP):
            os.write(1, b"i")
            rows = some_rows(IMPORT_GROUP, first=first)
            self.store.add_rows(claim, rows, next_line=first + IMPORT_GROUP, next_offset=first)
        assert self.store.find_duplicates(claim) == []
        os.write(1, b"s")
        self.store.start_batch(claim, now_utc=NOW)

    def _answer(self, batch_id: str) -> None:
        rows = self.store.lease(batch_id, LEASE_GROUP, owner=self.owner, now_utc=NOW, until_utc=NOW + LONG_S)
        os.write(self.sent, b"".join(b"%d\n" % row.line for row in rows))
        os.write(1, b"a")
        self.store.settle([verdict_on(row) for row in rows], now_utc=NOW)

    def _claim_assembly(self) -> Claim | None:
        names = (f"out-{self.owner}", f"err-{self.owner}")
        return self.store.claim_assembly(self.owner, now_utc=NOW, until_utc=NOW + LONG_S, file_ids=names)

    def _assemble(self, claim: Claim) -> None:
        with self._file(claim.output_file_id) as output, self._file(claim.error_file_id) as errors:
            for record in self.store.records(claim):
                os.write(1, b"r")
                line = b"%s %s\n" % (record.custom_id.encode(), record.answer.body)
                os.write(output if record.kind is RecordKind.COMPLETED else errors, line)
        os.write(1, b"f")
        self.store.finish_batch(
            claim, output=a_file(claim.output_file_id), errors=a_file(claim.error_file_id), now_utc=NOW
        )

    @contextlib.contextmanager
    def _file(self, name: str) -> Iterator[int]:
        aside = self.folder / f"{name}.part"
        descriptor = os.open(aside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        yield descriptor
        os.fsync(descriptor)
        os.close(descriptor)
        aside.rename(self.folder / name)


def main(url: str, folder: Path) -> None:
    store = _patiently(lambda: open_job_store(url))
    worker = Worker(store, folder)
    for owner in _patiently(store.owners):
        _patiently(functools.partial(store.release_owner, owner, now_utc=NOW))
    while True:
        try:
            if not worker.step():
                break
        except Unavailable:
            _rest()
            # What was under way is unknown: it comes back as that of a predecessor.
            _patiently(lambda: store.release_owner(worker.owner, now_utc=NOW))
        except Conflict:
            pass
    store.close()


def _patiently(call: Callable[[], _T]) -> _T:
    while True:
        try:
            return call()
        except Unavailable:
            _rest()


def _rest() -> None:
    time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
