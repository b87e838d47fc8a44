"""Write every event the scheduler is told, so that a run can be replayed exactly.

One JSON array a line: ``[now, kind, [arguments]]``. The first line is the policy at the start, with kind
``policy``. Events are kept as they came (tickets never change) and turned into text a few at a time, away from
the call that brought them; at most ``EVERY_S`` of them are lost in a crash of the process, none in a fault of the
scheduler. A disk that takes no more ends the file, told in the log, and nothing else: no request fails for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import structlog

from tidegate.core import Policy

EVERY_S = 0.1
MOST = 512
"""Events held as objects; writing that many takes about a millisecond."""

log = structlog.get_logger("tidegate.runtime")


def _plain(value: Any) -> str:
    if isinstance(value, Fraction):
        return str(value)
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")


class EventLog:
    """An append-only file of events.

    Args:
        path: file to write; an old one is replaced. It holds ids, tenants and sizes of requests, no prompts.
        policy: the policy that the scheduler starts with.
    """

    def __init__(self, path: Path, policy: Policy) -> None:
        self._file = path.open("wb")
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        self._events: list[tuple[float, str, tuple[object, ...]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._events.append((0.0, "policy", (policy,)))
        self.flush()

    def append(self, now: float, kind: str, arguments: tuple[object, ...]) -> None:
        """Keep one event for writing."""
        if self._file.closed:
            return
        events = self._events
        events.append((now, kind, arguments))
        if len(events) >= MOST:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._on_timer)

    def flush(self) -> None:
        """Write out what is kept."""
        if self._events and not self._file.closed:
            lines = self._encoder.encode_lines(self._events)
            self._events.clear()
            try:
                self._file.write(lines)
                self._file.flush()
            except OSError as error:
                log.error("event_log.ended", file=self._file.name, why=error.strerror)
                with contextlib.suppress(OSError):
                    self._file.close()

    def close(self) -> None:
        """Write the rest and close the file."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()
