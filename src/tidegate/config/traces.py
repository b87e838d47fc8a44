"""The block ``traces``: where spans of requests go, and of how many."""

from __future__ import annotations

from fractions import Fraction

from pydantic import Field

from tidegate.config.fields import Part, RootUrl, Section, Text


class TracesSettings(Section):
    """OpenTelemetry traces, by the extra `otel`. Absent: none; a client's `traceparent` goes upstream as it is."""

    endpoint: RootUrl = Field(
        default="http://127.0.0.1:4318",
        description="Root URL of an OTLP/HTTP receiver that takes JSON; `/v1/traces` is appended.",
    )
    sample: Part = Field(
        default=Fraction(1, 100),
        description="Part of the requests that are traced. Of a request that comes with a trace, its caller decides.",
    )
    service: Text = Field(default="tidegate", description="Name of this service in the traces.")
