"""Short ways to files, batches and rows for tests of job stores and of what is built on them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tidegate.stores import (
    Answer,
    Batch,
    Claim,
    FinalRecord,
    Finish,
    JobStore,
    LeasedRow,
    NewBatch,
    NewRow,
    RowState,
    StoredFile,
)

NOW = 1_000_000.0
"""The time at which a test's story begins."""
WINDOW_S = 86_400.0
LEASE_S = 60.0
OWNER = "worker-1"
_numbers = itertools.count(1000)


def a_file(file_id: str = "file-in", *, tenant: str = "acme", purpose: str = "batch", at: float = NOW) -> StoredFile:
    """A listed file."""
    return StoredFile(id=file_id, tenant=tenant, purpose=purpose, name="in.jsonl", bytes=300, created_at_utc=at)


def a_batch(
    batch_id: str = "batch-1", *, tenant: str = "acme", file_id: str = "file-in", window_s: float = WINDOW_S
) -> NewBatch:
    """A batch to create."""
    return NewBatch(
        id=batch_id,
        tenant=tenant,
        endpoint="/v1/chat/completions",
        input_file_id=file_id,
        window="24h",
        band="p2",
        created_at_utc=NOW,
        expires_at_utc=NOW + window_s,
    )


def some_rows(count: int, *, first: int = 1) -> list[NewRow]:
    """Rows on consecutive lines, 100 bytes each."""
    return [NewRow(line, f"request-{line}", (line - 1) * 100, 100) for line in range(first, first + count)]


def created(store: JobStore, batch_id: str = "batch-1", *, tenant: str = "acme", window_s: float = WINDOW_S) -> Batch:
    """A batch that waits for validation, with an input file of its own."""
    file_id = f"input-of-{batch_id}"
    store.add_file(a_file(file_id, tenant=tenant))
    return store.create_batch(a_batch(batch_id, tenant=tenant, file_id=file_id, window_s=window_s))


def validating(store: JobStore) -> Claim:
    """The claim on the batch that waits for validation."""
    claim = store.claim_validation(OWNER, now_utc=NOW, until_utc=NOW + LEASE_S)
    assert claim is not None
    return claim


def started(
    store: JobStore,
    rows: int | Sequence[NewRow],
    batch_id: str = "batch-1",
    *,
    tenant: str = "acme",
    window_s: float = WINDOW_S,
) -> Batch:
    """A batch in progress."""
    created(store, batch_id, tenant=tenant, window_s=window_s)
    claim = validating(store)
    lines = some_rows(rows) if isinstance(rows, int) else rows
    if lines:
        store.add_rows(claim, lines, next_line=lines[-1].line + 1, next_offset=lines[-1].offset + lines[-1].length)
    return store.start_batch(claim, now_utc=NOW)


def leased(
    store: JobStore, count: int, batch_id: str = "batch-1", *, now: float = NOW, owner: str = OWNER
) -> list[LeasedRow]:
    """Rows under a lease of a minute."""
    return store.lease(batch_id, count, owner=owner, now_utc=now, until_utc=now + LEASE_S)


def answered(row: LeasedRow, *, state: RowState = RowState.COMPLETED) -> Finish:
    """A final verdict whose body names the row."""
    return Finish(row, state, Answer(status=200, request_id=f"req-{row.line}", body=b'{"line":%d}' % row.line))


def assembling(store: JobStore, *, now: float = NOW, owner: str = OWNER, names: str = "1") -> Claim | None:
    """The claim on a batch whose files are to be written."""
    file_ids = (f"out-{names}", f"err-{names}")
    return store.claim_assembly(owner, now_utc=now, until_utc=now + LEASE_S, file_ids=file_ids)


def ended(store: JobStore, *, now: float = NOW) -> tuple[Batch, list[FinalRecord]]:
    """Assemble the batch that waits for it; returns how it ended, and its records."""
    claim = assembling(store, now=now, names=f"{next(_numbers)}")
    assert claim is not None
    records = list(store.records(claim))
    tenant = claim.batch.tenant
    output = a_file(claim.output_file_id, tenant=tenant, purpose="batch_output", at=now)
    errors = a_file(claim.error_file_id, tenant=tenant, purpose="batch_output", at=now)
    return store.finish_batch(claim, output=output, errors=errors, now_utc=now), records
