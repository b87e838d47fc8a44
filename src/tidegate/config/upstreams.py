"""One upstream of a model: where it is, what it may be given, what it shows."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from tidegate.config.fields import (
    Engine,
    EngineName,
    File,
    MetricsUrl,
    Name,
    PositiveSeconds,
    PositiveWhole,
    RootUrl,
    SeatCount,
    Secret,
    Section,
    Switch,
)

_TELLS_PRIORITY = {Engine.VLLM, Engine.SGLANG, Engine.TIDEGATE}
_SHOWS_METRICS = {*_TELLS_PRIORITY, Engine.LLAMACPP}

DERIVED: JsonDict = {"shown": "derived"}
"""Marks a default that comes from another setting, for the reference."""


class BudgetSettings(Section):
    """Quota of an upstream; what is absent is unlimited."""

    tokens_per_minute: PositiveWhole | None = Field(default=None, description="Tokens a minute; above it, work waits.")
    requests_per_minute: PositiveWhole | None = Field(
        default=None, description="Requests a minute; above it, work waits."
    )


class BackendTlsSettings(Section):
    """How the certificate of an https backend is judged."""

    ca: File | None = Field(default=None, description="Certificates to trust, PEM. Absent: those of the system.")
    verify: Switch = Field(default=True, description="`false` trusts anybody: only for trials.")


class BackendSettings(Section):
    """One upstream of a model."""

    name: Name = Field(
        default="", json_schema_extra=DERIVED, description="Unique in the file. Default: host and port of `url`."
    )
    url: RootUrl = Field(
        description="Root of the backend; `/v1/...` is appended. A host name is looked up for each new connection."
    )
    engine: EngineName = Field(default=Engine.OPENAI, description="What serves the model there.")
    seats: SeatCount = Field(
        default=64, description="How many requests it runs at a time; `auto` finds it by measuring the engine."
    )
    budget: BudgetSettings = Field(default=BudgetSettings(), description="Quota; what is absent is unlimited.")
    metrics_url: MetricsUrl = Field(
        default="",
        json_schema_extra=DERIVED,
        description="Page of the engine's metrics. Default: `/metrics` under `url`, and none for `openai`. `off` for "
        "an engine that shows none.",
    )
    poll_every: PositiveSeconds = Field(default=0.5, description="Time between two looks at that page.")
    stale_after: PositiveSeconds = Field(
        default=3.0, description="Age at which a reading of that page is not used any more; above `poll_every`."
    )
    kv_tokens: PositiveWhole | None = Field(
        default=None,
        description="Size of its KV cache in tokens, where its metrics do not tell: for `llamacpp`, the `-c` that it "
        "was started with. Then work is dispatched only as far as its estimated tokens fit.",
    )
    tls: BackendTlsSettings = Field(default=BackendTlsSettings(), description="For an https `url`.")
    api_key: Secret | None = Field(default=None, description="Credential sent to the backend, best as `${NAME}`.")
    send_priority: Switch = Field(
        default=False,
        json_schema_extra=DERIVED,
        description="Tell the engine each request's priority, with the sign it expects. "
        "Default: `true` for `vllm`, `sglang` and `tidegate`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _resolve_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if isinstance(url := data.get("url"), str) and data.get("name") is None:
            data["name"] = _host_name(url)
        if data.get("send_priority") is None:
            data["send_priority"] = data.get("engine") in _TELLS_PRIORITY
        if data.get("metrics_url") is None:
            shows = data.get("engine") in _SHOWS_METRICS and isinstance(url, str)
            data["metrics_url"] = f"{url.strip().rstrip('/')}/metrics" if shows else ""
        return data


def _host_name(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "backend"
    return (f"{host}:{port}" if host and port else host or "backend")[-128:]
