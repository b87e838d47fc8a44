"""Open the log: whoever writes an event, by structlog or by the standard library, writes into its one stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from datetime import datetime
from typing import Any

import structlog

from tidegate.telemetry.log import Form, Log, Sink
from tidegate.telemetry.stream import standard_error


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
    log = Log(sink or standard_error(), form=form, level=level, utc_now=utc_now)

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
