"""What every control store promises. The conformance suite holds each implementation to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidegate.stores.knob_records import NewChange, StoredChange, StoredTenant, Usage, UsageRow


class KnobStore(Protocol):
    """Changes, tenants and usage. Durable when a call returns; a call that raises has changed nothing.

    Not for several threads: all calls MUST come from the one that opened it. Several processes may share a store.
    All methods raise ``StoreError``, ``Unavailable`` where a repetition may help.
    """

    def append(self, change: NewChange, *, keep: int) -> int:
        """Record a change and return its id; ids grow. Only the last ``keep`` MUST stay."""
        ...

    def changes(self, *, before: int | None, limit: int) -> list[StoredChange]:
        """Return a page of changes, newest first, those with ids below ``before``."""
        ...

    def change(self, change_id: int) -> StoredChange:
        """Return one change.

        Raises:
            NotFound: there is none of this id, or none any more.
        """
        ...

    def tenants(self) -> list[StoredTenant]:
        """Return all tenants by name."""
        ...

    def save_tenant(self, tenant: StoredTenant, change: NewChange | None, *, keep: int) -> int | None:
        """Write a tenant, and its record with it, both or neither; return the record's id.

        ``tenant.revision`` is the one that is being replaced, 0 for a tenant that MUST be new; one more is stored.

        Raises:
            Conflict: there is one of this name, or it has been changed since, or is gone.
        """
        ...

    def drop_tenant(self, name: str, revision: int, change: NewChange | None, *, keep: int) -> int | None:
        """Take a tenant out, and write the record, both or neither; return the record's id.

        Raises:
            Conflict: it has been changed since, or is gone.
        """
        ...

    def add_usage(self, hour_utc: int, used: Mapping[str, Usage]) -> None:
        """Add to what tenants used in the hour that begins at ``hour_utc``."""
        ...

    def usage(
        self, *, from_utc: int, to_utc: int, period_s: int | None, after: tuple[int, str] | None, limit: int
    ) -> list[UsageRow]:
        """Return a page of what tenants used in the hours from ``from_utc`` to before ``to_utc``.

        Args:
            from_utc: a full hour.
            to_utc: a full hour.
            period_s: length of the periods to add up by, whole hours from the Unix epoch on; ``None``: the whole time.
            after: (period, tenant) of the last row of the page before; pages are in this order.
            limit: most rows.
        """
        ...

    def forget_usage(self, before_utc: int, *, most_rows: int) -> int:
        """Forget hours before ``before_utc``, and the oldest hours while more than ``most_rows`` rows are left.

        Returns how many rows went; at most about ten thousand at a time.
        """
        ...

    def close(self) -> None:
        """Close it."""
        ...
