"""The job store over one SQL database: its parts put together, and housekeeping."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.stores.database import Database
from tidegate.stores.job_records import RowState
from tidegate.stores.schema import migrate, migrations
from tidegate.stores.sql_assembly import SqlAssembly
from tidegate.stores.sql_common import row_id
from tidegate.stores.sql_files import SqlFiles
from tidegate.stores.sql_leases import SqlLeases
from tidegate.stores.sql_letters import SqlLetters
from tidegate.stores.sql_rows import SqlRows


class SqlJobStore(SqlFiles, SqlAssembly, SqlRows, SqlLeases, SqlLetters):
    """See ``JobStore``."""

    def __init__(self, database: Database, *, steps: Sequence[str] | None = None) -> None:
        super().__init__(database)
        migrate(database, migrations() if steps is None else steps)

    @property
    def wake_fd(self) -> int | None:
        """See ``JobStore``."""
        return self._db.wake_fd

    def utc(self) -> float | None:
        """See ``JobStore``."""
        return self._db.utc()

    def drain_wakeups(self) -> frozenset[str]:
        """See ``JobStore``."""
        return self._db.drain_wakeups()

    def sweep(self, *, ended_before_utc: float, limit: int = 10_000) -> int:
        """See ``JobStore``."""
        done = self._sweep_rows(limit)
        return done or self._forget(ended_before_utc, limit) or self._db.give_back_space()

    def _sweep_rows(self, limit: int) -> int:
        """Drop rows and answers of the oldest ended batch that has some; never those of dead letters."""
        with self._db.transaction():
            found = self._db.execute(
                "SELECT no FROM batches WHERE swept = 0 AND state IN ('failed', 'completed', 'expired', 'cancelled') "
                f"ORDER BY no LIMIT 1{self._db.skip_locked}"
            )
            if not found:
                return 0
            (number,) = found[0]
            stretch = (row_id(number, 0), row_id(number + 1, 0))
            gone = self._drop(
                "SELECT id FROM rows WHERE id >= ? AND id < ? AND state <> ?", *stretch, RowState.DEAD, limit
            )
            if gone < limit:
                self._db.execute("DELETE FROM waiting WHERE batch = ?", (number,))
                self._db.execute("UPDATE batches SET swept = 1 WHERE no = ?", (number,))
            return gone + 1

    def _forget(self, ended_before_utc: float, limit: int) -> int:
        with self._db.transaction():
            found = self._db.execute(
                f"SELECT no FROM batches WHERE swept = 1 AND ended_at < ? ORDER BY no LIMIT 1{self._db.skip_locked}",
                (ended_before_utc,),
            )
            if not found:
                return 0
            (number,) = found[0]
            gone = self._drop(
                "SELECT id FROM rows WHERE id >= ? AND id < ?", row_id(number, 0), row_id(number + 1, 0), limit
            )
            if gone < limit:
                self._db.execute("DELETE FROM batches WHERE no = ?", (number,))
            return gone + 1

    def _drop(self, rows: str, *parameters: int) -> int:
        """Delete rows with all that hangs on them; the last parameter is the limit."""
        identities = [identity for (identity,) in self._db.execute(f"{rows} LIMIT ?", parameters)]
        if identities:
            within, members = self._db.within("id"), self._db.members(identities)
            for table in ("answers", "dead_letters", "rows"):
                self._db.execute(f"DELETE FROM {table} WHERE {within}", (members,))
        return len(identities)

    def size_bytes(self) -> int:
        """See ``JobStore``."""
        return self._db.size_bytes()

    def close(self) -> None:
        """See ``JobStore``."""
        self._db.close()
