"""From a file and the environment to validated, frozen settings, and from those to the core's policy.

Everything public is re-exported here. ``schema`` says how attributes are named and what their values are.
"""

from tidegate.config.advice import advice
from tidegate.config.errors import ConfigError, Mark, Problem
from tidegate.config.fields import Engine, ShedAnswer
from tidegate.config.load import load_settings, parse_settings
from tidegate.config.policy import BandSettings, MessageSettings, PolicySettings
from tidegate.config.preset import DEFAULT_PRESET, preset_names, preset_text
from tidegate.config.schema import (
    ANONYMOUS,
    WILDCARD,
    AnonymousSettings,
    BackendSettings,
    ControlSettings,
    GatewaySettings,
    ModelSettings,
    RuleMatch,
    RuleSettings,
    Settings,
    TenantLimits,
    TenantSettings,
    key_digest,
    matches,
)
from tidegate.config.values import (
    Address,
    ExpectedError,
    nearest,
    parse_duration,
    parse_name,
    parse_positive_duration,
    parse_size,
)

__all__ = [
    "ANONYMOUS",
    "DEFAULT_PRESET",
    "WILDCARD",
    "Address",
    "AnonymousSettings",
    "BackendSettings",
    "BandSettings",
    "ConfigError",
    "ControlSettings",
    "Engine",
    "ExpectedError",
    "GatewaySettings",
    "Mark",
    "MessageSettings",
    "ModelSettings",
    "PolicySettings",
    "Problem",
    "RuleMatch",
    "RuleSettings",
    "Settings",
    "ShedAnswer",
    "TenantLimits",
    "TenantSettings",
    "advice",
    "key_digest",
    "load_settings",
    "matches",
    "nearest",
    "parse_duration",
    "parse_name",
    "parse_positive_duration",
    "parse_settings",
    "parse_size",
    "preset_names",
    "preset_text",
]
