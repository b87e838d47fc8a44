"""The control store over one SQL database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tidegate.stores.database import Database, Record
from tidegate.stores.errors import Conflict, NotFound
from tidegate.stores.knob_records import HOUR_S, NewChange, StoredChange, StoredKey, StoredTenant, Usage, UsageRow
from tidegate.stores.schema import migrate, migrations

SETTING: Final = "control.store"
_COUNTS: Final = (
    "completed", "failed", "rejected", "evicted", "cancelled", "input_tokens", "output_tokens", "dispatched", "wait_s",
)  # fmt: skip
_TOTALS: Final = ", ".join(f"SUM({name})" for name in _COUNTS)
_FORGOTTEN_AT_ONCE: Final = 10_000
_CHANGE: Final = (
    "SELECT a.id, a.at, a.who, a.action, a.changes, a.undoes, (SELECT MAX(u.id) FROM audit u WHERE u.undoes = a.id) "
    "FROM audit a"
)


class SqlKnobStore:
    """See ``KnobStore``."""

    def __init__(self, database: Database) -> None:
        self._db = database
        migrate(database, migrations("knob_migrations"), table="knob_schema", setting=SETTING)

    # Changes

    def append(self, change: NewChange, *, keep: int) -> int:
        """See ``KnobStore``."""
        with self._db.transaction():
            return self._append(change, keep)

    def _append(self, change: NewChange, keep: int) -> int:
        values = (change.at_utc, change.who, change.action, json.dumps(change.changes, default=str), change.undoes)
        ((number,),) = self._db.execute(
            "INSERT INTO audit (at, who, action, changes, undoes) VALUES (?, ?, ?, ?, ?) RETURNING id", values
        )
        self._db.execute("DELETE FROM audit WHERE id <= ?", (number - keep,))
        return int(number)

    def changes(self, *, before: int | None, limit: int) -> list[StoredChange]:
        """See ``KnobStore``."""
        where, values = ("", ()) if before is None else (" WHERE a.id < ?", (before,))
        found = self._db.execute(f"{_CHANGE}{where} ORDER BY a.id DESC LIMIT ?", (*values, limit))
        return [_change_of(record) for record in found]

    def change(self, change_id: int) -> StoredChange:
        """See ``KnobStore``."""
        found = self._db.execute(f"{_CHANGE} WHERE a.id = ?", (change_id,))
        if not found:
            raise NotFound(f"expected the id of a recorded change, got {change_id}")
        return _change_of(found[0])

    # Tenants

    def tenants(self) -> list[StoredTenant]:
        """See ``KnobStore``."""
        found = self._db.execute("SELECT name, revision, settings, keys FROM tenants ORDER BY name")
        return [
            StoredTenant(name, json.loads(settings), msgspec.json.decode(keys, type=tuple[StoredKey, ...]), revision)
            for name, revision, settings, keys in found
        ]

    def save_tenant(self, tenant: StoredTenant, change: NewChange | None, *, keep: int) -> int | None:
        """See ``KnobStore``."""
        settings, keys = json.dumps(tenant.settings), msgspec.json.encode(tenant.keys).decode()
        with self._db.transaction():
            if tenant.revision:
                done = self._db.change(
                    "UPDATE tenants SET revision = ?, settings = ?, keys = ? WHERE name = ? AND revision = ?",
                    (tenant.revision + 1, settings, keys, tenant.name, tenant.revision),
                )
            else:
                done = self._db.change(
                    "INSERT INTO tenants (name, revision, settings, keys) VALUES (?, 1, ?, ?) ON CONFLICT DO NOTHING",
                    (tenant.name, settings, keys),
                )
            if not done:
                raise _moved_on(tenant.name)
            return None if change is None else self._append(change, keep)

    def drop_tenant(self, name: str, revision: int, change: NewChange | None, *, keep: int) -> int | None:
        """See ``KnobStore``."""
        with self._db.transaction():
            if not self._db.change("DELETE FROM tenants WHERE name = ? AND revision = ?", (name, revision)):
                raise _moved_on(name)
            return None if change is None else self._append(change, keep)

    # Usage

    def add_usage(self, hour_utc: int, used: Mapping[str, Usage]) -> None:
        """See ``KnobStore``."""
        sums = ", ".join(f"{name} = tenant_usage.{name} + excluded.{name}" for name in _COUNTS)
        with self._db.transaction():
            self._db.change_many(
                f"INSERT INTO tenant_usage (hour, tenant, {', '.join(_COUNTS)}, longest_wait_s) "
                f"VALUES ({', '.join('?' * (len(_COUNTS) + 3))}) ON CONFLICT (hour, tenant) DO UPDATE SET {sums}, "
                "longest_wait_s = CASE WHEN excluded.longest_wait_s > tenant_usage.longest_wait_s "
                "THEN excluded.longest_wait_s ELSE tenant_usage.longest_wait_s END",
                [
                    (hour_utc, tenant, *(getattr(usage, name) for name in _COUNTS), usage.longest_wait_s)
                    for tenant, usage in used.items()
                ],
            )
            refusals = [
                (hour_utc, tenant, reason, count)
                for tenant, usage in used.items()
                for reason, count in usage.refusals.items()
            ]
            if refusals:
                self._db.change_many(
                    "INSERT INTO tenant_refusals (hour, tenant, reason, requests) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (hour, tenant, reason) "
                    "DO UPDATE SET requests = tenant_refusals.requests + excluded.requests",
                    refusals,
                )

    def usage(
        self, *, from_utc: int, to_utc: int, period_s: int | None, after: tuple[int, str] | None, limit: int
    ) -> list[UsageRow]:
        """See ``KnobStore``."""
        period = str(int(from_utc)) if period_s is None else f"hour / {int(period_s)} * {int(period_s)}"
        where = "hour >= ? AND hour < ?"
        values: list[Any] = [from_utc, to_utc]
        if after is not None:
            where += f" AND ({period} > ? OR ({period} = ? AND tenant > ?))"
            values += [after[0], after[0], after[1]]
        found = self._db.execute(
            f"SELECT {period}, tenant, {_TOTALS}, MAX(longest_wait_s) FROM tenant_usage WHERE {where} "
            f"GROUP BY {'tenant' if period_s is None else f'{period}, tenant'} ORDER BY 1, 2 LIMIT ?",
            [*values, limit],
        )
        rows = [_usage_row(record) for record in found]
        self._add_refusals(rows, from_utc, to_utc, period)
        return rows

    def _add_refusals(self, rows: Sequence[UsageRow], from_utc: int, to_utc: int, period: str) -> None:
        """Look up the refusals of a page; only those between its first and last tenant are read."""
        if not rows:
            return
        known = {(row.start_utc, row.tenant): row.usage.refusals for row in rows}
        tenants = sorted(row.tenant for row in rows)
        starts = (rows[0].start_utc, rows[-1].start_utc)
        found = self._db.execute(
            f"SELECT {period}, tenant, reason, SUM(requests) FROM tenant_refusals WHERE hour >= ? AND hour < ? "
            f"AND tenant >= ? AND tenant <= ? AND {period} >= ? AND {period} <= ? GROUP BY 1, 2, 3",
            [from_utc, to_utc, tenants[0], tenants[-1], *starts],
        )
        for start, tenant, reason, count in found:
            refusals = known.get((int(start), tenant))
            if refusals is not None:
                refusals[reason] = int(count)

    def forget_usage(self, before_utc: int, *, most_rows: int) -> int:
        """See ``KnobStore``."""
        gone = self._forget_hours(before_utc)
        if not gone:
            ((count,),) = self._db.execute("SELECT COUNT(*) FROM tenant_usage")
            if count > most_rows:
                ((oldest,),) = self._db.execute("SELECT MIN(hour) FROM tenant_usage")
                gone = self._forget_hours(int(oldest) + HOUR_S)
        return gone

    def _forget_hours(self, before_utc: int) -> int:
        """Forget one hour before ``before_utc`` whole, or a part of it if it is large."""
        gone = 0
        with self._db.transaction():
            for table in ("tenant_refusals", "tenant_usage"):
                ((hour,),) = self._db.execute(f"SELECT MIN(hour) FROM {table} WHERE hour < ?", (before_utc,))
                if hour is not None:
                    gone += self._db.change(
                        f"DELETE FROM {table} WHERE hour = ? AND tenant IN "
                        f"(SELECT tenant FROM {table} WHERE hour = ? ORDER BY tenant LIMIT ?)",
                        (hour, hour, _FORGOTTEN_AT_ONCE),
                    )
        return gone

    def close(self) -> None:
        """See ``KnobStore``."""
        self._db.close()


def _change_of(record: Record) -> StoredChange:
    number, at, who, action, changes, undoes, undone_by = record
    return StoredChange(number, at, who, action, json.loads(changes), undoes, undone_by)


def _usage_row(record: Record) -> UsageRow:
    start, tenant, *counts, longest = record
    fields: dict[str, Any] = dict(zip(_COUNTS, (int(count) for count in counts[:-1]), strict=False))
    return UsageRow(int(start), tenant, Usage(**fields, wait_s=float(counts[-1]), longest_wait_s=longest, refusals={}))


def _moved_on(name: str) -> Conflict:
    return Conflict(f"expected tenant {name!r} as it was seen; it has been changed or made by somebody else")
