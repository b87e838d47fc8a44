"""Whole new settings from changes made while the gateway runs: judged like a file, refused whole.

What is read here came in a request: ``${NAME}`` is not filled in from the environment, so that nobody can have a
variable of the gateway's sent to a backend of his own.
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.config.checks import judged
from tidegate.config.document import document, missing, node_of, read_policy, with_overlay
from tidegate.config.errors import REQUEST, ConfigError, Problem
from tidegate.config.fields import Section
from tidegate.config.schema import ModelSettings, Settings
from tidegate.config.shape import build
from tidegate.config.tree import Map
from tidegate.config.upstreams import BackendSettings
from tidegate.config.values import nearest

LIVE = frozenset(
    {
        "gateway.max_connections_per_tenant",
        "gateway.queue_heartbeat_after",
        "gateway.silence_timeout",
        "gateway.drain_timeout",
        "gateway.fallback_finish_reason",
        "control.operators",
    }
)
"""Settings of the two ports that may change while the gateway runs; the others need a restart."""


class _Pool(Section):
    backends: tuple[BackendSettings, ...]


class _Models(Section):
    models: tuple[_Pool, ...]


def replace_policy(settings: Settings, value: object) -> Settings:
    """Return settings with another policy, given whole.

    Raises:
        ConfigError: with every problem, such as settings that are left out.
    """
    if problems := missing(document(settings.policy), value):
        raise ConfigError(problems)
    return judged(settings.model_copy(update={"policy": read_policy(value)}))


def patch_policy(settings: Settings, value: object) -> Settings:
    """Return settings with a JSON merge patch laid over the policy; ``null`` takes an optional setting back.

    Raises:
        ConfigError: with every problem.
    """
    if not isinstance(value, dict):
        raise ConfigError([Problem("policy", "expected a mapping of settings of policy", mark=REQUEST)])
    return judged(settings.model_copy(update={"policy": with_overlay(settings.policy, value)}))


def replace_backends(settings: Settings, value: object) -> Settings:
    """Return settings with other backends for the models named in ``{"models": [{"name", "backends"}]}``.

    A backend without ``api_key`` keeps the one it has as long as its name and its ``url`` stay the same.

    Raises:
        ConfigError: with every problem.
    """
    if not isinstance(value, dict) or not isinstance(value.get("models"), list) or set(value) != {"models"}:
        raise ConfigError([Problem("", 'expected {"models": [{"name": NAME, "backends": [...]}]}', mark=REQUEST)])
    given: dict[str, tuple[BackendSettings, ...]] = {}
    problems: list[Problem] = []
    known = {model.name: model for model in settings.models}
    for index, item in enumerate(value["models"]):
        path = f"models[{index}]"
        if not isinstance(item, dict) or set(item) != {"name", "backends"}:
            problems.append(Problem(path, "expected name and backends", mark=REQUEST))
        elif (name := str(item["name"])) not in known or name in given:
            expected = f"expected one of {', '.join(known)}, each once"
            problems.append(Problem(f"{path}.name", expected, repr(name[:60]), nearest(name, [*known]), REQUEST))
        else:
            given[name] = _read_backends(known[name], item["backends"], path, problems)
    if problems:
        raise ConfigError(problems)
    models = tuple(
        model.model_copy(update={"backends": given[model.name]}) if model.name in given else model
        for model in settings.models
    )
    return judged(settings.model_copy(update={"models": models}))


def needs_restart(before: Settings, after: Settings) -> list[str]:
    """Return the paths of changed settings that a running gateway cannot take."""
    found = [f"gateway.{key}" for key in _changed(before.gateway, after.gateway)]
    found += [f"control.{key}" for key in _changed(before.control, after.control)]
    found = [path for path in found if path not in LIVE]
    if before.band_names != after.band_names:
        found.append("policy.bands")
    found += [key for key in ("jobs", "traces", "cluster") if getattr(before, key) != getattr(after, key)]
    return found


def _read_backends(
    model: ModelSettings, value: object, path: str, problems: list[Problem]
) -> tuple[BackendSettings, ...]:
    root = Map(REQUEST)
    root.put("models", node_of([{"backends": value}]), REQUEST)
    found: list[Problem] = []
    read = build(_Models, root, found)
    problems += [replace(problem, path=problem.path.replace("models[0]", path, 1)) for problem in found]
    if read is None:
        return ()
    (pool,) = read.models
    if not pool.backends:
        problems.append(Problem(f"{path}.backends", "expected at least one", "an empty list", mark=REQUEST))
    had = {(row.name, row.url): row.api_key for row in model.backends}
    return tuple(
        row if row.api_key is not None else row.model_copy(update={"api_key": had.get((row.name, row.url))})
        for row in pool.backends
    )


def _changed(before: Section, after: Section) -> list[str]:
    return [key for key in type(before).model_fields if getattr(before, key) != getattr(after, key)]
