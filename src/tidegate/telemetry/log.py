"""Structured logs: one line per finished request, and events of the gateway itself. No prompt text, no keys.

A request line is a fixed struct rendered by msgspec and written in batches, because a logger's chain of processors
(13 µs a line) would cost more than the scheduling of the request. Rare events (warnings, faults, starts) go through
structlog into the same stream, so both stay in order and have the same names.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

import msgspec
import structlog

EVERY_S = 0.1
MOST_BYTES = 64 * 1024
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Form(StrEnum):
    """How lines look."""

    JSON = "json"
    CONSOLE = "console"


class Sink(Protocol):
    """Where bytes go: a binary file, ``sys.stderr.buffer``."""

    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> object: ...


class RequestLine(msgspec.Struct, omit_defaults=True, kw_only=True, tag_field="event", tag="request", gc=False):
    """What is written of one finished request. What is ``None`` is left out.

    Attributes:
        at_utc: end of the request.
        level: ``info``, or ``warning`` for what the person on duty should see.
        request_id: as answered in ``x-request-id``.
        status: HTTP status that the client got, 499 when it left.
        outcome: how the ticket ended.
        reason: row of the refusal table when it did not complete.
        queue_ms: wait for a seat, milliseconds.
        ttft_ms: from arrival to the first byte of the answer, milliseconds.
        total_ms: from arrival to the end, milliseconds.
        row: for a row of a batch, its batch and line: ``batch_0f3a.17``.
    """

    at_utc: datetime
    level: str
    request_id: str
    status: int
    outcome: str
    reason: str | None = None
    tenant: str | None = None
    band: str | None = None
    model: str | None = None
    backend: str | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    row: str | None = None


class Log:
    """Collects lines and writes them every ``EVERY_S`` seconds or ``MOST_BYTES``, warnings at once.

    The write itself blocks when the reader of the stream does not keep up; whoever reads it must.

    Args:
        sink: where the lines go.
        form: JSON objects or lines for people.
        level: the least level that is written.
    """

    def __init__(self, sink: Sink, *, form: Form = Form.JSON, level: str = "info") -> None:
        if level not in LEVELS:
            raise ValueError(f"expected a log level of {', '.join(LEVELS)}, got {level!r}")
        self.least = LEVELS[level]
        self.form = form
        self._sink = sink
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def request(self, line: RequestLine) -> None:
        """Write the line of one finished request."""
        if LEVELS[line.level] < self.least:
            return
        if self.form is Form.JSON:
            self._put(self._encoder.encode(line))
        else:
            self.event(msgspec.structs.asdict(line) | {"event": "request"})

    def event(self, fields: MutableMapping[str, Any]) -> None:
        """Write one event: a mapping with ``level``, ``event`` and what belongs to it."""
        rank = LEVELS.get(fields.get("level", "info"), 20)
        if rank < self.least:
            return
        self._put(self._encoder.encode(fields) if self.form is Form.JSON else self._for_people(fields))
        if rank >= LEVELS["warning"]:
            self.flush()

    def flush(self) -> None:
        """Write out what was collected."""
        if self._buffer:
            self._sink.write(bytes(self._buffer))
            self._sink.flush()
            self._buffer.clear()

    def close(self) -> None:
        """Write the rest and stop the timer. The sink stays open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.flush()

    def _put(self, line: bytes) -> None:
        buffer = self._buffer
        buffer += line
        buffer += b"\n"
        if len(buffer) >= MOST_BYTES:
            self.flush()
        elif self._timer is None:
            self._flush_later()

    def _flush_later(self) -> None:
        try:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._on_timer)
        except RuntimeError:  # before the loop runs or after it ended
            self.flush()

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    def _for_people(self, fields: MutableMapping[str, Any]) -> bytes:
        rest = dict(fields)
        at, level, event = rest.pop("at_utc", None), rest.pop("level", "info"), rest.pop("event", "")
        trace = rest.pop("exception", None)
        clock = at.strftime("%H:%M:%S.%f")[:-3] if isinstance(at, datetime) else "-"
        pairs = " ".join(f"{key}={self._bare(value)}" for key, value in rest.items() if value is not None)
        line = f"{clock} {level:<8} {event} {pairs}"
        return (line if trace is None else f"{line}\n{trace}").rstrip().encode()

    def _bare(self, value: object) -> str:
        text = self._encoder.encode(value).decode()  # escapes line breaks: one event cannot pretend to be two
        return text[1:-1] if text.startswith('"') and " " not in text else text


class _Logger:
    """What structlog calls at the end of its processors: the event is already written."""

    def __init__(self, *_name: object) -> None: ...

    def msg(self, *_nothing: object) -> None: ...

    debug = info = warning = error = critical = exception = msg


class _Bridge(logging.Handler):
    """Brings lines of libraries that use the standard logging into the same stream."""

    def __init__(self, log: Log, utc_now: Callable[[], datetime]) -> None:
        super().__init__()
        self._log = log
        self._utc_now = utc_now

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {
            "at_utc": self._utc_now(),
            "level": record.levelname.lower(),
            "event": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)
        self._log.event(fields)


def open_log(
    utc_now: Callable[[], datetime], *, form: Form = Form.JSON, level: str = "info", sink: Sink | None = None
) -> Log:
    """Send structlog's events, the standard library's and the request lines to one stream.

    Args:
        utc_now: wall-clock time in UTC.
        form: JSON objects or lines for people.
        level: the least level that is written, ``debug`` to ``critical``.
        sink: where to; standard error if absent.

    Raises:
        ValueError: unknown level.
    """
    log = Log(sink or sys.stderr.buffer, form=form, level=level)

    def write(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> str:
        log.event({"at_utc": utc_now(), **fields})
        return ""

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,  # without local variables: they may hold prompts or keys
            write,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(log.least),
        logger_factory=_Logger,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Bridge(log, utc_now)]
    root.setLevel(log.least)
    return log
