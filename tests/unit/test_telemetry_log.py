from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import structlog

from tidegate.telemetry import Form, Log, RequestLine, open_log
from tidegate.testing import run_virtual

AT = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def line(**fields: object) -> RequestLine:
    plain: dict[str, object] = {"level": "info", "request_id": "r1", "status": 200, "outcome": "completed"}
    return RequestLine(at_utc=AT, **(plain | fields))  # type: ignore[arg-type]


def lines(sink: io.BytesIO) -> list[dict[str, object]]:
    return [json.loads(text) for text in sink.getvalue().splitlines()]


def test_a_request_is_one_json_object_without_what_is_unknown() -> None:
    sink = io.BytesIO()
    open_log(lambda: AT, sink=sink).request(line(tenant="shop", band="p0", queue_ms=1.5, output_tokens=0))
    assert lines(sink) == [
        {
            "event": "request",
            "at_utc": "2026-03-01T12:30:15.250000Z",
            "level": "info",
            "request_id": "r1",
            "status": 200,
            "outcome": "completed",
            "tenant": "shop",
            "band": "p0",
            "queue_ms": 1.5,
            "output_tokens": 0,
        }
    ]


def test_lines_are_written_in_batches_and_the_rest_at_the_end() -> None:
    async def story() -> None:
        sink = io.BytesIO()
        log = Log(sink)
        log.request(line())
        assert sink.getvalue() == b""
        await asyncio.sleep(0.11)
        assert len(lines(sink)) == 1
        for _ in range(2000):
            log.request(line())
        early = len(lines(sink))
        assert len(sink.getvalue()) > 64 * 1024 * 2
        assert early < 2001
        log.close()
        assert len(lines(sink)) == 2001

    run_virtual(story())


def test_warnings_are_written_at_once_and_in_order() -> None:
    async def story() -> None:
        sink = io.BytesIO()
        log = open_log(lambda: AT, sink=sink)
        log.request(line())
        structlog.get_logger("x").warning("lease.released_twice", lease=3)
        logging.getLogger("uvicorn.error").error("it said %s", "no")
        assert [(row["event"], row["level"]) for row in lines(sink)] == [
            ("request", "info"),
            ("lease.released_twice", "warning"),
            ("uvicorn.error", "error"),
        ]
        log.close()

    run_virtual(story())


def test_what_is_below_the_level_is_not_written() -> None:
    sink = io.BytesIO()
    log = open_log(lambda: AT, level="warning", sink=sink)
    assert not log.tells_requests
    log.request(line())
    structlog.get_logger().info("started")
    logging.getLogger("x").info("started")
    log.request(line(level="warning", status=502, outcome="failed", reason="upstream_error"))
    assert [row["event"] for row in lines(sink)] == ["request"]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        Log(io.BytesIO(), level="loud")


@pytest.mark.parametrize("form", list(Form))
def test_a_traceback_shows_no_local_values(form: Form) -> None:
    sink = io.BytesIO()
    open_log(lambda: AT, form=form, sink=sink)

    def fail(key: str) -> None:
        raise KeyError(len(key))

    try:
        fail("sk-very-secret")
    except KeyError:
        structlog.get_logger().exception("waiter.failed")
    text = sink.getvalue().decode()
    assert "KeyError: 14" in text
    assert "very-secret" not in text.replace('fail("sk-very-secret")', "").replace(r"fail(\"sk-very-secret\")", "")


def test_on_the_console_one_event_is_one_line_whatever_it_holds() -> None:
    sink = io.BytesIO()
    log = open_log(lambda: AT, form=Form.CONSOLE, sink=sink)
    log.request(line(model="evil\n12:30:15.250 info     request request_id=fake", queue_ms=1.25))
    text = sink.getvalue().decode()
    assert text.count("\n") == 1
    assert text.startswith("12:30:15.250 info     request request_id=r1 status=200 outcome=completed")
    assert text.endswith("queue_ms=1.25\n")
