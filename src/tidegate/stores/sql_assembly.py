"""Ending a batch: its records in order, and the files that they were written to, in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidegate.stores.database import Record
from tidegate.stores.errors import Conflict
from tidegate.stores.job_records import Batch, BatchState, Claim, FinalRecord, RecordKind, RowState, StoredFile
from tidegate.stores.sql_common import answer_of, find_batch, line_of, lock_claim, read_batch, row_id
from tidegate.stores.sql_files import insert_file
from tidegate.stores.sql_validation import CLAIMABLE, SqlValidation

_PAGE_BYTES: Final = 4 * 2**20
_PAGE_ROWS: Final = 2000
_FIRST_PAGE_ROWS: Final = 32
_KINDS: Final = {
    RowState.COMPLETED: RecordKind.COMPLETED,
    RowState.FAILED: RecordKind.FAILED,
    RowState.DEAD: RecordKind.DEAD,
}
_ASSEMBLED: Final = (BatchState.FINALIZING, BatchState.CANCELLING)


class SqlAssembly(SqlValidation):
    """The part of ``BatchStore`` that turns rows into files."""

    def claim_assembly(
        self, owner: str, *, now_utc: float, until_utc: float, file_ids: tuple[str, str]
    ) -> Claim | None:
        """See ``BatchStore``."""
        with self._db.transaction():
            found = self._db.execute(
                f"SELECT id FROM batches WHERE state IN (?, ?) AND {CLAIMABLE} "
                "AND NOT EXISTS (SELECT 1 FROM leases WHERE leases.batch = batches.no) "
                f"ORDER BY no LIMIT 1{self._db.skip_locked}",
                (*_ASSEMBLED, now_utc),
            )
            batch_id = self._claim(found, owner, until_utc)
            if batch_id is None:
                return None
            self._db.execute(
                "UPDATE batches SET planned_output = COALESCE(planned_output, ?), "
                "planned_error = COALESCE(planned_error, ?) WHERE id = ?",
                (*file_ids, batch_id),
            )
            columns = "claim_token, planned_output, planned_error"
            token, output, errors = find_batch(self._db, batch_id, columns=columns)
            batch = read_batch(self._db, batch_id)
            return Claim(batch=batch, token=token, output_file_id=output, error_file_id=errors)

    def records(self, claim: Claim) -> Iterator[FinalRecord]:
        """See ``BatchStore``."""
        number, unanswered = self._being_assembled(claim)
        after, count = row_id(number, 0), _FIRST_PAGE_ROWS
        while found := self._page(after, row_id(number + 1, 0), count):
            self._being_assembled(claim)
            yield from (_record_of(record, unanswered) for record in found)
            after = found[-1][0]
            # Answers may be long: the next page has as many rows as would have been 4 MiB of this one.
            mean = sum(len(record[-1] or b"") for record in found) // len(found) + 1
            count = max(1, min(_PAGE_ROWS, count * 4, _PAGE_BYTES // mean))

    def _being_assembled(self, claim: Claim) -> tuple[int, RecordKind]:
        """The batch's number, and what becomes of its rows without answer."""
        number, state, token = find_batch(self._db, claim.batch.id, columns="no, state, claim_token")
        if token != claim.token or state not in _ASSEMBLED:
            raise Conflict(f"the claim on batch {claim.batch.id!r} is lost")
        return number, RecordKind.CANCELLED if state == BatchState.CANCELLING else RecordKind.EXPIRED

    def _page(self, after: int, end: int, count: int) -> list[Record]:
        return self._db.execute(
            "SELECT rows.id, rows.custom_id, rows.state, "
            "answers.status, answers.request_id, answers.code, answers.message, answers.body "
            "FROM rows LEFT JOIN answers ON answers.id = rows.id "
            "WHERE rows.id > ? AND rows.id < ? ORDER BY rows.id LIMIT ?",
            (after, end, count),
        )

    def finish_batch(
        self, claim: Claim, *, output: StoredFile | None, errors: StoredFile | None, now_utc: float
    ) -> Batch:
        """See ``BatchStore``."""
        planned = {(output, claim.output_file_id), (errors, claim.error_file_id)}
        if any(file and file.id != name for file, name in planned):
            raise Conflict(f"batch {claim.batch.id!r}: expected the files' ids to be those of the claim")
        with self._db.transaction():
            _, state = lock_claim(self._db, claim)
            if state in _ASSEMBLED:
                for file in filter(None, (output, errors)):
                    insert_file(self._db, file)
                self._set(
                    claim.batch.id,
                    state=self._end_of(claim.batch.id, state),
                    output_file_id=output and output.id,
                    error_file_id=errors and errors.id,
                    ended_at=now_utc,
                )
            # Else it has ended under this very claim: the word of it was lost.
            return read_batch(self._db, claim.batch.id)

    def _end_of(self, batch_id: str, state: BatchState) -> BatchState:
        if state is BatchState.CANCELLING:
            return BatchState.CANCELLED
        (ending,) = find_batch(self._db, batch_id, columns="ending")
        return BatchState(ending or BatchState.COMPLETED)


def _record_of(record: Record, unanswered: RecordKind) -> FinalRecord:
    identity, custom_id, state, *answer = record
    kind = _KINDS.get(RowState(state), unanswered)
    return FinalRecord(line=line_of(identity), custom_id=custom_id, kind=kind, answer=answer_of(answer))
