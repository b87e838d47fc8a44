"""Several threads with a handle each, on the same batches: no deadlock, nothing lost, nothing twice."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest

from tidegate.stores import Conflict, GiveBack, JobStore, LeasedRow, StoreError, Verdict, open_job_store
from tidegate.testing.jobs import LEASE_S, NOW, answered, assembling, ended, started

_THREADS = 4
_BATCHES = 4
_ROWS = 120

pytestmark = pytest.mark.slow


class Member(threading.Thread):
    """Leases, settles, renews, and now and then gives up what the others hold, until nothing is left."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__()
        self.url = url
        self.chance = random.Random(number)
        self.owner = f"o{number}"
        self.accepted: Counter[str] = Counter()
        self.problem: StoreError | None = None

    def run(self) -> None:
        try:
            store = open_job_store(self.url)
            while work := store.work(NOW):
                self._round(store, [batch.batch_id for batch in work])
            store.close()
        except StoreError as problem:
            self.problem = problem

    def _round(self, store: JobStore, names: list[str]) -> None:
        self.chance.shuffle(names)
        # Between the two calls the leases have run out already: others may reap them.
        rows = [row for name in names[:3] for row in store.lease(name, 9, owner=self.owner, now_utc=NOW, until_utc=NOW)]
        store.renew({row.token for row in rows}, until_utc=NOW + LEASE_S)
        if self.chance.random() < 0.1:
            store.release_owner(f"o{self.chance.randrange(_THREADS)}", now_utc=NOW)
        if self.chance.random() < 0.1:
            store.reap(NOW)
        if self.chance.random() < 0.1:
            store.expire_batches(NOW)
        settled = store.settle([self._verdict(row) for row in rows], now_utc=NOW)
        stale = Counter(row.batch_id for row in settled.stale)
        self.accepted += Counter(row.batch_id for row in rows) - stale

    def _verdict(self, row: LeasedRow) -> Verdict:
        return GiveBack(row, NOW) if self.chance.random() < 0.1 else answered(row)


def test_a_crowd_answers_each_row_once(place: Any) -> None:
    store = place.open()
    names = [f"b{number}" for number in (3, 1, 4, 2)]
    assert len(names) == _BATCHES
    for name in names:
        started(store, _ROWS, name)
    crowd = [Member(place.url, number) for number in range(_THREADS)]
    for member in crowd:
        member.start()
    for member in crowd:
        member.join()
    assert [member.problem for member in crowd if member.problem] == []
    accepted = sum((member.accepted for member in crowd), Counter[str]())
    assert all(accepted[name] >= _ROWS for name in names), "rows that were given back are counted again"
    for _ in names:
        batch, records = ended(store)
        assert (batch.completed, batch.failed) == (_ROWS, 0)
        assert [record.line for record in records] == list(range(1, _ROWS + 1))
    assert assembling(store) is None
    with pytest.raises(Conflict):
        store.redrive("b1", None, now_utc=NOW, new_batch_id="x", window_s=1)
