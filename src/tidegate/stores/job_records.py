"""What the job store keeps: files, batches and rows, as plain values.

Times are wall-clock seconds since the epoch, in UTC, named ``..._at_utc``. A *line* is the number of a line in the
input file, counted from 1: it is the identity of a row. The bytes of files are not in the store; a file's id is its
name on disk, and no name that a client chose ever becomes part of a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

LINE_MAX = 2**32 - 1


class BatchState(StrEnum):
    """The eight states of the OpenAI Batch API."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Nothing about the batch changes any more."""
        return self in _ENDED


_ENDED = frozenset({BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED})


class RowState(IntEnum):
    """Where a row is. The numbers are stored."""

    READY = 0
    LEASED = 1
    COMPLETED = 2
    FAILED = 3
    DEAD = 4

    @property
    def final(self) -> bool:
        """The row has its one record. A dead letter has one as well, but may still be re-driven."""
        return self >= RowState.COMPLETED


class RecordKind(StrEnum):
    """Which record a row stands with in the files of an ended batch."""

    COMPLETED = "completed"  # output file
    FAILED = "failed"  # error file, like the rest
    DEAD = "dead"
    CANCELLED = "batch_cancelled"
    EXPIRED = "batch_expired"


class Order(StrEnum):
    """Order of a listing by creation."""

    NEWEST_FIRST = "desc"
    OLDEST_FIRST = "asc"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a tenant. ``bytes`` is its size; ``name`` is what the client called it, for display only."""

    id: str
    tenant: str
    purpose: str
    name: str
    bytes: int
    created_at_utc: float
    expires_at_utc: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFault:
    """Why a batch failed validation, as in ``errors.data`` of the API."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """What a batch is created from. ``window`` is the client's ``completion_window``, ``expires_at_utc`` its end."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    window: str
    band: str
    created_at_utc: float
    expires_at_utc: float
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch as it stands.

    ``completed + failed <= total``, and neither ever gets smaller. ``dead`` counts the dead letters of a batch in
    progress; they become ``failed`` when the batch leaves that state, because until then they can be re-driven.
    ``total`` is 0 until validation ends. Rows that were cancelled or expired are in neither count.
    """

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    window: str
    band: str
    metadata: Mapping[str, str]
    state: BatchState
    total: int
    completed: int
    failed: int
    dead: int
    errors: tuple[BatchFault, ...]
    output_file_id: str | None
    error_file_id: str | None
    redrive_of: str | None
    created_at_utc: float
    expires_at_utc: float
    in_progress_at_utc: float | None
    finalizing_at_utc: float | None
    cancelling_at_utc: float | None
    ended_at_utc: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What goes on: batches that have not ended, oldest first, how many there are, how many dead letters.

    Both counts stop at ``COUNTED``.
    """

    batches: tuple[Batch, ...]
    unended: int
    dead: int


COUNTED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to validate or assemble one batch, until it is lost by time.

    ``next_line`` and ``next_offset`` say where an import that was cut short goes on. ``output_file_id`` and
    ``error_file_id`` are planned once for a batch, so that an assembly that is repeated writes the same names.
    """

    batch: Batch
    token: int
    next_line: int = 1
    next_offset: int = 0
    output_file_id: str = ""
    error_file_id: str = ""


@dataclass(frozen=True, slots=True)
class NewRow:
    """One valid line of an input file: where its bytes are, and what the client calls it.

    A ``custom_id`` is text that UTF-8 can hold, without NUL; stores raise ``ValueError`` for others.
    """

    line: int
    custom_id: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A ``custom_id`` on ``line`` that was used on ``first_line`` already."""

    custom_id: str
    first_line: int
    line: int


@dataclass(frozen=True, slots=True)
class LeasedRow:
    """A row that the holder of ``token`` may send. ``attempts`` and ``returns`` happened before this lease."""

    batch_id: str
    line: int
    token: int
    custom_id: str
    offset: int
    length: int
    attempts: int
    returns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an upstream, or we, said about a row: a response (``status``, ``body``), or an error of our own (``code``).

    ``body`` is stored as it is; it is the caller's part to make it one line.
    """

    status: int | None = None
    request_id: str | None = None
    body: bytes = b""
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The row has its final answer: ``COMPLETED``, or ``FAILED`` for a permanent error."""

    row: LeasedRow
    state: RowState
    answer: Answer


@dataclass(frozen=True, slots=True)
class Bury:
    """The row used its last attempt: it becomes a dead letter with its last error."""

    row: LeasedRow
    answer: Answer


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The row was not answered and uses no attempt (429, 503, no connection, refused by us)."""

    row: LeasedRow
    not_before_utc: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The row failed, used an attempt, and has more of them."""

    row: LeasedRow
    not_before_utc: float
    error: str | None = None


Verdict = Finish | Bury | GiveBack | Retry


@dataclass(frozen=True, slots=True)
class Settled:
    """Outcome of a group of verdicts. ``stale`` ones had lost their lease, and changed nothing."""

    accepted: int
    stale: tuple[LeasedRow, ...]
    left: tuple[str, ...]
    """Ids of the batches whose last open row this was: they wait to be assembled now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWork:
    """A batch in progress, as the pump sees it.

    ``fresh`` rows were never leased, ``due`` ones came back and may go again now; they are counted up to 10,000.
    """

    batch_id: str
    tenant: str
    band: str
    endpoint: str
    input_file_id: str
    created_at_utc: float
    expires_at_utc: float
    fresh: int
    due: int
    leased: int
    next_due_at_utc: float | None
    """When the earliest row that is not yet due becomes so; ``None`` when none waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRecord:
    """The one record of a row of a batch that is being assembled. ``answer`` is empty for cancelled and expired."""

    line: int
    custom_id: str
    kind: RecordKind
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A row that used up its attempts."""

    batch_id: str
    line: int
    tenant: str
    custom_id: str
    attempts: int
    died_at_utc: float
    answer: Answer


@dataclass(frozen=True, slots=True)
class Redriven:
    """``rows`` dead letters go again, as rows of ``batch_id``: their own batch, or a new one when that had ended."""

    batch_id: str
    rows: int
