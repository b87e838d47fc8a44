"""The worker's long tasks: validating a batch and writing its files. Each is a generator that yields every few ms.

Between two steps the worker answers questions and commits results. A step that the store cannot do now is repeated; a
claim that is lost ends the task, and whoever has the claim goes on from what is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from enum import Enum, auto
from typing import BinaryIO, Final, TypeVar

from tidegate.jobs.folder import Folder
from tidegate.jobs.lines import read_line
from tidegate.jobs.messages import Setup
from tidegate.jobs.records import is_output, line_of
from tidegate.stores import Batch, BatchFault, Claim, JobStore, NewRow, StoredFile, Unavailable

T = TypeVar("T")

LINES_A_STEP: Final = 1000
RECORDS_A_STEP: Final = 500
MOST_FAULTS: Final = 100


class Step(Enum):
    """What a task says when it yields."""

    GO_ON = auto()
    LATER = auto()  # the store or the disk cannot do it now


Task = Generator[Step, None, Batch]


def patiently(call: Callable[[], T]) -> Generator[Step, None, T]:
    """Repeat a call to the store until it can be done."""
    while True:
        try:
            return call()
        except Unavailable:
            yield Step.LATER


def validate(store: JobStore, folder: Folder, claim: Claim, setup: Setup, utc: Callable[[], float]) -> Task:
    """Import the lines of a batch's file, or say what is wrong with them.

    Raises:
        Conflict: the claim is lost.
    """
    try:
        source = folder.place(claim.batch.input_file_id).open("rb")
    except OSError as error:
        fault = BatchFault(code="file_unreadable", message=f"The input file cannot be read: {error.strerror}.")
        return (yield from patiently(lambda: store.fail_batch(claim, [fault], now_utc=utc())))
    with source:
        faults = yield from _import(store, claim, setup, source)
    if not faults:
        found = yield from patiently(lambda: store.find_duplicates(claim, limit=MOST_FAULTS))
        faults = [
            BatchFault(
                code="duplicate_custom_id",
                message=f"The custom_id {each.custom_id[:80]!r} is used on line {each.first_line} already.",
                line=each.line,
                param="custom_id",
            )
            for each in found
        ]
    if faults:
        return (yield from patiently(lambda: store.fail_batch(claim, faults, now_utc=utc())))
    return (yield from patiently(lambda: store.start_batch(claim, now_utc=utc())))


def _import(store: JobStore, claim: Claim, setup: Setup, source: BinaryIO) -> Generator[Step, None, list[BatchFault]]:
    """Read all lines. After the first fault nothing is imported any more, so that a repeated run finds it again."""
    line, offset = claim.next_line, claim.next_offset
    source.seek(offset)
    faults: list[BatchFault] = []
    rows: list[NewRow] = []
    some = line > 1
    while data := source.readline(setup.max_line + 1):
        if line > setup.max_lines:
            message = f"Expected at most {setup.max_lines} lines (jobs.max_lines)."
            faults.append(BatchFault(code="too_many_lines", message=message, line=line))
            break
        if len(data) > setup.max_line:
            message = f"Expected a line of at most {setup.max_line} bytes (gateway.max_body)."
            faults.append(BatchFault(code="line_too_long", message=message, line=line))
            break
        found = read_line(data, line=line, offset=offset, endpoint=claim.batch.endpoint)
        some = some or found is not None
        if isinstance(found, BatchFault):
            faults.append(found)
            if len(faults) == MOST_FAULTS:
                break
        elif found is not None:
            rows.append(found)
        line += 1
        offset += len(data)
        if line % LINES_A_STEP == 0:
            if not faults:
                yield from _add(store, claim, rows, line, offset)
            rows = []
            yield Step.GO_ON
    if not some:
        faults.append(BatchFault(code="empty_file", message="The input file has no request."))
    if rows and not faults:
        yield from _add(store, claim, rows, line, offset)
    return faults


def _add(store: JobStore, claim: Claim, rows: list[NewRow], line: int, offset: int) -> Generator[Step, None, None]:
    yield from patiently(lambda: store.add_rows(claim, rows, next_line=line, next_offset=offset))


def assemble(store: JobStore, folder: Folder, claim: Claim, setup: Setup, utc: Callable[[], float]) -> Task:
    """Write the files of a batch and end it.

    Raises:
        Conflict: the claim is lost.
    """
    while True:
        try:
            sizes = yield from _write(store, folder, claim)
            break
        except (OSError, Unavailable):  # a full disk, or the store is away: from the beginning, later
            yield Step.LATER
    now_utc = utc()
    files = [
        _listed(claim, file_id, size, kind, now_utc, setup.keep_s) if size else None
        for file_id, size, kind in zip(_ids(claim), sizes, ("output", "error"), strict=True)
    ]
    return (yield from patiently(lambda: store.finish_batch(claim, output=files[0], errors=files[1], now_utc=now_utc)))


def _write(store: JobStore, folder: Folder, claim: Claim) -> Generator[Step, None, list[int]]:
    with ExitStack() as stack:
        output, errors = (stack.enter_context(folder.create(file_id)) for file_id in _ids(claim))
        for count, record in enumerate(store.records(claim), 1):
            (output if is_output(record) else errors).write(line_of(claim.batch.id, record))
            if count % RECORDS_A_STEP == 0:
                yield Step.GO_ON
    sizes = []
    for file_id in _ids(claim):
        size = folder.keep(file_id)
        if not size:
            folder.drop(file_id)
        sizes.append(size)
        yield Step.GO_ON
    return sizes


def _ids(claim: Claim) -> tuple[str, str]:
    return claim.output_file_id, claim.error_file_id


def _listed(claim: Claim, file_id: str, size: int, kind: str, now_utc: float, keep_s: float) -> StoredFile:
    return StoredFile(
        id=file_id,
        tenant=claim.batch.tenant,
        purpose="batch_output",
        name=f"{claim.batch.id}_{kind}.jsonl",
        bytes=size,
        created_at_utc=now_utc,
        expires_at_utc=now_utc + keep_s,
    )
