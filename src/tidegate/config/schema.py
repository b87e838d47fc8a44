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

from pydantic import Field, model_validator

from tidegate.config.cluster import ClusterSettings
from tidegate.config.compile import compile_policy
from tidegate.config.document import with_overlay
from tidegate.config.fields import (
    BandName,
    Digest,
    Headers,
    Name,
    Overlay,
    PositiveNumber,
    PositiveWhole,
    Section,
    Switch,
    Text,
    TextMap,
    Texts,
)
from tidegate.config.jobs import JobsSettings
from tidegate.config.policy import PolicySettings
from tidegate.config.ports import ControlSettings, GatewaySettings
from tidegate.config.traces import TracesSettings
from tidegate.config.upstreams import DERIVED, BackendSettings
from tidegate.core import Policy

ANONYMOUS = "anonymous"
"""Tenant name of callers without a key; no configured tenant may have it."""

WILDCARD = "*"
"""Model name that stands for any model that no other entry names. Its pool is called ``default``."""

NORMAL = "normal"
"""The mode that is the policy itself."""

TRANSACTIONS_ONLY = "transactions_only"
OBSERVE = "observe"


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

    requests_per_minute: PositiveWhole | None = Field(
        default=None, description="Requests in any minute, at once or spread; above it, 429."
    )
    tokens_per_minute: PositiveWhole | None = Field(
        default=None, description="Tokens in any minute, estimated on arrival and settled at the end; above it, 429."
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
        description="Refuse nothing for the rules of a band, a tenant or a mode, and run all in order of arrival; "
        "`tidegate_would_total` and the log count what the rules would have done.",
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
    jobs: JobsSettings | None = Field(default=None, description="Batch jobs. Absent: none.")
    traces: TracesSettings | None = Field(default=None, description="OpenTelemetry traces. Absent: none.")
    cluster: ClusterSettings | None = Field(
        default=None, description="Sharing seats with other gateways. Absent: none."
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
