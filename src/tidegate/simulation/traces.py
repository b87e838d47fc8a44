"""Reads request traces: CSV, plain or gzip, one request a row, arrival times and lengths only.

Columns: ``prompt_tokens`` and ``output_tokens``; optional ``arrival_ms`` (after the first request; rows without it are
an offline batch that is there from the start), ``tenant``, ``band``, and ``prefix_blocks_512``, the prompt's chain of
512-token block numbers written as runs (``5 9-12`` is 5, 9, 10, 11, 12).
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tidegate.core import TidegateError

PREFIX_UNIT = 512
"""Tokens per block number of ``prefix_blocks_512``."""

MOST_BLOCKS = 100_000
"""Of one prompt: fifty million tokens."""


class TraceError(TidegateError, ValueError):
    """A trace that cannot be read; the message says the line, what was expected and what came."""


@dataclass(slots=True, frozen=True)
class TraceRow:
    """One request of a trace.

    Attributes:
        at: arrival, seconds after the first request; 0 where the trace has no times.
        prompt_tokens: at least 1.
        output_tokens: at least 1.
        tenant: anonymous label, empty without one.
        band: name of a band, empty without one.
        prefix: numbers of the prompt's blocks of ``PREFIX_UNIT`` tokens.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    band: str = ""
    prefix: tuple[int, ...] = ()


def read_trace(source: Path | str | IO[Any]) -> Iterator[TraceRow]:
    """Yield the rows of a trace in order of arrival.

    Args:
        source: a path, or an open file (binary or text); gzip is recognised by its first bytes.

    Raises:
        TraceError: a missing column, a number that is none, an arrival before the previous one, or a file that is no
            text, or damaged.
        OSError: the file cannot be read.
    """
    if isinstance(source, Path | str):
        with Path(source).open("rb") as file, closing(_lines(file)) as lines:
            yield from _readable(lines, str(source))
    else:
        with closing(_lines(source)) as lines:
            yield from _readable(lines, str(getattr(source, "name", "trace")))


def _readable(lines: Iterable[str], name: str) -> Iterator[TraceRow]:
    try:
        yield from _rows(lines, name)
    except (UnicodeDecodeError, csv.Error, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise TraceError(f"{name}: expected CSV in UTF-8, plain or in gzip, got bytes that are not: {error}") from None


def _lines(file: Any) -> Generator[str]:
    """The lines of an open file, which stays open."""
    if isinstance(file.read(0), str):
        yield from file
        return
    buffered = file if hasattr(file, "peek") else io.BufferedReader(file)
    data = gzip.GzipFile(fileobj=buffered) if buffered.peek(2)[:2] == b"\x1f\x8b" else buffered
    text = io.TextIOWrapper(data, encoding="utf-8-sig", newline="")
    try:
        for line in text:  # noqa: UP028 - it would close the file when this is closed early
            yield line
    finally:
        text.detach()
        if buffered is not file:
            buffered.detach()


def _rows(lines: Iterable[str], name: str) -> Iterator[TraceRow]:
    reader = csv.DictReader(lines)
    columns = reader.fieldnames or []
    for needed in ("prompt_tokens", "output_tokens"):
        if needed not in columns:
            raise TraceError(f"{name}: expected a column {needed!r}, got {', '.join(columns) or 'an empty file'}")
    last = 0.0
    for line, fields in enumerate(reader, 2):
        try:
            row = _row(fields)
        except ValueError as error:
            raise TraceError(f"{name}, line {line}: {error}") from None
        if row.at < last:
            raise TraceError(f"{name}, line {line}: expected arrivals in order, got {row.at} s after {last} s")
        last = row.at
        yield row


def _row(fields: dict[str, str]) -> TraceRow:
    return TraceRow(
        at=_number(fields, "arrival_ms") / 1000,
        prompt_tokens=max(1, int(_number(fields, "prompt_tokens", needed=True))),
        output_tokens=max(1, int(_number(fields, "output_tokens", needed=True))),
        tenant=fields.get("tenant") or "",
        band=fields.get("band") or "",
        prefix=tuple(_runs(fields.get("prefix_blocks_512") or "")),
    )


def _number(fields: dict[str, str], name: str, *, needed: bool = False) -> float:
    text = fields.get(name) or ""
    if not text and not needed:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}: expected a number, got {text!r}") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}: expected a number of at least 0, got {text}")
    return value


def _runs(text: str) -> Iterator[int]:
    room = MOST_BLOCKS
    for part in text.split():
        first, dash, last = part.partition("-")
        numbers = first.isdecimal() and (last.isdecimal() or not dash)
        if not numbers or len(part) > 40 or int(last or first) < int(first):
            raise ValueError(f"prefix_blocks_512: expected numbers and runs like 9-12, got {part[:60]!r}")
        room -= int(last or first) + 1 - int(first)
        if room < 0:  # a slip of the pen must not fill the memory
            raise ValueError(f"prefix_blocks_512: expected at most {MOST_BLOCKS} blocks, got more with {part!r}")
        yield from range(int(first), int(last or first) + 1)
