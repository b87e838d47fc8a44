"""Spans of OpenTelemetry: the request, its waits, its dispatches, its upstream calls (the extra ``otel``).

    request (server)                    from the last header byte to the last byte of the answer
      queue                             each wait for a seat
      dispatch                          each seat, from the scheduler's decision to its return
        upstream (client)               the call of the backend; its context goes upstream in ``traceparent``

A request that came with a valid ``traceparent`` continues that trace and obeys its decision to sample; others are
sampled by chance. Of one that is not sampled nothing is made, and a context that it came with goes upstream as it is:
the spans of a request cost more than the rest of its way through the gateway, so most requests must do without.

Attributes hold names and counts, never a prompt, an answer or a key. Spans are sent by the SDK's batch processor, in a
thread and small portions: what takes one JSON encoding of 64 spans (about a millisecond) is what it can hold up.
"""

from __future__ import annotations

import random
import urllib.request
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import structlog

from tidegate._version import __version__
from tidegate.core import Lease, Outcome, Reason, TidegateError
from tidegate.telemetry.request_line import RequestLine
from tidegate.telemetry.traces import Headers

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace import Span, SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise TidegateError("traces needs OpenTelemetry: pip install 'tidegate[otel]'") from error

PORTION = 64
WAITING_SPANS = 4096
"""Most spans that wait to be sent; more are dropped, the oldest requests' first."""

EVERY_MS = 1000
SEND_S = 5.0
CONTEXT = (b"traceparent", b"tracestate")

_KINDS = {SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3, SpanKind.PRODUCER: 4, SpanKind.CONSUMER: 5}
_propagator = TraceContextTextMapPropagator()
_NO_PARENT = Context()

log = structlog.get_logger("tidegate.telemetry")


class OtelTraces:
    """See ``Traces``.

    Args:
        exporter: where spans go.
        sample: part of the requests without a trace of their own that are traced.
        now: the gateway's time, seconds.
        utc_now: the wall clock.
        service: name of this service.
        chance: gives numbers from 0 to below 1.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        sample: float,
        now: Callable[[], float],
        utc_now: Callable[[], datetime],
        service: str = "tidegate",
        chance: Callable[[], float] = random.random,
    ) -> None:
        resource = Resource({"service.name": service, "service.version": __version__})
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter, max_queue_size=WAITING_SPANS, schedule_delay_millis=EVERY_MS, max_export_batch_size=PORTION
            )
        )
        self._tracer = self._provider.get_tracer("tidegate", __version__)
        self._sample = sample
        self._chance = chance
        self._now = now
        self._utc_now = utc_now

    def begin(self, method: str, path: str, headers: Headers) -> OtelTrace | None:
        """See ``Traces``."""
        parent = _parent(headers)
        given = trace.get_current_span(parent).get_span_context() if parent else trace.INVALID_SPAN_CONTEXT
        if not (given.trace_flags.sampled if given.is_valid else self._chance() < self._sample):
            return None
        now = self._now()
        begun_ns = int(self._utc_now().timestamp() * 1e9)
        attributes = {"http.request.method": method, "url.path": path[:200]}
        span = self._tracer.start_span(
            f"{method} {path[:200]}", parent, SpanKind.SERVER, attributes, start_time=begun_ns
        )
        return OtelTrace(self._tracer, span, lambda: begun_ns + int((self._now() - now) * 1e9))

    def stop(self) -> None:
        """See ``Traces``."""
        self._provider.shutdown()


class OtelTrace:
    """See ``Trace``. ``time_ns`` gives the wall-clock time, monotonic within the request."""

    __slots__ = ("_begun_ns", "_dispatch", "_queue", "_request", "_time_ns", "_tracer", "_upstream")

    def __init__(self, tracer: trace.Tracer, request: Span, time_ns: Callable[[], int]) -> None:
        self._tracer = tracer
        self._request = request
        self._time_ns = time_ns
        self._begun_ns = time_ns()
        self._queue: Span | None = None
        self._dispatch: Span | None = None
        self._upstream: Span | None = None

    def waits(self) -> None:
        """See ``Trace``."""
        self._close()
        self._queue = self._span("queue", self._request)

    def dispatched(self, lease: Lease) -> None:
        """See ``Trace``."""
        self._close()
        self._dispatch = self._span(
            "dispatch",
            self._request,
            {
                "tidegate.backend": lease.backend,
                "tidegate.turn": str(lease.kind),
                "tidegate.band.index": lease.band,
                "tidegate.waited_s": lease.waited_s,
            },
        )

    def asked(self) -> None:
        """See ``Trace``."""
        parent = self._dispatch or self._request
        self._end_upstream()
        self._upstream = self._span("upstream", parent, kind=SpanKind.CLIENT)

    def carried(self, headers: Headers) -> Headers:
        """See ``Trace``."""
        span = self._upstream or self._request
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(span, Context()))
        ours = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in carrier.items()]
        return [*(pair for pair in headers if pair[0].lower() not in CONTEXT), *ours]

    def returned(self, outcome: Outcome | None, reason: Reason | None) -> None:
        """See ``Trace``."""
        for span in (self._upstream, self._dispatch):
            if span is not None:
                span.set_attribute("tidegate.outcome", "again" if outcome is None else outcome.value)
                if outcome is Outcome.FAILED:
                    span.set_status(StatusCode.ERROR, None if reason is None else reason.value)
        self._close()

    def end(self, line: RequestLine) -> None:
        """See ``Trace``."""
        self._close()
        span = self._request
        if line.ttft_ms is not None:
            span.add_event("first byte", timestamp=self._begun_ns + int(line.ttft_ms * 1e6))
        span.set_attributes({name: value for name, value in _attributes(line).items() if value is not None})
        if line.status >= 500 or line.outcome == Outcome.FAILED.value:
            span.set_status(StatusCode.ERROR, line.reason)
        span.end(self._time_ns())

    def _span(
        self, name: str, parent: Span, attributes: dict[str, Any] | None = None, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        context = trace.set_span_in_context(parent, Context())
        return self._tracer.start_span(name, context, kind, attributes, start_time=self._time_ns())

    def _end_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.end(self._time_ns())
            self._upstream = None

    def _close(self) -> None:
        """End every span but the request's."""
        self._end_upstream()
        now_ns = self._time_ns()
        for span in (self._dispatch, self._queue):
            if span is not None:
                span.end(now_ns)
        self._dispatch = self._queue = None


def _parent(headers: Headers) -> Context:
    """Return the context that a request came with; of two ``traceparent`` none counts."""
    given = [value.decode("latin-1") for name, value in headers if name == CONTEXT[0]]
    if len(given) != 1:
        return _NO_PARENT
    state = ",".join(value.decode("latin-1") for name, value in headers if name == CONTEXT[1])
    return _propagator.extract({"traceparent": given[0], "tracestate": state}, Context())


def _attributes(line: RequestLine) -> dict[str, Any]:
    return {
        "http.response.status_code": line.status,
        "tidegate.request_id": line.request_id,
        "tidegate.tenant": line.tenant,
        "tidegate.band": line.band,
        "tidegate.outcome": line.outcome,
        "tidegate.reason": line.reason,
        "tidegate.backend": line.backend,
        "gen_ai.request.model": line.model,
        "gen_ai.usage.input_tokens": line.input_tokens,
        "gen_ai.usage.output_tokens": line.output_tokens,
    }


class OtlpJsonExporter(SpanExporter):
    """Sends spans to an OTLP/HTTP receiver as JSON, which needs no further packages.

    The form is that of OpenTelemetry's protocol 1.x: ids in hexadecimal, times as strings of nanoseconds.
    """

    def __init__(self, endpoint: str) -> None:
        self._url = f"{endpoint}/v1/traces"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a portion; what the receiver does not take is lost, and the log says so once."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self._url, msgspec.json.encode(otlp(spans)), headers)  # noqa: S310
        try:
            with self._opener.open(request, timeout=SEND_S) as response:
                response.read()
        except OSError as error:
            if not self._failing:
                log.warning("traces.lost", endpoint=self._url, why=str(getattr(error, "reason", None) or error))
            self._failing = True
            return SpanExportResult.FAILURE
        self._failing = False
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is kept."""


def otlp(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Return spans of one provider in OTLP's JSON form."""
    resource = spans[0].resource.attributes if spans else {}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _pairs(resource)},
                "scopeSpans": [{"scope": {"name": "tidegate", "version": __version__}, "spans": [*map(_json, spans)]}],
            }
        ]
    }


def _json(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    found: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "flags": int(context.trace_flags),
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _pairs(span.attributes or {}),
        "events": [{"timeUnixNano": str(event.timestamp), "name": event.name} for event in span.events],
        "status": {"code": span.status.status_code.value},
    }
    if span.parent is not None:
        found["parentSpanId"] = f"{span.parent.span_id:016x}"
    if context.trace_state:
        found["traceState"] = context.trace_state.to_header()
    if span.status.description:
        found["status"]["message"] = span.status.description
    return found


def _pairs(attributes: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
