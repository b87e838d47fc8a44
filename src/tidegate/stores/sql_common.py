"""What the parts of the SQL job store share: how records are spelt, and how a batch is locked."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final

from tidegate.stores.database import Database, Record
from tidegate.stores.errors import Conflict, NotFound
from tidegate.stores.job_records import Answer, Batch, BatchFault, BatchState, Claim

LINE_BITS: Final = 32
LINE_MASK: Final = (1 << LINE_BITS) - 1

BATCH_COLUMNS: Final = (
    "id, tenant, endpoint, input_file_id, completion_window, band, metadata, state, total, completed, failed, dead, "
    "errors, output_file_id, error_file_id, redrive_of, created_at, expires_at, in_progress_at, finalizing_at, "
    "cancelling_at, ended_at"
)
ANSWER_COLUMNS: Final = "status, request_id, code, message, body"
# Each list stands in SQL as it is: none of it comes from outside.
OPEN_STATES: Final = "('validating', 'in_progress', 'finalizing', 'cancelling')"
ASSEMBLED_STATES: Final = "('finalizing', 'cancelling')"


class SqlPart:
    """A part of the store, on a database."""

    def __init__(self, database: Database) -> None:
        self._db = database


def row_id(number: int, line: int) -> int:
    """The primary key of a row: batches are stretches of the table, lines stand in order within them."""
    return number << LINE_BITS | line


def line_of(identity: int) -> int:
    """The line of a row's primary key."""
    return identity & LINE_MASK


def new_token() -> int:
    """A number that no other lease or claim has: 62 random bits need no round trip and no table."""
    return secrets.randbits(62) + 1


def clean(text: str | None) -> str | None:
    """Text that every database can hold, to be shown or looked for: UTF-8 without NUL."""
    if text is None:
        return None
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def batch_of(record: Record) -> Batch:
    """A batch from its ``BATCH_COLUMNS``."""
    return Batch(
        id=record[0],
        tenant=record[1],
        endpoint=record[2],
        input_file_id=record[3],
        window=record[4],
        band=record[5],
        metadata=json.loads(record[6]),
        state=BatchState(record[7]),
        total=record[8],
        completed=record[9],
        failed=record[10],
        dead=record[11],
        errors=tuple(BatchFault(**fault) for fault in json.loads(record[12])),
        output_file_id=record[13],
        error_file_id=record[14],
        redrive_of=record[15],
        created_at_utc=record[16],
        expires_at_utc=record[17],
        in_progress_at_utc=record[18],
        finalizing_at_utc=record[19],
        cancelling_at_utc=record[20],
        ended_at_utc=record[21],
    )


def answer_values(answer: Answer) -> tuple[Any, ...]:
    """An answer as its ``ANSWER_COLUMNS``."""
    return answer.status, clean(answer.request_id), answer.code, clean(answer.message), answer.body


def answer_of(record: Sequence[Any]) -> Answer:
    """An answer from its ``ANSWER_COLUMNS``; all empty where there is no such record."""
    status, request_id, code, message, body = record
    return Answer(status=status, request_id=request_id, code=code, message=message, body=bytes(body or b""))


def find_batch(database: Database, batch_id: str, *, columns: str, tenant: str | None = None, lock: str = "") -> Record:
    """Columns of one batch, by its id. ``lock`` is the database's ``for_update`` or nothing.

    Whoever changes rows, leases or counts of a batch locks the batch first: that is the one order of locks.

    Raises:
        NotFound: no such batch, or it is another tenant's.
    """
    found = database.execute(f"SELECT tenant, {columns} FROM batches WHERE id = ?{lock}", (clean(batch_id),))
    if not found or tenant not in (None, found[0][0]):
        raise NotFound(f"there is no batch {batch_id!r}")
    return found[0][1:]


def read_batch(database: Database, batch_id: str, *, tenant: str | None = None) -> Batch:
    """One batch as it stands."""
    return batch_of(find_batch(database, batch_id, columns=BATCH_COLUMNS, tenant=tenant))


def lock_claim(database: Database, claim: Claim) -> tuple[int, BatchState]:
    """The number and state of the claimed batch, which stays locked until the transaction ends.

    Raises:
        Conflict: somebody else has taken the batch since.
    """
    columns = "no, state, claim_token"
    number, state, token = find_batch(database, claim.batch.id, columns=columns, lock=database.for_update)
    if token != claim.token:
        raise Conflict(f"the claim on batch {claim.batch.id!r} is lost")
    return number, BatchState(state)


def after_number(database: Database, table: str, identity: str | None, tenant: str | None) -> int | None:
    """The number behind the ``after`` of a listing.

    Raises:
        NotFound: there is nothing of this id for this tenant.
    """
    if identity is None:
        return None
    found = database.execute(f"SELECT no, tenant FROM {table} WHERE id = ?", (clean(identity),))
    if not found or tenant not in (None, found[0][1]):
        raise NotFound(f"after: there is no {identity!r}")
    return int(found[0][0])


def page(
    database: Database,
    table: str,
    columns: str,
    *,
    wanted: dict[str, Any],
    after: int | None,
    limit: int,
    newest_first: bool,
) -> list[Record]:
    """A page of a table in the order of its numbers. ``wanted`` are equalities; those with ``None`` do not apply."""
    wanted = {name: value for name, value in wanted.items() if value is not None}
    conditions = [f"{name} = ?" for name in wanted]
    parameters = list(wanted.values())
    if after is not None:
        conditions.append("no < ?" if newest_first else "no > ?")
        parameters.append(after)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = "DESC" if newest_first else "ASC"
    sql = f"SELECT {columns} FROM {table}{where} ORDER BY no {order} LIMIT ?"
    return database.execute(sql, [*parameters, limit])
