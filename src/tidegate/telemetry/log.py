"""Structured logs: one line per finished request, and events of the gateway itself. No prompt text, no keys.

A request line is a fixed struct rendered by msgspec and written in batches, because a logger's chain of processors
(13 µs a line) would cost more than the scheduling of the request. Rare events (warnings, faults, starts) go through
structlog into the same stream (``opening``), so both stay in order and have the same names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from tidegate.telemetry.request_line import RequestLine

EVERY_S: Final = 0.1
MOST_BYTES: Final = 64 * 1024
MOST_KEPT_BYTES: Final = 1024 * 1024
_NEWLINE: Final = 10
_INFO: Final = 20
LEVELS: Final = {"debug": 10, "info": _INFO, "warning": 30, "error": 40, "critical": 50}


class Form(StrEnum):
    """How lines look."""

    JSON = "json"
    CONSOLE = "console"


class Sink(Protocol):
    """Where bytes go: a binary file, or a ``Stream``, which may take a part of them."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> object: ...


class Log:
    """Collects lines and writes them every ``EVERY_S`` seconds or ``MOST_BYTES``, warnings at once.

    Where the sink takes nothing (a full disk, a reader that has stopped or is gone), lines wait for it, up to
    ``MOST_KEPT_BYTES``; beyond that the oldest are lost, and how many is told as ``log.lost`` once it takes more.

    Args:
        sink: where the lines go.
        form: JSON objects or lines for people.
        level: the least level that is written.
        utc_now: wall-clock time in UTC, for what the log itself has to say.

    Attributes:
        tells_requests: lines of requests are written; otherwise they need not be made.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        form: Form = Form.JSON,
        level: str = "info",
        utc_now: Callable[[], datetime] | None = None,
    ) -> None:
        if level not in LEVELS:
            raise ValueError(f"expected a log level of {', '.join(LEVELS)}, got {level!r}")
        self.least = LEVELS[level]
        self.tells_requests = self.least <= _INFO
        self._json = form is Form.JSON
        self._sink = sink
        self._encode: Callable[[object], bytes] = msgspec.json.Encoder(enc_hook=str).encode
        self._utc_now = utc_now
        self._fresh: Final[list[bytes]] = []  # lines that do not stand in the buffer yet
        self._buffer: Final = bytearray()
        self._size = 0  # of both, bytes
        self._stuck = self._torn = False  # the sink takes nothing; it has taken a part of the first line
        self._lost = 0
        self._timer: asyncio.TimerHandle | None = None

    def request(self, line: RequestLine) -> None:
        """Write the line of one finished request."""
        if self.least > _INFO and LEVELS[line.level] < self.least:
            return
        if self._json:
            self._put(self._encode(line))
        else:
            self.event(msgspec.structs.asdict(line) | {"event": "request"})

    def event(self, fields: MutableMapping[str, Any]) -> None:
        """Write one event: a mapping with ``level``, ``event`` and what belongs to it."""
        rank = LEVELS.get(fields.get("level", "info"), 20)
        if rank < self.least:
            return
        self._put(self._encode(fields) if self._json else self._for_people(fields))
        if rank >= LEVELS["warning"]:
            self.flush()

    def flush(self) -> None:
        """Write out what was collected, as far as the sink takes it. Never raises and never waits."""
        buffer = self._gather()
        if not buffer:
            return
        try:
            count = self._sink.write(bytes(buffer))
            self._sink.flush()
        except (OSError, ValueError):  # full, or gone
            count = 0
        if count:
            self._torn = buffer[count - 1] != _NEWLINE
            del buffer[:count]
            self._size = len(buffer)
        self._stuck = bool(buffer)
        if self._stuck:
            self._give_up_oldest()
            self._flush_later()
        elif self._lost:
            lost, self._lost = self._lost, 0
            at = {} if self._utc_now is None else {"at_utc": self._utc_now()}
            self.event({**at, "level": "warning", "event": "log.lost", "lines": lost})

    def close(self) -> None:
        """Write the rest, within a second, and stop the timer. The sink stays open."""
        self._end_timer()
        self.flush()
        wait = getattr(self._sink, "wait", None)
        for _ in range(10):
            if not self._buffer or wait is None:
                break
            wait(0.1)
            self.flush()
        self._end_timer()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _put(self, line: bytes) -> None:
        self._fresh.append(line)
        size = self._size = self._size + len(line) + 1
        if size >= MOST_BYTES:
            if not self._stuck:
                self.flush()
            elif size > MOST_KEPT_BYTES:
                self._give_up_oldest()
        elif self._timer is None:
            self._flush_later()

    def _gather(self) -> bytearray:
        """Bring the fresh lines into the buffer, all at once; another thread may add some meanwhile."""
        buffer, fresh = self._buffer, self._fresh
        count = len(fresh)
        if count:
            buffer += b"\n".join(fresh[:count]) + b"\n"
            del fresh[:count]
            self._size = len(buffer)
        return buffer

    def _flush_later(self) -> None:
        if self._timer is None:
            try:
                self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._on_timer)
            except RuntimeError:  # before the loop runs or after it ended
                if not self._stuck:
                    self.flush()

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    def _give_up_oldest(self) -> None:
        """Drop the oldest lines that nobody takes, half of what may be kept, but never a part of a line."""
        buffer = self._gather()
        if len(buffer) > MOST_KEPT_BYTES:
            begin = buffer.find(b"\n") + 1 if self._torn else 0
            end = buffer.find(b"\n", len(buffer) - MOST_KEPT_BYTES // 2) + 1
            self._lost += buffer.count(b"\n", begin, end)
            del buffer[begin:end]
            self._size = len(buffer)

    def _for_people(self, fields: MutableMapping[str, Any]) -> bytes:
        rest = dict(fields)
        at, level, event = rest.pop("at_utc", None), rest.pop("level", "info"), rest.pop("event", "")
        trace = rest.pop("exception", None)
        clock = at.strftime("%H:%M:%S.%f")[:-3] if isinstance(at, datetime) else "-"
        pairs = " ".join(f"{key}={self._bare(value)}" for key, value in rest.items() if value is not None)
        line = f"{clock} {level:<8} {event} {pairs}"
        return (line if trace is None else f"{line}\n{trace}").rstrip().encode()

    def _bare(self, value: object) -> str:
        text = self._encode(value).decode()  # escapes line breaks: one event cannot pretend to be two
        return text[1:-1] if text.startswith('"') and " " not in text else text
