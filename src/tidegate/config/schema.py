"""The shape of the file: frozen models whose names are those of the file (SPEC §14).

One rule for attribute names: **the attribute is the YAML key**, and its value is already converted:

- durations are ``float`` seconds (``gateway.drain_timeout == 120.0``), sizes ``int`` bytes,
- parts (``floor``, ``ceiling``, ``overtake_cap``) are exact ``Fraction``,
- choices are ``StrEnum`` (``policy.discipline == "aging"``), lists are tuples, secrets are ``SecretStr``,
- bands are names (``"p0"``); ``settings.band_index(name)`` gives the index that the core uses,
- what may be absent is ``None``.

``load_settings`` has resolved every default that depends on another setting: a tenant's ``max_band``, a backend's
``name`` and ``send_priority``, ``anonymous`` on a loopback address, and the preset under ``policy``.
"""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from tidegate.config.compile import compile_policy
from tidegate.config.document import with_overlay
from tidegate.config.fields import (
    BandName,
    Digest,
    Engine,
    EngineName,
    File,
    Headers,
    Listen,
    MetricsUrl,
    Name,
    Overlay,
    PositiveNumber,
    PositiveSeconds,
    PositiveWhole,
    Role,
    RoleName,
    RootUrl,
    SeatCount,
    Seconds,
    Secret,
    Section,
    Size,
    Switch,
    Text,
    TextMap,
    Texts,
)
from tidegate.config.policy import PolicySettings
from tidegate.config.values import Address
from tidegate.core import Policy

ANONYMOUS = "anonymous"
"""Tenant name of callers without a key; no configured tenant may have it."""

WILDCARD = "*"
"""Model name that stands for any model that no other entry names. Its pool is called ``default``."""

NORMAL = "normal"
"""The mode that is the policy itself."""

TRANSACTIONS_ONLY = "transactions_only"
OBSERVE = "observe"

_TELLS_PRIORITY = {Engine.VLLM, Engine.SGLANG, Engine.TIDEGATE}
_SHOWS_METRICS = {*_TELLS_PRIORITY, Engine.LLAMACPP}

DERIVED: JsonDict = {"shown": "derived"}
"""Marks a default that comes from another setting, for the reference."""


class TlsSettings(Section):
    """Certificate of a port, for clients that come by https."""

    cert: File = Field(description="Certificate with its chain, PEM.")
    key: File = Field(description="Its private key, PEM, without a password.")


class GatewaySettings(Section):
    """The port that clients speak to."""

    listen: Listen = Field(default=Address("127.0.0.1", 8400), description="Address of the OpenAI-compatible service.")
    max_body: Size = Field(default=32 * 1024**2, description="Largest request body; a larger one is a 413.")
    max_connections: PositiveWhole = Field(default=20_000, description="Most client connections at a time.")
    max_connections_per_tenant: PositiveWhole | None = Field(
        default=None, description="Most requests that one tenant has open at a time; above it, 429. Absent: no limit."
    )
    max_headers: Size = Field(default=64 * 1024, description="Most bytes of request line and headers.")
    header_timeout: PositiveSeconds = Field(default=10.0, description="Longest time that sending them may take.")
    body_timeout: PositiveSeconds = Field(default=30.0, description="Longest gap between two pieces of a request body.")
    drain_timeout: Seconds = Field(default=120.0, description="On SIGTERM, how long running streams may still take.")
    write_stall_timeout: PositiveSeconds = Field(
        default=30.0,
        description="A client that reads nothing for so long is cancelled, so that it does not hold a seat.",
    )
    silence_timeout: PositiveSeconds = Field(
        default=60.0,
        description="Silence of a running answer after which its backend is asked whether it is there; if not, the "
        "answer ends.",
    )
    queue_heartbeat_after: PositiveSeconds | None = Field(
        default=None,
        description="A streaming request that waits longer gets comment lines, which commits a 200. Absent: never.",
    )
    tls: TlsSettings | None = Field(default=None, description="Serve https. Absent: plain http.")
    fallback_finish_reason: Text = Field(
        default="load_shedding_fallback",
        description="`finish_reason` of a fallback answer; use `stop` for clients that accept only OpenAI's values.",
    )


class OperatorSettings(Section):
    """Who may use the control port: a name for the audit list, a role and the digest of a token."""

    name: Name = Field(description="Unique; stands in the audit list.")
    role: RoleName = Field(default=Role.VIEWER, description="`viewer` may look, `operator` may change.")
    token: Digest = Field(
        description="SHA-256 digest of the bearer token; `tidegate keygen` prints a token with its digest.", repr=False
    )


class ControlSettings(Section):
    """The port for metrics, health and the control API."""

    listen: Listen = Field(
        default=Address("127.0.0.1", 8401),
        description="Address of the control port; anything but a loopback address needs `operators`.",
    )
    operators: tuple[OperatorSettings, ...] = Field(
        default=(),
        description="Who may use the control API. Absent: every program on this machine, and nobody else.",
    )
    tls: TlsSettings | None = Field(default=None, description="Serve https. Absent: plain http.")
    audit_file: File | None = Field(
        default=None, description="File to which every change is appended, one JSON line each. Absent: memory only."
    )


class AnonymousSettings(Section):
    """What callers without a key get. `anonymous: off` requires keys on a loopback address too."""

    band: BandName = Field(description="Band of a request that asks for none.")
    max_band: BandName = Field(
        default="", json_schema_extra=DERIVED, description="Highest band such a caller may ask for. Default: `band`."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_max_band(cls, data: Any) -> Any:
        return _with_max_band(data)


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


class ModelSettings(Section):
    """One pool: a model with its backends."""

    name: Text = Field(description="Model name that clients send. `*` accepts any model that no other entry names.")
    aliases: tuple[Text, ...] = Field(default=(), description="Other names for it; unique over all models.")
    backends: tuple[BackendSettings, ...] = Field(description="At least one.", min_length=1)

    @property
    def pool(self) -> str:
        """Name of the pool in tickets, metrics and logs: the model name, ``default`` for the wildcard."""
        return "default" if self.name == WILDCARD else self.name


class TenantLimits(Section):
    """Limits of one tenant; what is absent is unlimited."""

    requests_per_minute: PositiveWhole | None = Field(default=None, description="Requests a minute; above it, 429.")
    tokens_per_minute: PositiveWhole | None = Field(
        default=None, description="Estimated tokens a minute; above it, 429."
    )
    max_queued: PositiveWhole | None = Field(default=None, description="Most waiting requests; above it, 429.")
    max_running: PositiveWhole | None = Field(default=None, description="Most running requests; the others wait.")


class TenantSettings(Section):
    """Who pays: keys, bands, fair share and limits."""

    name: Name = Field(description="Unique. `anonymous` is taken by callers without a key.")
    keys: tuple[Digest, ...] = Field(
        description="SHA-256 digests of the tenant's keys, as `tidegate keygen` prints them.", min_length=1, repr=False
    )
    band: BandName = Field(default="p1", description="Band of a request that asks for none.")
    max_band: BandName = Field(
        default="", json_schema_extra=DERIVED, description="Highest band the tenant may use. Default: `band`."
    )
    weight: PositiveNumber = Field(default=1.0, description="Fair share beside the other tenants of the same band.")
    limits: TenantLimits = Field(default=TenantLimits(), description="Limits; what is absent is unlimited.")
    trusted: Switch = Field(
        default=False, description="May set the fairness id by header, and its body's `priority` is kept."
    )
    allow_lending: Switch = Field(default=False, description="Its requests may lend their band to other tenants' work.")
    strict_bands: Switch = Field(default=False, description="Asking for a band above `max_band` is a 403, not a clamp.")

    @model_validator(mode="before")
    @classmethod
    def _default_max_band(cls, data: Any) -> Any:
        return _with_max_band(data)


class RuleMatch(Section):
    """Conditions of a rule; all that are present must hold, each by any one of its values.

    A value matches exactly, or as a prefix when it ends with ``*`` (see ``matches``).
    """

    tenant: Texts | None = Field(default=None, description="Tenant names.")
    header: Headers | None = Field(default=None, description="Header values.")
    path: Texts | None = Field(default=None, description="Request paths, like `/v1/completions`.")
    model: Texts | None = Field(default=None, description="Model names as the client sent them.")
    metadata: TextMap | None = Field(default=None, description="Values of fields of the body's `metadata`.")


class RuleSettings(Section):
    """The first rule that matches gives the band."""

    when: RuleMatch = Field(description="At least one condition.")
    band: BandName = Field(description="Band of the requests that match; `max_band` still clamps it.")


class ModeSettings(Section):
    """An overlay of the policy that is switched on and off while the gateway runs."""

    admit: tuple[BandName, ...] | None = Field(
        default=None,
        description="Bands that are let in; the others are shed, those that wait too. Absent: all.",
        min_length=1,
    )
    observe: Switch = Field(
        default=False,
        description="Decide, count and log as usual, but refuse nothing and run all in order of arrival.",
    )
    policy: Overlay = Field(
        default={}, description="Laid over `policy`, key by key, like `{bands: {p2: {ceiling: 0.5}}}`."
    )


class Settings(Section):
    """The whole file. Build it with ``load_settings`` or ``parse_settings``."""

    gateway: GatewaySettings = Field(default=GatewaySettings(), description="The port that clients speak to.")
    control: ControlSettings = Field(default=ControlSettings(), description="The port for metrics, health and control.")
    preset: Name = Field(default="flash-sale", description="The policy that `policy` starts from.")
    anonymous: AnonymousSettings | None = Field(
        default=None,
        description="Callers without a key. Absent: keys are required, but on a loopback address without tenants "
        "it is `{band: p1, max_band: p0}`.",
    )
    models: tuple[ModelSettings, ...] = Field(description="The pools. Required without `--backend`.", min_length=1)
    tenants: tuple[TenantSettings, ...] = Field(default=(), description="Who may call.")
    rules: tuple[RuleSettings, ...] = Field(default=(), description="Bands by tenant, header, path, model or metadata.")
    policy: PolicySettings = Field(
        json_schema_extra={"shown": "the preset"},
        description="What runs, waits and is refused; overrides the preset key by key.",
    )
    modes: dict[str, ModeSettings] = Field(
        default={},
        description="Modes beside `normal`, which is the policy itself. Built in, unless written here: "
        "`transactions_only` (`admit` only the highest band) and `observe` (`observe: true`).",
    )
    objectives: dict[str, BandName] = Field(
        default={}, description="Names that `x-llm-d-inference-objective` and its twin may carry, each with its band."
    )

    @property
    def band_names(self) -> tuple[str, ...]:
        """Band names, highest first."""
        return tuple(self.policy.bands)

    def band_index(self, name: str) -> int:
        """Index of a band, 0 is the highest.

        Raises:
            ValueError: there is no such band.
        """
        return self.band_names.index(name)

    @property
    def mode_names(self) -> tuple[str, ...]:
        """Names of all modes: ``normal``, the built-in ones, then the file's own."""
        return tuple(dict.fromkeys((NORMAL, TRANSACTIONS_ONLY, OBSERVE, *self.modes)))

    def mode(self, name: str) -> ModeSettings:
        """Return a mode.

        Raises:
            KeyError: there is none of this name.
        """
        if name in self.modes:
            return self.modes[name]
        return {
            NORMAL: ModeSettings(),
            TRANSACTIONS_ONLY: ModeSettings(admit=self.band_names[:1]),
            OBSERVE: ModeSettings(observe=True),
        }[name]

    def in_mode(self, name: str) -> Settings:
        """Return the settings with a mode's overlay laid over the policy, for those who answer clients.

        Raises:
            KeyError: there is no such mode.
            ConfigError: the overlay does not fit the policy.
        """
        changes = self.mode(name).policy
        return self.model_copy(update={"policy": with_overlay(self.policy, changes)}) if changes else self

    def core_policy(self, mode: str = NORMAL) -> Policy:
        """Compile to the value that the scheduler obeys.

        Args:
            mode: the mode in force.

        Raises:
            KeyError: there is no such mode.
            ConfigError: the mode's overlay does not fit the policy.
            PolicyError: the policy contradicts itself (``load_settings`` has already looked).
        """
        return compile_policy(self.in_mode(mode), self.mode(mode))


def key_digest(key: str) -> str:
    """Digest of a key in the form that ``tenants[].keys`` holds."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def matches(pattern: str, value: str) -> bool:
    """Whether a rule's value fits: equal, or a prefix when the pattern ends with ``*``."""
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern


def _with_max_band(data: Any) -> Any:
    if not isinstance(data, dict) or data.get("max_band") is not None:
        return data
    band = data.get("band")
    return {**data, "max_band": "p1" if band is None else band}


def _host_name(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "backend"
    return (f"{host}:{port}" if host and port else host or "backend")[-128:]
