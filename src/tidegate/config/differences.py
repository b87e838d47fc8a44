"""What differs between two settings, in the file's form and without secrets: for the log and the audit list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.config.document import document
from tidegate.config.fields import Section
from tidegate.config.ports import OperatorSettings
from tidegate.config.schema import ModelSettings, Settings, TenantSettings
from tidegate.config.tenants import short_digest, tenant_document

Difference = tuple[str, Any, Any]
"""Dotted path, before, after; ``None`` where there is nothing."""

_NAMED = ("models", "tenants", "operators")
"""Lists whose members have names, and no order that means anything."""

_UNSEEN = "…"
"""Stands for both sides where what differs is a secret."""


def backends_document(settings: Settings) -> dict[str, Any]:
    """Return all backends in the file's form. Credentials are left out; ``off`` says that there is no metrics page."""
    return {"models": [{"name": model.name, "backends": _backends(model)} for model in settings.models]}


def differences(before: Settings, after: Settings) -> list[Difference]:
    """Return what differs as (dotted path, before, after).

    Models, tenants and operators are compared by name. Keys and tokens are shown by the first digits of their digests.
    """
    found: list[Difference] = []
    for key in ("policy", *(key for key in Settings.model_fields if key != "policy")):
        one, other = getattr(before, key), getattr(after, key)
        if one is other or one == other:
            continue
        if key in _NAMED:
            one, other = _changed_rows(one, other)
        found += list(_differ(key, _shown(key, one), _shown(key, other))) or [(key, _UNSEEN, _UNSEEN)]
    return found


def _changed_rows(before: tuple[Any, ...], after: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Leave out what is the same on both sides: of ten thousand tenants, usually all but one."""
    olds, news = ({row.name: row for row in rows} for rows in (before, after))
    same = {name for name, row in olds.items() if name in news and (news[name] is row or news[name] == row)}
    return (
        tuple(row for row in before if row.name not in same),
        tuple(row for row in after if row.name not in same),
    )


def _shown(key: str, value: Any) -> Any:
    """Return a setting in a form in which ``_differ`` finds its parts."""
    if isinstance(value, ModelSettings):
        return {"aliases": [*value.aliases], "backends": _backends(value)}
    if isinstance(value, TenantSettings):
        return tenant_document(value)
    if isinstance(value, OperatorSettings):
        return {"role": str(value.role), "token": short_digest(value.token)}
    if key in _NAMED:
        return {item.name: _shown("", item) for item in value}
    if isinstance(value, tuple):
        return [_shown("", item) for item in value]
    if isinstance(value, dict):
        return {name: _shown("", item) for name, item in value.items()}
    if isinstance(value, Section):
        shown = document(value)
        return {name: _shown(name, getattr(value, name)) if name in _NAMED else shown[name] for name in shown}
    return value


def _backends(model: ModelSettings) -> list[dict[str, Any]]:
    rows = [{**document(row), "metrics_url": row.metrics_url or "off"} for row in model.backends]
    return [{name: value for name, value in row.items() if name != "api_key"} for row in rows]


def _differ(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from _differ(f"{path}.{key}", before.get(key), after.get(key))
    elif before != after:
        rows, others = _by_name(before), _by_name(after)
        parts = [] if rows is None or others is None else list(_differ(path, rows, others))
        yield from parts or [(path, before, after)]


def _by_name(value: Any) -> dict[str, Any] | None:
    """Return a list of things with names, such as backends, as a mapping; ``None``: it is something else."""
    if not isinstance(value, list) or not all(isinstance(row, dict) and "name" in row for row in value):
        return None
    return {row["name"]: {key: part for key, part in row.items() if key != "name"} for row in value}
