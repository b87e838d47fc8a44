"""Spans of a request: which there are, how they hang together, and what they never hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tidegate.core import Lease, Outcome, Reason, Ticket, Turn
from tidegate.telemetry.otel import OtelTraces, otlp
from tidegate.telemetry.request_line import RequestLine
from tidegate.telemetry.traces import Trace
from tidegate.testing import ManualClock

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-2] + b"00"


class Stage:
    def __init__(self, sample: float = 1.0, chance: Callable[[], float] = lambda: 0.5) -> None:
        self.clock = ManualClock(100.0)
        self.memory = InMemorySpanExporter()
        self.traces = OtelTraces(
            self.memory, sample=sample, now=self.clock.now, utc_now=self.clock.utc_now, chance=chance
        )

    def spans(self) -> dict[str, list[ReadableSpan]]:
        self.traces.stop()
        found: dict[str, list[ReadableSpan]] = {}
        for span in sorted(self.memory.get_finished_spans(), key=lambda span: span.start_time or 0):
            found.setdefault(span.name, []).append(span)
        return found


@pytest.fixture
def stage() -> Stage:
    return Stage()


def a_lease(number: int = 1, backend: str = "b0") -> Lease:
    return Lease(number, Ticket("t", "m", 1, "shop"), backend, Turn.TURN, 1, 2.0, 102.0)


def a_line(**more: Any) -> RequestLine:
    fields: dict[str, Any] = {"status": 200, "outcome": "completed", "tenant": "shop", "band": "p1", "model": "m"}
    fields |= {"at_utc": datetime.now(UTC), "level": "info", "request_id": "req-1"}
    return RequestLine(**(fields | more))


def begun(stage: Stage, method: str, path: str, *headers: tuple[bytes, bytes]) -> Trace:
    trace = stage.traces.begin(method, path, list(headers))
    assert trace is not None
    return trace


def a_request(stage: Stage, *headers: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Wait 2 s, fail on one backend after 1 s, wait 1 s more, be answered in 3 s; returns the second call's headers."""
    trace = begun(stage, "POST", "/v1/chat/completions", *headers)
    trace.waits()
    stage.clock.advance(2)
    trace.dispatched(a_lease())
    trace.asked()
    trace.carried([])
    stage.clock.advance(1)
    trace.returned(None, None)
    trace.waits()
    stage.clock.advance(1)
    trace.dispatched(a_lease(2, "b1"))
    trace.asked()
    sent = trace.carried([(b"x-a", b"1"), *headers])
    stage.clock.advance(3)
    trace.returned(Outcome.COMPLETED, None)
    trace.end(a_line(ttft_ms=4500.0, input_tokens=7, output_tokens=9))
    return sent


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    begun = ManualClock(100.0).utc_now().timestamp()
    return round(span.start_time / 1e9 - begun, 3), round(span.end_time / 1e9 - begun, 3)


def test_a_request_is_a_server_span_with_its_waits_seats_and_calls(stage: Stage) -> None:
    a_request(stage)
    spans = stage.spans()
    (request,) = spans["POST /v1/chat/completions"]
    assert (request.kind, request.parent, seconds(request)) == (SpanKind.SERVER, None, (0, 7))
    assert [seconds(span) for span in spans["queue"]] == [(0, 2), (3, 4)]
    assert [seconds(span) for span in spans["dispatch"]] == [(2, 3), (4, 7)]
    assert [seconds(span) for span in spans["upstream"]] == [(2, 3), (4, 7)]
    assert {span.kind for span in spans["upstream"]} == {SpanKind.CLIENT}
    assert {span.parent and span.parent.span_id for span in spans["queue"] + spans["dispatch"]} == {
        request.get_span_context().span_id  # type: ignore[union-attr]
    }
    for upstream, dispatch in zip(spans["upstream"], spans["dispatch"], strict=True):
        assert upstream.parent == dispatch.get_span_context()
    assert [(span.attributes or {})["tidegate.backend"] for span in spans["dispatch"]] == ["b0", "b1"]
    attributes = dict(request.attributes or {})
    assert attributes["tidegate.band"] == "p1"
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (7, 9)
    (event,) = request.events
    assert (event.name, event.timestamp - (request.start_time or 0)) == ("first byte", 4_500_000_000)
    assert request.status.status_code is StatusCode.UNSET


def test_the_context_of_the_call_goes_upstream(stage: Stage) -> None:
    sent = a_request(stage, (b"traceparent", PARENT), (b"tracestate", b"vendor=1"))
    spans = stage.spans()
    (request,) = spans["POST /v1/chat/completions"]
    assert request.parent is not None
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == (
        PARENT[3:35].decode(),
        PARENT[36:52].decode(),
    )
    upstream = spans["upstream"][1].get_span_context()
    assert upstream is not None
    assert dict(sent) == {
        b"x-a": b"1",
        b"traceparent": f"00-{PARENT[3:35].decode()}-{upstream.span_id:016x}-01".encode(),
        b"tracestate": b"vendor=1",
    }
    assert [name for name, _ in sent].count(b"traceparent") == 1


def test_a_caller_decides_and_chance_for_the_others() -> None:
    stage = Stage(0.5, chance=lambda: 0.5)
    assert stage.traces.begin("POST", "/x", [(b"traceparent", UNSAMPLED)]) is None
    assert stage.traces.begin("POST", "/x", [(b"traceparent", PARENT)]) is not None
    assert stage.traces.begin("POST", "/x", []) is None
    assert Stage(0.51).traces.begin("POST", "/x", []) is not None
    assert Stage(0.0, chance=lambda: 0.0).traces.begin("POST", "/x", []) is None
    assert Stage(1.0, chance=lambda: 0.9999).traces.begin("POST", "/x", []) is not None


@pytest.mark.parametrize(
    "headers",
    [
        [(b"traceparent", b"nonsense")],
        [(b"traceparent", b"\xff" * 60)],
        [(b"traceparent", PARENT.replace(b"0af7", b"ZZZZ"))],
        [(b"traceparent", PARENT), (b"traceparent", UNSAMPLED)],
        [(b"traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
    ],
)
def test_a_context_that_is_none_begins_a_trace_of_our_own(stage: Stage, headers: list[tuple[bytes, bytes]]) -> None:
    sent = [value for name, value in a_request(stage, *headers) if name == b"traceparent"]
    assert len(sent) == 1
    (request,) = stage.spans()["POST /v1/chat/completions"]
    assert request.parent is None
    context = request.get_span_context()
    assert context is not None
    assert f"{context.trace_id:032x}".encode() in sent[0]


def test_what_fails_or_is_refused_says_why(stage: Stage) -> None:
    trace = begun(stage, "POST", "/v1/embeddings")
    trace.waits()
    trace.dispatched(a_lease())
    trace.asked()
    trace.returned(Outcome.FAILED, Reason.UPSTREAM_ERROR)
    trace.end(a_line(status=502, outcome="failed", reason="upstream_error"))
    refused = begun(stage, "GET", "/x" * 500)
    refused.end(a_line(status=404, outcome="rejected", reason="bad_request", tenant=None, band=None, model=None))
    spans = stage.spans()
    for name in ("POST /v1/embeddings", "dispatch", "upstream"):
        assert spans[name][0].status.status_code is StatusCode.ERROR
        assert spans[name][0].status.description == "upstream_error"
    (other,) = (span for name, (span, *_) in spans.items() if name.startswith("GET"))
    assert other.status.status_code is StatusCode.UNSET
    assert (other.attributes or {})["tidegate.reason"] == "bad_request"
    assert len(other.name) < 220
    assert "tidegate.tenant" not in (other.attributes or {})


def test_a_request_that_ends_anywhere_leaves_no_span_open(stage: Stage) -> None:
    trace = begun(stage, "POST", "/v1/chat/completions")
    trace.waits()
    trace.dispatched(a_lease())
    trace.asked()
    trace.end(a_line(status=499, outcome="cancelled"))
    spans = stage.spans()
    assert set(spans) == {"POST /v1/chat/completions", "queue", "dispatch", "upstream"}


def test_the_form_for_receivers(stage: Stage) -> None:
    a_request(stage, (b"traceparent", PARENT), (b"tracestate", b"vendor=1"))
    stage.traces.stop()
    document = json.loads(json.dumps(otlp(stage.memory.get_finished_spans())))
    (resource,) = document["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "tidegate"}} in resource["resource"]["attributes"]
    (scope,) = resource["scopeSpans"]
    request = next(span for span in scope["spans"] if span["kind"] == 2)
    assert (request["traceId"], request["parentSpanId"]) == (PARENT[3:35].decode(), PARENT[36:52].decode())
    assert int(request["endTimeUnixNano"]) - int(request["startTimeUnixNano"]) == 7_000_000_000
    assert {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "9"}} in request["attributes"]
    assert request["traceState"] == "vendor=1"
    assert otlp([])["resourceSpans"][0]["scopeSpans"][0]["spans"] == []


def test_without_the_extra_nothing_is_loaded_and_the_error_says_what_to_install() -> None:
    code = (
        "import sys, tidegate.assembly; assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=40).returncode == 0
    code = "import sys; sys.modules['opentelemetry'] = None; import tidegate.telemetry.otel"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=40, capture_output=True, text=True)
    assert "pip install 'tidegate[otel]'" in done.stderr
