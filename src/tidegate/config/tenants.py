"""Tenants that no file holds: read and written in the file's form, judged with the rest of the settings."""

from __future__ import annotations

from typing import Any

from tidegate.config.checks import judged
from tidegate.config.document import document, node_of
from tidegate.config.errors import REQUEST, ConfigError, Problem
from tidegate.config.fields import Section
from tidegate.config.schema import Settings, TenantSettings, key_digest
from tidegate.config.shape import build, unknown_bands
from tidegate.config.tree import Map, Seq, overlay

_NOBODY = key_digest("")
"""Stands where the schema wants a key; a tenant made by the control API may have none."""


class _Tenants(Section):
    tenants: tuple[TenantSettings, ...]


def short_digest(digest: str) -> str:
    """Return what names a key or token without being one: the first twelve digits of its digest."""
    return digest.removeprefix("sha256:")[:12]


def tenant_document(tenant: TenantSettings) -> dict[str, Any]:
    """Return a tenant in the file's form but for its name; keys as ``short_digest`` says."""
    shown = document(tenant)
    del shown["name"]
    return {**shown, "keys": [short_digest(key) for key in tenant.keys]}


def read_tenant(
    name: object,
    value: dict[str, Any],
    keys: tuple[str, ...],
    *,
    bands: tuple[str, ...],
    over: dict[str, Any] | None = None,
) -> TenantSettings:
    """Read a tenant.

    Args:
        name: unique.
        value: its settings in the file's form, without name and keys.
        keys: digests; there may be none.
        bands: names of the bands.
        over: settings that ``value`` is laid over, key by key; ``null`` takes one back.

    Raises:
        ConfigError: with every problem; paths are those within the tenant.
    """
    problems = [
        Problem(key, "expected no such setting here: keys and the name have requests of their own", mark=REQUEST)
        for key in ("name", "keys")
        if key in value
    ]
    own = {key: item for key, item in value.items() if key not in ("name", "keys")}
    node = node_of(own) if over is None else overlay(node_of(over), node_of(own))
    assert isinstance(node, Map)
    node.put("name", node_of(name), REQUEST)
    node.put("keys", node_of([_NOBODY]), REQUEST)
    root = Map(REQUEST)
    root.put("tenants", Seq([node], REQUEST), REQUEST)
    read = build(_Tenants, root, problems)
    problems += unknown_bands(_Tenants, root, [*bands])
    if read is None or problems:
        raise ConfigError([_within(problem) for problem in problems])
    return read.tenants[0].model_copy(update={"keys": keys})


def replace_tenants(settings: Settings, tenants: tuple[TenantSettings, ...]) -> Settings:
    """Return settings with other tenants.

    Raises:
        ConfigError: with every problem.
    """
    return judged(settings.model_copy(update={"tenants": tenants}))


def _within(problem: Problem) -> Problem:
    path = problem.path.removeprefix("tenants[0]").removeprefix(".")
    return Problem(
        path,
        problem.expected.replace("; tenants[0] takes", "; a tenant takes"),
        problem.came,
        problem.nearest,
        problem.mark,
    )
