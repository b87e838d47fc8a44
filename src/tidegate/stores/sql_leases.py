"""How long leases and claims last, and how rows come back from those that were lost, in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from tidegate.stores.database import Record
from tidegate.stores.job_records import RowState
from tidegate.stores.sql_common import OPEN_STATES, SqlPart, line_of, row_id

_CLAIMED: Final = f"state IN {OPEN_STATES} AND claim_until IS NOT NULL"


class SqlLeases(SqlPart):
    """The part of ``RowStore`` about leases as a whole."""

    def renew(self, tokens: Collection[int], *, until_utc: float) -> frozenset[int]:
        """See ``RowStore``."""
        members = self._db.members(sorted(tokens))
        with self._db.transaction():
            held = self._db.execute(
                f"SELECT token FROM leases WHERE {self._db.within('token')} ORDER BY token{self._db.for_update}",
                (members,),
            )
            self._db.execute(
                f"UPDATE leases SET until_at = ? WHERE {self._db.within('token')} AND until_at < ?",
                (until_utc, members, until_utc),
            )
        claimed = self._db.execute(f"SELECT claim_token FROM batches WHERE {_CLAIMED}")
        mine = {token for (token,) in claimed}.intersection(tokens)
        # One by one: whoever locks several batches at once does it in the order of their ids.
        sql = f"UPDATE batches SET claim_until = ? WHERE claim_token = ? AND claim_until < ? AND {_CLAIMED}"
        for token in mine:
            self._db.execute(sql, (until_utc, token, until_utc))
        return frozenset(token for (token,) in held) | mine

    def bring_forward(self, now_utc: float, *, most_s: float) -> int:
        """See ``RowStore``."""
        return self._db.change("UPDATE waiting SET due = ? WHERE due > ?", (now_utc, now_utc + most_s))

    def reap(self, now_utc: float) -> int:
        """See ``RowStore``."""
        return self._return_leases("until_at <= ?", now_utc, now_utc)

    def owners(self) -> dict[str, float]:
        """See ``RowStore``."""
        found = self._db.execute(
            "SELECT owner, MAX(until_at) FROM ("
            "SELECT owner, until_at FROM leases UNION ALL "
            f"SELECT claim_owner, claim_until FROM batches WHERE {_CLAIMED}"
            ") AS held GROUP BY owner"
        )
        return dict(found)

    def release_owner(self, owner: str, *, now_utc: float) -> int:
        """See ``RowStore``."""
        gone = f"claim_owner = ? AND {_CLAIMED}"
        for (batch_id,) in self._db.execute(f"SELECT id FROM batches WHERE {gone}", (owner,)):
            sql = f"UPDATE batches SET claim_until = NULL, claim_token = NULL WHERE id = ? AND {gone}"
            self._db.execute(sql, (batch_id, owner))
        return self._return_leases("owner = ?", owner, now_utc)

    def _return_leases(self, condition: str, value: object, now_utc: float) -> int:
        """Return the rows of all leases that meet a condition, one batch in a transaction."""
        batches = self._db.execute(f"SELECT DISTINCT batch FROM leases WHERE {condition} ORDER BY batch", (value,))
        return sum(self._return_batch(number, condition, value, now_utc) for (number,) in batches)

    def _return_batch(self, number: int, condition: str, value: object, now_utc: float) -> int:
        with self._db.transaction():
            found = self._db.execute(
                f"SELECT id FROM batches WHERE no = ?{self._db.for_update}",
                (number,),
            )
            if not found:
                return 0
            batch_id = found[0][0]
            sql = f"SELECT token, first_line, last_line FROM leases WHERE batch = ? AND {condition}"
            leases = self._db.execute(f"{sql} ORDER BY token{self._db.for_update}", (number, value))
            lines = [line for lease in leases for line in self._return_rows(number, lease)]
            self._db.insert_many("waiting", "batch, due, line", [(number, now_utc, line) for line in lines])
            self._db.change_many("DELETE FROM leases WHERE token = ?", [(lease[0],) for lease in leases])
            if leases:
                self._db.notify(batch_id)
            return len(lines)

    def _return_rows(self, number: int, lease: Record) -> Sequence[int]:
        token, first, last = lease
        stretch = (row_id(number, first), row_id(number, last), token)
        found = self._db.execute("SELECT id FROM rows WHERE id >= ? AND id <= ? AND lease = ?", stretch)
        self._db.execute(
            "UPDATE rows SET state = ?, lease = NULL, returns = returns + 1 WHERE id >= ? AND id <= ? AND lease = ?",
            (RowState.READY, *stretch),
        )
        return [line_of(identity) for (identity,) in found]
