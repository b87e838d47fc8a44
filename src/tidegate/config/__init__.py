"""From a file and the environment to validated, frozen settings, and from those to the core's policy.

Everything public is re-exported here. ``schema`` says how attributes are named and what their values are.
"""

from tidegate.config.advice import advice
from tidegate.config.changes import needs_restart, patch_policy, replace_backends, replace_policy
from tidegate.config.cluster import ClusterSettings
from tidegate.config.differences import Difference, backends_document, differences
from tidegate.config.document import document
from tidegate.config.errors import ConfigError, Mark, Problem
from tidegate.config.fields import Engine, Role, ShedAnswer, ShedModel
from tidegate.config.jobs import JobsSettings
from tidegate.config.load import load_settings, parse_settings, settings_of
from tidegate.config.policy import BandSettings, MessageSettings, PolicySettings
from tidegate.config.ports import ControlSettings, GatewaySettings, OperatorSettings, TlsSettings
from tidegate.config.preset import DEFAULT_PRESET, preset_names, preset_text
from tidegate.config.schema import (
    ANONYMOUS,
    NORMAL,
    OBSERVE,
    TRANSACTIONS_ONLY,
    WILDCARD,
    AnonymousSettings,
    ModelSettings,
    ModeSettings,
    RuleMatch,
    RuleSettings,
    Settings,
    TenantLimits,
    TenantSettings,
    key_digest,
    matches,
)
from tidegate.config.tenants import read_tenant, replace_tenants, short_digest, tenant_document
from tidegate.config.traces import TracesSettings
from tidegate.config.upstreams import BackendSettings, BackendTlsSettings, BudgetSettings
from tidegate.config.urls import parse_root_url
from tidegate.config.values import (
    Address,
    ExpectedError,
    duration_text,
    nearest,
    parse_duration,
    parse_name,
    parse_positive_duration,
    parse_size,
)

__all__ = [
    "ANONYMOUS",
    "DEFAULT_PRESET",
    "NORMAL",
    "OBSERVE",
    "TRANSACTIONS_ONLY",
    "WILDCARD",
    "Address",
    "AnonymousSettings",
    "BackendSettings",
    "BackendTlsSettings",
    "BandSettings",
    "BudgetSettings",
    "ClusterSettings",
    "ConfigError",
    "ControlSettings",
    "Difference",
    "Engine",
    "ExpectedError",
    "GatewaySettings",
    "JobsSettings",
    "Mark",
    "MessageSettings",
    "ModeSettings",
    "ModelSettings",
    "OperatorSettings",
    "PolicySettings",
    "Problem",
    "Role",
    "RuleMatch",
    "RuleSettings",
    "Settings",
    "ShedAnswer",
    "ShedModel",
    "TenantLimits",
    "TenantSettings",
    "TlsSettings",
    "TracesSettings",
    "advice",
    "backends_document",
    "differences",
    "document",
    "duration_text",
    "key_digest",
    "load_settings",
    "matches",
    "nearest",
    "needs_restart",
    "parse_duration",
    "parse_name",
    "parse_positive_duration",
    "parse_root_url",
    "parse_settings",
    "parse_size",
    "patch_policy",
    "preset_names",
    "preset_text",
    "read_tenant",
    "replace_backends",
    "replace_policy",
    "replace_tenants",
    "settings_of",
    "short_digest",
    "tenant_document",
]
