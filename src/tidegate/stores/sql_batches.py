"""Batches: accepting, listing, stopping them, in SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tidegate.stores.database import Record
from tidegate.stores.job_records import COUNTED, Batch, BatchState, NewBatch, Order, Overview
from tidegate.stores.sql_common import (
    BATCH_COLUMNS,
    OPEN_STATES,
    SqlPart,
    after_number,
    batch_of,
    find_batch,
    new_token,
    page,
    read_batch,
)
from tidegate.stores.sql_files import find_file


class SqlBatches(SqlPart):
    """See ``BatchStore``."""

    def create_batch(self, batch: NewBatch) -> Batch:
        """See ``BatchStore``."""
        with self._db.transaction():
            # The file is locked, so that it is either deleted before, or seen as read.
            find_file(self._db, batch.input_file_id, tenant=batch.tenant, lock=self._db.for_update)
            self._db.execute(
                "INSERT INTO batches (id, tenant, endpoint, input_file_id, completion_window, band, metadata, state, "
                "created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                (
                    batch.id,
                    batch.tenant,
                    batch.endpoint,
                    batch.input_file_id,
                    batch.window,
                    batch.band,
                    json.dumps(dict(batch.metadata)),
                    BatchState.VALIDATING,
                    batch.created_at_utc,
                    batch.expires_at_utc,
                ),
            )
            self._db.notify(batch.id)
            return read_batch(self._db, batch.id, tenant=batch.tenant)

    def get_batch(self, batch_id: str, *, tenant: str | None) -> Batch:
        """See ``BatchStore``."""
        return read_batch(self._db, batch_id, tenant=tenant)

    def list_batches(
        self, *, tenant: str | None, after: str | None = None, limit: int = 20, order: Order = Order.NEWEST_FIRST
    ) -> list[Batch]:
        """See ``BatchStore``."""
        found = page(
            self._db,
            "batches",
            BATCH_COLUMNS,
            wanted={"tenant": tenant},
            after=after_number(self._db, "batches", after, tenant),
            limit=limit,
            newest_first=order is Order.NEWEST_FIRST,
        )
        return [batch_of(record) for record in found]

    def overview(self, *, limit: int = 20) -> Overview:
        """See ``BatchStore``."""
        sql = f"SELECT {BATCH_COLUMNS} FROM batches WHERE state IN {OPEN_STATES} ORDER BY no LIMIT ?"
        batches = tuple(batch_of(record) for record in self._db.execute(sql, (limit,)))
        return Overview(
            batches=batches,
            unended=self._how_many(f"batches WHERE state IN {OPEN_STATES}"),
            dead=self._how_many("dead_letters"),
        )

    def _how_many(self, rows: str) -> int:
        """Count rows, no further than anybody wants to know."""
        ((count,),) = self._db.execute(f"SELECT count(*) FROM (SELECT 1 FROM {rows} LIMIT ?) AS found", (COUNTED,))
        return int(count)

    def cancel_batch(self, batch_id: str, *, tenant: str | None, now_utc: float) -> Batch:
        """See ``BatchStore``."""
        with self._db.transaction():
            (state,) = find_batch(self._db, batch_id, columns="state", tenant=tenant, lock=self._db.for_update)
            if state == BatchState.VALIDATING:
                # Nothing was sent and the rows are not all known: it ends here, without files.
                self._set(batch_id, state=BatchState.CANCELLED, cancelling_at=now_utc, ended_at=now_utc)
            elif state == BatchState.IN_PROGRESS:
                self._close_letters(batch_id)
                self._set(batch_id, state=BatchState.CANCELLING, cancelling_at=now_utc, claim_until=None)
            self._db.notify(batch_id)
            return read_batch(self._db, batch_id)

    def expire_batches(self, now_utc: float) -> list[Batch]:
        """See ``BatchStore``."""
        due = self._db.execute(
            "SELECT id FROM batches WHERE state = ? AND expires_at <= ? ORDER BY no", (BatchState.IN_PROGRESS, now_utc)
        )
        return [batch for (batch_id,) in due if (batch := self._expire(batch_id, now_utc))]

    def _expire(self, batch_id: str, now_utc: float) -> Batch | None:
        with self._db.transaction():
            (state,) = find_batch(self._db, batch_id, columns="state", lock=self._db.for_update)
            if state != BatchState.IN_PROGRESS:
                return None  # somebody was faster
            self._close_letters(batch_id)
            self._set(batch_id, state=BatchState.FINALIZING, ending=BatchState.EXPIRED, finalizing_at=now_utc)
            self._db.notify(batch_id)
            return read_batch(self._db, batch_id)

    def _close_letters(self, batch_id: str) -> None:
        """Dead letters cannot come back any more: now they count as failed."""
        self._db.execute("UPDATE batches SET failed = failed + dead, dead = 0 WHERE id = ?", (batch_id,))

    def _set(self, batch_id: str, **values: Any) -> None:
        columns = ", ".join(f"{name} = ?" for name in values)
        self._db.execute(f"UPDATE batches SET {columns} WHERE id = ?", (*values.values(), batch_id))

    def _claim(self, found: Sequence[Record], owner: str, until_utc: float) -> str | None:
        """Take the batch that was found and locked, if any; returns its id."""
        if not found:
            return None
        batch_id: str = found[0][0]
        self._set(batch_id, claim_token=new_token(), claim_owner=owner, claim_until=until_utc)
        return batch_id
