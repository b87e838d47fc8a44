"""Importing the rows of a batch, in SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from tidegate.stores.errors import Conflict
from tidegate.stores.job_records import Batch, BatchFault, BatchState, Claim, Duplicate, NewRow
from tidegate.stores.sql_batches import SqlBatches
from tidegate.stores.sql_common import clean, find_batch, line_of, lock_claim, read_batch, row_id

CLAIMABLE: Final = "(claim_until IS NULL OR claim_until <= ?)"


class SqlValidation(SqlBatches):
    """The part of ``BatchStore`` that turns lines into rows."""

    def claim_validation(self, owner: str, *, now_utc: float, until_utc: float) -> Claim | None:
        """See ``BatchStore``."""
        with self._db.transaction():
            found = self._db.execute(
                f"SELECT id FROM batches WHERE state = ? AND {CLAIMABLE} ORDER BY no LIMIT 1{self._db.skip_locked}",
                (BatchState.VALIDATING, now_utc),
            )
            batch_id = self._claim(found, owner, until_utc)
            if batch_id is None:
                return None
            columns = "claim_token, next_line, next_offset"
            token, line, offset = find_batch(self._db, batch_id, columns=columns)
            return Claim(batch=read_batch(self._db, batch_id), token=token, next_line=line, next_offset=offset)

    def add_rows(self, claim: Claim, rows: Sequence[NewRow], *, next_line: int, next_offset: int) -> None:
        """See ``BatchStore``."""
        with self._db.transaction():
            number = self._validating(claim)
            (known,) = find_batch(self._db, claim.batch.id, columns="next_line")
            if known >= next_line:
                return  # the group is there, only the word of it was lost
            base = row_id(number, 0)
            records = [(base + row.line, _exact(row.custom_id), row.offset, row.length) for row in rows]
            self._db.insert_many("rows", "id, custom_id, start, size", records)
            self._db.execute(
                "UPDATE batches SET fresh = fresh + ?, next_line = ?, next_offset = ? WHERE id = ?",
                (len(records), next_line, next_offset, claim.batch.id),
            )

    def find_duplicates(self, claim: Claim, *, limit: int = 100) -> list[Duplicate]:
        """See ``BatchStore``."""
        # One sort at the end costs a third of a unique index on custom_id when the names are random, and never more.
        (number,) = find_batch(self._db, claim.batch.id, columns="no")
        stretch = (row_id(number, 0), row_id(number + 1, 0))
        found = self._db.execute(
            "WITH used AS (SELECT custom_id, MIN(id) AS first FROM rows WHERE id >= ? AND id < ? "
            "GROUP BY custom_id HAVING COUNT(*) > 1) "
            "SELECT rows.custom_id, used.first, rows.id FROM used JOIN rows ON rows.custom_id = used.custom_id "
            "WHERE rows.id >= ? AND rows.id < ? AND rows.id <> used.first ORDER BY rows.id LIMIT ?",
            (*stretch, *stretch, limit),
        )
        return [Duplicate(custom_id, line_of(first), line_of(identity)) for custom_id, first, identity in found]

    def start_batch(self, claim: Claim, *, now_utc: float) -> Batch:
        """See ``BatchStore``."""
        with self._db.transaction():
            if self._is_still_to_be(claim, BatchState.IN_PROGRESS, BatchState.FINALIZING):
                self._db.execute(
                    "UPDATE batches SET state = ?, total = fresh, in_progress_at = ?, claim_until = NULL WHERE id = ?",
                    (BatchState.IN_PROGRESS, now_utc, claim.batch.id),
                )
                if not read_batch(self._db, claim.batch.id).total:
                    self._set(claim.batch.id, state=BatchState.FINALIZING, finalizing_at=now_utc)
                self._db.notify(claim.batch.id)
            return read_batch(self._db, claim.batch.id)

    def fail_batch(self, claim: Claim, faults: Sequence[BatchFault], *, now_utc: float) -> Batch:
        """See ``BatchStore``."""
        texts = [{**asdict(fault), "message": clean(fault.message)} for fault in faults]
        with self._db.transaction():
            if self._is_still_to_be(claim, BatchState.FAILED):
                self._set(claim.batch.id, state=BatchState.FAILED, errors=json.dumps(texts), ended_at=now_utc)
            return read_batch(self._db, claim.batch.id)

    def _is_still_to_be(self, claim: Claim, *outcome: BatchState) -> bool:
        """Lock the batch; false when this very claim has brought it to ``outcome``, and only the word was lost."""
        if lock_claim(self._db, claim)[1] in outcome:
            return False
        self._validating(claim)
        return True

    def _validating(self, claim: Claim) -> int:
        number, state = lock_claim(self._db, claim)
        if state is not BatchState.VALIDATING:
            raise Conflict(f"batch {claim.batch.id!r} is {state}: it is not validated any more")
        return number


def _exact(custom_id: str) -> str:
    if "\x00" in custom_id:
        raise ValueError("a custom_id has no NUL")
    return custom_id
