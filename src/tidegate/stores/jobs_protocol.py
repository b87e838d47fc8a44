"""What a job store promises. One suite, ``tests/conformance/test_job_store_*.py``, holds every implementation to it.

A store is synchronous and belongs to one thread of the jobs' worker process; it is never called in the data plane.
Every method is one transaction that is on disk when it returns, or has changed nothing when it raises ``StoreError``:
``Unavailable`` (repeat it), ``Full`` (repeat it when there is room), ``Conflict`` or ``NotFound`` (do not repeat it).
When a server is lost while it commits, nobody knows whether it did. So a call that is repeated after ``Unavailable``
does no harm: what it would create is there, verdicts are stale, and a lease that nobody heard of runs out.

Life of a batch::

    create_batch -> validating --start_batch--> in_progress --last row--> finalizing --finish_batch--> completed
                        |                          |   `----expire------> finalizing --finish_batch--> expired
                        |--fail_batch--> failed    `-------cancel------> cancelling --finish_batch--> cancelled
                        `--cancel------> cancelled

Life of a row::

    ready --lease--> leased --Finish--> completed | failed       ready --cancel/expire, at assembly--> its record
      ^                |-----Bury-----> dead --redrive--> ready
      `---GiveBack, Retry, lost lease---'

* Each row gets exactly one final record. A verdict counts only while its lease is the row's lease; the first wins.
* Counts change in the transaction that changes the rows, and never run backwards.
* ``owner`` names one run of one process. Leases and claims end by their time (``reap``), or when somebody who knows
  that the owner is gone says so (``release_owner``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from tidegate.stores.job_records import (
    Batch,
    BatchFault,
    BatchWork,
    Claim,
    DeadLetter,
    Duplicate,
    FinalRecord,
    LeasedRow,
    NewBatch,
    NewRow,
    Order,
    Overview,
    Redriven,
    Settled,
    StoredFile,
    Verdict,
)


class FileStore(Protocol):
    """The list of files. ``tenant=None`` means any tenant (operators only)."""

    def add_file(self, file: StoredFile) -> None:
        """List a file whose bytes are on disk already. Repeating it with the same id and content does nothing."""

    def get_file(self, file_id: str, *, tenant: str | None) -> StoredFile:
        """One file. Raises ``NotFound``."""

    def list_files(
        self,
        *,
        tenant: str | None,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        order: Order = Order.NEWEST_FIRST,
    ) -> list[StoredFile]:
        """A page of files, after the file with id ``after``. Raises ``NotFound`` when that is gone."""

    def delete_file(self, file_id: str, *, tenant: str | None) -> None:
        """Take a file off the list; its bytes may go from the disk afterwards.

        Raises:
            NotFound: no such file.
            Conflict: a batch that has not ended reads it.
        """

    def expired_files(self, now_utc: float, *, limit: int = 100) -> list[StoredFile]:
        """Files past their time that no unended batch reads."""

    def known_files(self, file_ids: Sequence[str]) -> frozenset[str]:
        """Those of ``file_ids`` that are listed, or planned by an assembly under way.

        Others are rubbish on the disk, but for those that are being uploaded: leave young ones alone.
        """


class BatchStore(Protocol):
    """Batches from creation to their end. ``tenant=None`` means any tenant (operators only)."""

    def create_batch(self, batch: NewBatch) -> Batch:
        """Accept a batch; it waits for validation. Repeating it with the same id returns what the batch is by now.

        Raises ``NotFound`` when the tenant has no such input file.
        """

    def get_batch(self, batch_id: str, *, tenant: str | None) -> Batch:
        """One batch. Raises ``NotFound``."""

    def list_batches(
        self, *, tenant: str | None, after: str | None = None, limit: int = 20, order: Order = Order.NEWEST_FIRST
    ) -> list[Batch]:
        """A page of batches, after the batch with id ``after``. Raises ``NotFound`` when that is gone."""

    def overview(self, *, limit: int = 20) -> Overview:
        """What goes on, of all tenants, with the first ``limit`` batches; cheap however many there are."""

    def cancel_batch(self, batch_id: str, *, tenant: str | None, now_utc: float) -> Batch:
        """Stop a batch: no row is leased afterwards, rows under lease may still finish. Idempotent.

        A batch that has ended, or is finalizing, is returned as it is; the caller decides what to say.
        """

    def expire_batches(self, now_utc: float) -> list[Batch]:
        """Move batches in progress whose window has ended to finalizing. Rows under lease may still finish."""

    def claim_validation(self, owner: str, *, now_utc: float, until_utc: float) -> Claim | None:
        """Take the oldest batch that waits for validation. Two callers never hold the same one."""

    def add_rows(self, claim: Claim, rows: Sequence[NewRow], *, next_line: int, next_offset: int) -> None:
        """Import a group of valid lines, in ascending order; remember where to go on. A repeated group is ignored.

        ``next_line`` and ``next_offset`` come back in the claim of whoever continues after a crash.

        Raises:
            Conflict: the claim is lost or the batch was cancelled; stop.
        """

    def find_duplicates(self, claim: Claim, *, limit: int = 100) -> list[Duplicate]:
        """Lines whose ``custom_id`` an earlier line has, the lowest lines first."""

    def start_batch(self, claim: Claim, *, now_utc: float) -> Batch:
        """Validation passed: rows may be leased from now on. A batch without rows goes to finalizing at once."""

    def fail_batch(self, claim: Claim, faults: Sequence[BatchFault], *, now_utc: float) -> Batch:
        """Validation failed: the batch ends without files; its rows are dropped."""

    def claim_assembly(
        self, owner: str, *, now_utc: float, until_utc: float, file_ids: tuple[str, str]
    ) -> Claim | None:
        """Take the oldest batch whose rows are all settled and whose files are to be written.

        Args:
            owner: who takes it.
            now_utc: present time.
            until_utc: when others may take it instead.
            file_ids: fresh names for the output and the error file. They are used unless names were planned before:
                read them from the claim.
        """

    def records(self, claim: Claim) -> Iterator[FinalRecord]:
        """The record of every row, in order of lines, in bounded memory. Same records whenever it is repeated.

        Raises ``Conflict`` at the next row when the claim is lost.
        """

    def finish_batch(
        self, claim: Claim, *, output: StoredFile | None, errors: StoredFile | None, now_utc: float
    ) -> Batch:
        """List the files that were written (whole, synchronised, renamed) and end the batch, in one step.

        Raises:
            Conflict: the claim is lost, or the files do not have the planned names.
        """


class RowStore(Protocol):
    """Rows of batches in progress."""

    def work(self, now_utc: float) -> list[BatchWork]:
        """All batches in progress that still have rows to answer, earliest end first."""

    def lease(self, batch_id: str, count: int, *, owner: str, now_utc: float, until_utc: float) -> list[LeasedRow]:
        """Take up to ``count`` rows that may go now; none when the batch is not in progress.

        Fresh rows come in order of lines, returned ones in order of the time they became due. While both wait, each
        gets half of the group: a retry never passes fresh work by more than that, and is not left to the end either.
        """

    def settle(self, verdicts: Sequence[Verdict], *, now_utc: float) -> Settled:
        """Decide a group of rows, of one or many batches, in one commit.

        In a batch that is being cancelled or has expired, rows given back stay unanswered and get that record.
        """

    def renew(self, tokens: Collection[int], *, until_utc: float) -> frozenset[int]:
        """Prolong leases and claims, never shorten them; returns the tokens that are still held.

        Tokens, not owners: a lease whose answer was lost on its way to us has to run out.
        """

    def bring_forward(self, now_utc: float, *, most_s: float) -> int:
        """Let rows that wait for longer than ``most_s`` from now be due now; returns how many.

        For a start after the clock was set back: what was written down by the old clock would wait for it.
        """

    def reap(self, now_utc: float) -> int:
        """Return rows whose lease has run out (it uses no attempt); returns the number of rows."""

    def owners(self) -> dict[str, float]:
        """Who holds leases or claims, and until when at the latest."""

    def release_owner(self, owner: str, *, now_utc: float) -> int:
        """Return every row of an owner that is known to be gone, at once; returns the number of rows."""

    def dead_letters(
        self,
        *,
        tenant: str | None = None,
        batch_id: str | None = None,
        after: tuple[str, int] | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """A page of dead letters in order of batches and lines, after that of ``(batch id, line)``."""

    def redrive(
        self,
        batch_id: str,
        lines: Sequence[int] | None,
        *,
        now_utc: float,
        new_batch_id: str,
        window_s: float,
    ) -> Redriven:
        """Try dead letters again with all their attempts; ``lines=None`` means all of the batch.

        While the batch is in progress they are rows of it again. When it has ended its files stand as they are, and
        the rows go into a new batch ``new_batch_id`` with the same input file, in progress at once.

        Raises:
            NotFound: no such batch or none of the lines is a dead letter.
            Conflict: the batch is about to end (try again later), or its input file is deleted.
        """

    def discard(self, batch_id: str, lines: Sequence[int] | None) -> int:
        """Take dead letters off the list for good; they keep their place in the error file. Returns how many.

        Raises ``NotFound`` and ``Conflict`` as ``redrive`` does.
        """


class JobStore(FileStore, BatchStore, RowStore, Protocol):
    """The whole store."""

    @property
    def wake_fd(self) -> int | None:
        """Readable when another process changed something (``drain_wakeups`` says what); ``None``: nobody else can."""

    def utc(self) -> float | None:
        """The one clock of all who share the store, seconds since 1970; ``None``: that of this machine."""

    def drain_wakeups(self) -> frozenset[str]:
        """Ids of batches that other processes created, cancelled, returned rows of or left to be assembled."""

    def sweep(self, *, ended_before_utc: float, limit: int = 10_000) -> int:
        """One bounded step of housekeeping; call it again while it returns more than 0.

        Drops rows and answers of ended batches (dead letters stay), forgets batches that ended before
        ``ended_before_utc`` with their dead letters, and gives space back.
        """

    def size_bytes(self) -> int:
        """Space that the store uses."""

    def close(self) -> None:
        """Close cleanly. Leases and claims stay: release them first."""
