"""Dead letters, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidegate.stores.database import Record
from tidegate.stores.errors import Conflict, NotFound
from tidegate.stores.job_records import BatchState, DeadLetter, Redriven, RowState
from tidegate.stores.sql_common import SqlPart, answer_of, find_batch, line_of, row_id
from tidegate.stores.sql_files import find_file

_NOT_NOW: Final = (BatchState.FINALIZING, BatchState.CANCELLING)
_COPIED: Final = "tenant, endpoint, input_file_id, completion_window, band, metadata"


class SqlLetters(SqlPart):
    """The part of ``RowStore`` about rows that used up their attempts."""

    def dead_letters(
        self,
        *,
        tenant: str | None = None,
        batch_id: str | None = None,
        after: tuple[str, int] | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """See ``RowStore``."""
        conditions, parameters = [], list[Any]()
        if tenant is not None:
            conditions.append("b.tenant = ?")
            parameters.append(tenant)
        if batch_id is not None:
            (number,) = find_batch(self._db, batch_id, columns="no", tenant=tenant)
            conditions.append("d.id >= ? AND d.id < ?")
            parameters += [row_id(number, 0), row_id(number + 1, 0)]
        if after is not None:
            (number,) = find_batch(self._db, after[0], columns="no", tenant=tenant)
            conditions.append("d.id > ?")
            parameters.append(row_id(number, after[1]))
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        found = self._db.execute(
            "SELECT b.id, d.id, b.tenant, r.custom_id, r.attempts, d.died_at, "
            "a.status, a.request_id, a.code, a.message, a.body "
            "FROM dead_letters d JOIN batches b ON b.no = d.id / 4294967296 "
            f"JOIN rows r ON r.id = d.id JOIN answers a ON a.id = d.id {where} ORDER BY d.id LIMIT ?",
            (*parameters, limit),
        )
        return [_letter_of(record) for record in found]

    def redrive(
        self,
        batch_id: str,
        lines: Sequence[int] | None,
        *,
        now_utc: float,
        new_batch_id: str,
        window_s: float,
    ) -> Redriven:
        """See ``RowStore``."""
        with self._db.transaction():
            number, state = self._lock(batch_id)
            if done := self._redriven(batch_id, new_batch_id):
                return done
            letters = self._letters(batch_id, number, lines)
            if state == BatchState.IN_PROGRESS:
                self._redrive_here(number, letters, now_utc)
                target = batch_id
            else:
                self._redrive_anew(batch_id, letters, new_batch_id, times=(now_utc, now_utc + window_s))
                target = new_batch_id
            self._delist(letters)
            self._db.notify(target)
            return Redriven(target, len(letters))

    def _redriven(self, batch_id: str, new_batch_id: str) -> Redriven | None:
        """What an earlier call did, whose answer was lost."""
        sql = "SELECT total FROM batches WHERE id = ? AND redrive_of = ?"
        found = self._db.execute(sql, (new_batch_id, batch_id))
        return Redriven(new_batch_id, found[0][0]) if found else None

    def discard(self, batch_id: str, lines: Sequence[int] | None) -> int:
        """See ``RowStore``."""
        with self._db.transaction():
            number, state = self._lock(batch_id)
            letters = self._letters(batch_id, number, lines)
            self._close(batch_id, letters)
            if state == BatchState.IN_PROGRESS:
                self._db.execute(
                    "UPDATE batches SET dead = dead - ?, failed = failed + ? WHERE no = ?",
                    (len(letters), len(letters), number),
                )
            self._delist(letters)
            return len(letters)

    def _lock(self, batch_id: str) -> tuple[int, str]:
        number, state = find_batch(self._db, batch_id, columns="no, state", lock=self._db.for_update)
        if state in _NOT_NOW:
            raise Conflict(f"batch {batch_id!r} is {state}: try again when it has ended")
        return number, state

    def _letters(self, batch_id: str, number: int, lines: Sequence[int] | None) -> list[int]:
        if lines is None:
            stretch = (row_id(number, 0), row_id(number + 1, 0))
            found = self._db.execute("SELECT id FROM dead_letters WHERE id >= ? AND id < ? ORDER BY id", stretch)
        else:
            members = self._db.members(sorted(row_id(number, line) for line in lines))
            sql = f"SELECT id FROM dead_letters WHERE {self._db.within('id')} ORDER BY id"
            found = self._db.execute(sql, (members,))
        if not found:
            raise NotFound(f"batch {batch_id!r} has no such dead letter")
        return [identity for (identity,) in found]

    def _redrive_here(self, number: int, letters: Sequence[int], now_utc: float) -> None:
        within, members = self._db.within("id"), self._db.members(letters)
        self._db.execute(
            f"UPDATE rows SET state = ?, attempts = 0, returns = 0, error = NULL WHERE {within}",
            (RowState.READY, members),
        )
        self._db.execute(f"DELETE FROM answers WHERE {within}", (members,))
        waiting = [(number, now_utc, line_of(identity)) for identity in letters]
        self._db.insert_many("waiting", "batch, due, line", waiting)
        self._db.execute("UPDATE batches SET dead = dead - ? WHERE no = ?", (len(letters), number))

    def _redrive_anew(
        self, batch_id: str, letters: Sequence[int], new_batch_id: str, *, times: tuple[float, float]
    ) -> None:
        """Copy the rows into a new batch. Their old records stand in files that clients may have read."""
        tenant, input_file = find_batch(self._db, batch_id, columns="tenant, input_file_id")
        try:
            find_file(self._db, input_file, tenant=tenant, lock=self._db.for_update)
        except NotFound as error:
            raise Conflict(f"the input file {input_file!r} of batch {batch_id!r} is deleted") from error
        now_utc, expires_utc = times
        self._db.execute(
            f"INSERT INTO batches (id, {_COPIED}, redrive_of, state, total, fresh, created_at, in_progress_at, "
            f"expires_at) SELECT ?, {_COPIED}, id, ?, ?, ?, ?, ?, ? FROM batches WHERE id = ?",
            (
                new_batch_id,
                BatchState.IN_PROGRESS,
                len(letters),
                len(letters),
                now_utc,
                now_utc,
                expires_utc,
                batch_id,
            ),
        )
        (number,) = find_batch(self._db, new_batch_id, columns="no")
        sql = f"SELECT id, custom_id, start, size FROM rows WHERE {self._db.within('id')}"
        found: list[Record] = self._db.execute(sql, (self._db.members(letters),))
        copies = [(row_id(number, line_of(identity)), *rest) for identity, *rest in sorted(found)]
        self._db.insert_many("rows", "id, custom_id, start, size", copies)
        self._close(batch_id, letters)

    def _close(self, batch_id: str, letters: Sequence[int]) -> None:
        """The rows are plain failures from now on; if their batch has ended, a sweep takes them."""
        members = self._db.members(letters)
        self._db.execute(
            f"UPDATE rows SET state = ? WHERE {self._db.within('id')}",
            (RowState.FAILED, members),
        )
        self._db.execute("UPDATE batches SET swept = 0 WHERE id = ?", (batch_id,))

    def _delist(self, letters: Sequence[int]) -> None:
        sql = f"DELETE FROM dead_letters WHERE {self._db.within('id')}"
        self._db.execute(sql, (self._db.members(letters),))


def _letter_of(record: Record) -> DeadLetter:
    batch_id, identity, tenant, custom_id, attempts, died_at, *answer = record
    return DeadLetter(
        batch_id=batch_id,
        line=line_of(identity),
        tenant=tenant,
        custom_id=custom_id,
        attempts=attempts,
        died_at_utc=died_at,
        answer=answer_of(answer),
    )
