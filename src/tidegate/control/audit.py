"""What was changed while the gateway ran: who, when, from, to. Newest first, the last ``KEPT`` in memory.

With a file, every record is also appended to it as one JSON line before the change counts as done. A file that cannot
be written costs the record its durability and not the operator his change: in a sales peak the switch must work even
though the disk is full. The log says so.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import structlog

KEPT = 1000

log = structlog.get_logger("tidegate.control")


class Record(msgspec.Struct, frozen=True):
    """One change.

    Attributes:
        number: counts from 1 since the start.
        at_utc: when.
        who: the operator's name; ``local`` for a program on this machine, ``timer``, ``signal`` for those.
        action: ``mode``, ``policy``, ``backends``, ``reload``, ``drain`` or ``cancel``.
        changes: what differs, each with its place, the value before and the value after; never a secret.
    """

    number: int
    at_utc: datetime
    who: str
    action: str
    changes: list[dict[str, Any]]


class Audit:
    """The list of changes.

    Args:
        utc_now: the wall clock.
        path: file to append to; made readable by its owner only.
    """

    def __init__(self, utc_now: Callable[[], datetime], path: Path | None = None) -> None:
        self._utc_now = utc_now
        self._path = path
        self._records: deque[Record] = deque(maxlen=KEPT)
        self._count = 0

    def add(self, who: str, action: str, changes: list[tuple[str, Any, Any]]) -> Record:
        """Note a change: (place, before, after) each."""
        self._count += 1
        rows = [{"what": what, "from": before, "to": after} for what, before, after in changes]
        record = Record(self._count, self._utc_now(), who, action, rows)
        self._records.append(record)
        log.info("control.changed", who=who, action=action, changes=rows)
        if self._path is not None:
            self._append(self._path, record)
        return record

    def newest(self, limit: int) -> list[Record]:
        """Return the last records, newest first."""
        return list(islice(reversed(self._records), limit))

    def _append(self, path: Path, record: Record) -> None:
        line = msgspec.json.encode(record) + b"\n"
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            log.error("control.audit_lost", file=str(path), why=error.strerror, record=record.number)
