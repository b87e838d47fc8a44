"""The little that the two SQL databases have to offer alike, so that the job store is written once.

SQL is written with ``?`` for parameters, and has neither ``?`` nor ``%`` in literals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Record = tuple[Any, ...]


class Database(Protocol):
    """One connection to a database. Errors of the driver become ``StoreError`` here."""

    @property
    def spelling(self) -> dict[str, str]:
        """What the migrations spell differently."""

    @property
    def for_update(self) -> str:
        """Ends a SELECT whose rows the transaction is going to decide on; empty where a transaction is alone."""

    @property
    def skip_locked(self) -> str:
        """The same, but rows on which somebody else is deciding are left out instead of waited for."""

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing; on disk when the block ends. Not to be nested."""

    def lock_schema(self) -> None:
        """Within a transaction: nobody else migrates until it ends."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Record]:
        """Run one statement and return its rows, if it has any. Outside a transaction it is one of its own."""

    def change(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement and return how many rows it changed."""

    def change_many(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run one statement for every set of parameters."""

    def insert_many(self, table: str, columns: str, records: Iterable[Sequence[Any]]) -> None:
        """Append records to a table by the fastest way there is. ``columns`` is their list, with commas."""

    def within(self, column: str) -> str:
        """A condition with one parameter, made by ``members``: the column has one of these whole numbers."""

    def members(self, numbers: Iterable[int]) -> Any:
        """The parameter for ``within``."""

    def notify(self, batch_id: str) -> None:
        """Tell other processes, at commit, that something happened to a batch."""

    @property
    def wake_fd(self) -> int | None:
        """See ``JobStore``."""

    def drain_wakeups(self) -> frozenset[str]:
        """See ``JobStore``."""

    def utc(self) -> float | None:
        """See ``JobStore``."""

    def size_bytes(self) -> int:
        """Space in use."""

    def give_back_space(self) -> int:
        """Hand unused space back to the file system in a bounded step; returns how much was done, in any unit."""

    def close(self) -> None:
        """Close the connection."""
