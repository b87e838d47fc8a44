"""Answers the questions of the API in the worker, where the store is. Only these methods can be asked for.

Every one may be asked again after the worker died, so new things come with their names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from tidegate.jobs.folder import Folder
from tidegate.jobs.messages import Ask, Reply
from tidegate.stores import (
    Batch,
    Conflict,
    DeadLetter,
    Full,
    JobStore,
    NewBatch,
    NotFound,
    Order,
    Overview,
    Redriven,
    StoredFile,
    StoreError,
)


class Desk:
    """Looks up and changes files, batches and dead letters. ``utc`` gives the wall-clock time in seconds."""

    def __init__(self, store: JobStore, folder: Folder, utc: Callable[[], float]) -> None:
        self._store = store
        self._folder = folder
        self._utc = utc
        self._methods: dict[str, Callable[..., object]] = {
            method.__name__: method
            for method in (
                self.add_file,
                self.get_file,
                self.list_files,
                self.delete_file,
                self.create_batch,
                self.get_batch,
                self.list_batches,
                self.overview,
                self.cancel_batch,
                self.dead_letters,
                self.redrive,
                self.discard,
            )
        }

    def answer(self, ask: Ask) -> Reply:
        """Answer a question; errors are answers too. Raises what is a fault of ours."""
        try:
            result = self._methods[ask.method](**ask.args)
        except StoreError as error:
            return Reply(ask.id, error=_kind(error), message=str(error))
        except OSError as error:
            return Reply(ask.id, error="Full" if error.errno in (28, 122, 27) else "Unavailable", message=str(error))
        return Reply(ask.id, msgspec.Raw(msgspec.msgpack.encode(result)))

    def add_file(self, file: object) -> StoredFile:
        """Make a written file count: on disk, then in the list."""
        wanted = msgspec.convert(file, StoredFile)
        self._folder.keep(wanted.id)
        self._store.add_file(wanted)
        return wanted

    def get_file(self, file_id: str, tenant: str | None) -> StoredFile:
        return self._store.get_file(file_id, tenant=tenant)

    def list_files(
        self, tenant: str | None, purpose: str | None, after: str | None, limit: int, order: str
    ) -> list[StoredFile]:
        return self._store.list_files(tenant=tenant, purpose=purpose, after=after, limit=limit, order=Order(order))

    def delete_file(self, file_id: str, tenant: str | None) -> None:
        self._store.delete_file(file_id, tenant=tenant)
        self._folder.drop(file_id)

    def create_batch(self, batch: object, window_s: float) -> Batch:
        """Its times are those of this clock, which expires it."""
        wanted, now_utc = msgspec.convert(batch, NewBatch), self._utc()
        return self._store.create_batch(replace(wanted, created_at_utc=now_utc, expires_at_utc=now_utc + window_s))

    def get_batch(self, batch_id: str, tenant: str | None) -> Batch:
        return self._store.get_batch(batch_id, tenant=tenant)

    def list_batches(self, tenant: str | None, after: str | None, limit: int) -> list[Batch]:
        return self._store.list_batches(tenant=tenant, after=after, limit=limit)

    def overview(self) -> Overview:
        return self._store.overview()

    def cancel_batch(self, batch_id: str, tenant: str | None) -> Batch:
        return self._store.cancel_batch(batch_id, tenant=tenant, now_utc=self._utc())

    def dead_letters(self, batch_id: str | None, after: tuple[str, int] | None, limit: int) -> list[DeadLetter]:
        after = None if after is None else (after[0], after[1])
        return self._store.dead_letters(batch_id=batch_id, after=after, limit=limit)

    def redrive(self, batch_id: str, lines: list[int] | None, new_batch_id: str, window_s: float) -> Redriven:
        return self._store.redrive(batch_id, lines, now_utc=self._utc(), new_batch_id=new_batch_id, window_s=window_s)

    def discard(self, batch_id: str, lines: list[int] | None) -> int:
        return self._store.discard(batch_id, lines)


def _kind(error: StoreError) -> str:
    for kind in (NotFound, Conflict, Full):
        if isinstance(error, kind):
            return kind.__name__
    return "Unavailable"
