"""Leasing and settling rows, in SQL.

Rows that were never leased need no index: they are the stretch from the batch's ``fresh_line`` on. Rows that came back
stand in ``waiting``. A lease is one record for a group of rows, which carry its token; so to prolong it costs one
change, however many rows it has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.stores.database import Record
from tidegate.stores.job_records import (
    BatchState,
    BatchWork,
    Bury,
    Finish,
    GiveBack,
    LeasedRow,
    RowState,
    Settled,
    Verdict,
)
from tidegate.stores.sql_common import (
    ANSWER_COLUMNS,
    SqlPart,
    answer_values,
    clean,
    find_batch,
    line_of,
    new_token,
    row_id,
)

DUE_COUNTED: Final = 10_000
_ROW: Final = "id, custom_id, start, size, attempts, returns"
_Return = tuple[int, int, str | None]  # attempts used, returns, error


@dataclass(slots=True)
class _Changes:
    """What the verdicts on the rows of one batch come to."""

    number: int
    state: BatchState
    final: dict[RowState, list[int]] = field(default_factory=lambda: defaultdict(list))
    answers: list[tuple[Any, ...]] = field(default_factory=list)
    back: dict[_Return, list[int]] = field(default_factory=lambda: defaultdict(list))
    waiting: list[tuple[int, float, int]] = field(default_factory=list)
    tokens: Counter[int] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        """Take a verdict whose lease holds."""
        row = verdict.row
        identity = row_id(self.number, row.line)
        self.tokens[row.token] += 1
        if isinstance(verdict, Finish):
            self._end(identity, verdict.state, verdict)
        elif isinstance(verdict, Bury):
            self._end(identity, RowState.DEAD, verdict)
        else:
            used, returned = (0, 1) if isinstance(verdict, GiveBack) else (1, 0)
            self.back[used, returned, clean(verdict.error)].append(identity)
            self.waiting.append((self.number, verdict.not_before_utc, row.line))

    def _end(self, identity: int, state: RowState, verdict: Finish | Bury) -> None:
        self.final[state].append(identity)
        self.answers.append((identity, *answer_values(verdict.answer)))

    def count(self, state: RowState) -> int:
        """How many rows get this final state."""
        return len(self.final[state])


class SqlRows(SqlPart):
    """See ``RowStore``."""

    def work(self, now_utc: float) -> list[BatchWork]:
        """See ``RowStore``."""
        found = self._db.execute(
            "SELECT id, tenant, band, endpoint, input_file_id, created_at, expires_at, fresh, "
            "(SELECT COUNT(*) FROM "
            "(SELECT 1 FROM waiting w WHERE w.batch = batches.no AND w.due <= ? LIMIT ?) AS counted), "
            "(SELECT COALESCE(SUM(l.rows), 0) FROM leases l WHERE l.batch = batches.no), "
            "(SELECT MIN(w.due) FROM waiting w WHERE w.batch = batches.no AND w.due > ?) "
            "FROM batches WHERE state = ? ORDER BY expires_at, no",
            (now_utc, DUE_COUNTED, now_utc, BatchState.IN_PROGRESS),
        )
        return [_work_of(record) for record in found]

    def lease(self, batch_id: str, count: int, *, owner: str, now_utc: float, until_utc: float) -> list[LeasedRow]:
        """See ``RowStore``."""
        with self._db.transaction():
            columns = "no, state, fresh, fresh_line, turn"
            number, state, fresh, line, turn = find_batch(self._db, batch_id, columns=columns, lock=self._db.for_update)
            if state != BatchState.IN_PROGRESS or count < 1:
                return []
            due = self._due(number, count, now_utc)
            share = _share_of_fresh(count, fresh, len(due), turn)
            rows = self._fresh(number, line, share) + self._returned(number, due[: count - share])
            if not rows:
                return []
            token = new_token()
            self._take(rows, share, token)
            lines = [line_of(row[0]) for row in rows]
            self._db.execute(
                "INSERT INTO leases (token, owner, batch, until_at, first_line, last_line, rows) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (token, owner, number, until_utc, min(lines), max(lines), len(lines)),
            )
            if share:
                self._db.execute(
                    "UPDATE batches SET fresh = fresh - ?, fresh_line = ?, turn = turn + 1 WHERE no = ?",
                    (share, lines[share - 1] + 1, number),
                )
            elif due:
                self._db.execute("UPDATE batches SET turn = turn + 1 WHERE no = ?", (number,))
            return [LeasedRow(batch_id, line_of(row[0]), token, *row[1:]) for row in rows]

    def _due(self, number: int, count: int, now_utc: float) -> list[tuple[float, int]]:
        sql = "SELECT due, line FROM waiting WHERE batch = ? AND due <= ? ORDER BY due, line LIMIT ?"
        found = self._db.execute(sql + self._db.skip_locked, (number, now_utc, count))
        return [(due, line) for due, line in found]

    def _fresh(self, number: int, line: int, count: int) -> list[Record]:
        if not count:
            return []
        return self._db.execute(
            f"SELECT {_ROW} FROM rows WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (row_id(number, line), row_id(number + 1, 0), count),
        )

    def _returned(self, number: int, due: Sequence[tuple[float, int]]) -> list[Record]:
        if not due:
            return []
        self._db.change_many(
            "DELETE FROM waiting WHERE batch = ? AND due = ? AND line = ?", [(number, *place) for place in due]
        )
        identities = [row_id(number, line) for _, line in due]
        found = self._db.execute(
            f"SELECT {_ROW} FROM rows WHERE {self._db.within('id')}",
            (self._db.members(identities),),
        )
        by_id = {row[0]: row for row in found}
        return [by_id[identity] for identity in identities]

    def _take(self, rows: Sequence[Record], fresh: int, token: int) -> None:
        """Mark rows as leased: the first ``fresh`` ones are one stretch, of which nothing else is leased or ended."""
        if fresh:
            self._db.execute(
                "UPDATE rows SET state = ?, lease = ? WHERE id >= ? AND id <= ?",
                (RowState.LEASED, token, rows[0][0], rows[fresh - 1][0]),
            )
        if len(rows) > fresh:
            self._db.execute(
                f"UPDATE rows SET state = ?, lease = ? WHERE {self._db.within('id')}",
                (RowState.LEASED, token, self._db.members(row[0] for row in rows[fresh:])),
            )

    def settle(self, verdicts: Sequence[Verdict], *, now_utc: float) -> Settled:
        """See ``RowStore``."""
        with self._db.transaction():
            batches = self._lock_batches({verdict.row.batch_id for verdict in verdicts})
            held = self._held(batches, verdicts)
            stale: list[LeasedRow] = []
            for verdict in verdicts:
                row = verdict.row
                changes = batches.get(row.batch_id)
                # Popped: the second verdict on a row in one group is as late as one in a later group.
                if changes and held.get(row_id(changes.number, row.line)) == row.token:
                    del held[row_id(changes.number, row.line)]
                    changes.add(verdict)
                else:
                    stale.append(row)
            left = [batch_id for batch_id, changes in batches.items() if self._apply(batch_id, changes, now_utc)]
            return Settled(len(verdicts) - len(stale), tuple(stale), tuple(left))

    def _lock_batches(self, batch_ids: Iterable[str]) -> dict[str, _Changes]:
        found = (
            self._db.execute(f"SELECT no, state, id FROM batches WHERE id = ?{self._db.for_update}", (batch_id,))
            for batch_id in sorted(batch_ids)  # everybody locks in this order
        )
        return {batch_id: _Changes(no, BatchState(state)) for rows in found for no, state, batch_id in rows}

    def _held(self, batches: dict[str, _Changes], verdicts: Sequence[Verdict]) -> dict[int, int]:
        """The tokens of the rows that are leased now."""
        identities = [
            row_id(batches[verdict.row.batch_id].number, verdict.row.line)
            for verdict in verdicts
            if verdict.row.batch_id in batches
        ]
        found = self._db.execute(
            f"SELECT id, lease FROM rows WHERE {self._db.within('id')} AND state = ?",
            (self._db.members(identities), RowState.LEASED),
        )
        return dict(found)

    def _apply(self, batch_id: str, changes: _Changes, now_utc: float) -> bool:
        """Write what was decided; true when the batch now waits to be assembled."""
        if not changes.tokens:
            return False
        # Rows that get the same values are changed by one statement: half the time of one for each, or less.
        where = f"WHERE {self._db.within('id')}"
        for state, identities in changes.final.items():
            sql = f"UPDATE rows SET state = ?, lease = NULL {where}"
            self._db.execute(sql, (state, self._db.members(identities)))
        if changes.answers:
            self._db.insert_many("answers", f"id, {ANSWER_COLUMNS}", changes.answers)
        if dead := changes.final.get(RowState.DEAD):
            self._db.insert_many("dead_letters", "id, died_at", [(identity, now_utc) for identity in dead])
        for values, identities in changes.back.items():
            self._db.execute(
                "UPDATE rows SET state = 0, lease = NULL, attempts = attempts + ?, returns = returns + ?, error = ? "
                + where,
                (*values, self._db.members(identities)),
            )
        if changes.waiting:
            self._db.insert_many("waiting", "batch, due, line", changes.waiting)
        tokens = sorted(changes.tokens.items())  # in the order in which others lock them
        used = [(count, token) for token, count in tokens]
        self._db.change_many("UPDATE leases SET rows = rows - ? WHERE token = ?", used)
        self._db.execute("DELETE FROM leases WHERE batch = ? AND rows <= 0", (changes.number,))
        return self._count(batch_id, changes, now_utc)

    def _count(self, batch_id: str, changes: _Changes, now_utc: float) -> bool:
        dead, failed = changes.count(RowState.DEAD), changes.count(RowState.FAILED)
        if changes.state is not BatchState.IN_PROGRESS:  # such a letter cannot come back into its batch
            dead, failed = 0, failed + dead
        self._db.execute(
            "UPDATE batches SET completed = completed + ?, failed = failed + ?, dead = dead + ? WHERE id = ?",
            (changes.count(RowState.COMPLETED), failed, dead, batch_id),
        )
        if changes.state is BatchState.IN_PROGRESS:
            left = self._db.change(
                "UPDATE batches SET state = ?, finalizing_at = ?, failed = failed + dead, dead = 0 "
                "WHERE id = ? AND completed + failed + dead = total",
                (BatchState.FINALIZING, now_utc, batch_id),
            )
        else:
            left = not self._db.execute("SELECT 1 FROM leases WHERE batch = ? LIMIT 1", (changes.number,))
        if left:
            self._db.notify(batch_id)
        return bool(left)


def _share_of_fresh(count: int, fresh: int, due: int, turn: int) -> int:
    """How many of a group are fresh rows: all that returned ones leave, and at least half.

    The half that is left over by an odd count goes to each side in turn, so that groups of one are fair as well.
    """
    half = (count + 1 - turn % 2) // 2
    return min(fresh, count - min(due, count - half))


def _work_of(record: Record) -> BatchWork:
    batch_id, tenant, band, endpoint, input_file, created, expires, fresh, due, leased, next_due = record
    return BatchWork(
        batch_id=batch_id,
        tenant=tenant,
        band=band,
        endpoint=endpoint,
        input_file_id=input_file,
        created_at_utc=created,
        expires_at_utc=expires,
        fresh=fresh,
        due=due,
        leased=int(leased),
        next_due_at_utc=next_due,
    )
