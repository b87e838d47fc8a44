"""From a file, the environment and the command line to ``Settings``, or to every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidegate.config.checks import cross_check, policy_problems
from tidegate.config.errors import ConfigError, Mark, Problem
from tidegate.config.fields import Engine
from tidegate.config.preset import DEFAULT_PRESET, preset_names, preset_text
from tidegate.config.schema import WILDCARD, AnonymousSettings, Settings
from tidegate.config.shape import build, unknown_bands
from tidegate.config.tree import Map, Scalar, Seq, describe, overlay, parse_tree, read_text
from tidegate.config.values import nearest

_COMMAND_LINE = Mark("command line")
_OFF = {"off", "no", "false"}


def load_settings(
    path: str | Path | None,
    *,
    environ: Mapping[str, str],
    backend_url: str | None = None,
    engine: str | None = None,
    seats: int | None = None,
    preset: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Settings:
    """Read and validate a file, or build settings around one backend without any file.

    Args:
        path: the file; ``None`` for none.
        environ: where ``${NAME}`` is looked up.
        backend_url: one backend for any model (``models: [{name: "*", ...}]``, pool ``default``); with a file only
            where that has no ``models``.
        engine: engine of ``backend_url``; default ``openai``, which sends nothing that only some engines know.
        seats: seats of ``backend_url``.
        preset: takes the place of the file's ``preset``.
        overrides: more settings from the command line by dotted path, like ``{"gateway.listen": "127.0.0.1:0"}``.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[Problem] = []
    tree = Map(_COMMAND_LINE)
    if path is not None:
        tree = parse_tree(read_text(Path(path)), source=str(path), environ=environ, problems=problems)
    for dotted_path, text in (overrides or {}).items():
        _override(tree, dotted_path, text)
    if preset is not None:
        _override(tree, "preset", preset)
    if backend_url is not None:
        _add_backend(tree, problems, url=backend_url, engine=engine or Engine.OPENAI, seats=seats)
    else:
        problems += [
            Problem(
                f"--{key}",
                f"expected --backend beside it; for the backends of the file, set {key} there",
                mark=_COMMAND_LINE,
            )
            for key, value in (("engine", engine), ("seats", seats))
            if value is not None
        ]
    if path is None and backend_url is None:
        expected = "expected -c FILE with a settings file that has them, or --backend URL"
        problems.append(Problem("models", expected, mark=_COMMAND_LINE))
    return settings_of(tree, problems)


def parse_settings(text: str, *, environ: Mapping[str, str] | None = None, source: str = "settings") -> Settings:
    """Validate YAML text. ``source`` names it in errors.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[Problem] = []
    tree = parse_tree(text, source=source, environ=environ or {}, problems=problems)
    return settings_of(tree, problems)


def settings_of(tree: Map, problems: list[Problem]) -> Settings:
    """Validate a tree; ``problems`` are those found while it was read.

    Raises:
        ConfigError: with every problem found.
    """
    anonymous_off = _take_anonymous_off(tree)
    _lay_over_preset(tree, problems)
    settings = build(Settings, tree, problems)
    problems += unknown_bands(Settings, tree, _band_names(tree))
    if settings is None or problems:  # contradictions are looked for once every setting by itself can be read
        raise ConfigError(problems)
    problems += cross_check(settings, tree) or policy_problems(settings, tree)
    if problems:
        raise ConfigError(problems)
    if (
        settings.anonymous is None
        and not anonymous_off
        and not settings.tenants
        and settings.gateway.listen.is_loopback
    ):
        return settings.model_copy(update={"anonymous": AnonymousSettings(band="p1", max_band="p0")})
    return settings


def _take_anonymous_off(tree: Map) -> bool:
    node = tree.entries.get("anonymous")
    if isinstance(node, Scalar) and node.text is not None and node.text.lower() in _OFF:
        del tree.entries["anonymous"]
        return True
    return False


def _lay_over_preset(tree: Map, problems: list[Problem]) -> None:
    node = tree.entries.get("preset")
    name = DEFAULT_PRESET if node is None else node.text if isinstance(node, Scalar) else ""
    names = preset_names()
    if name not in names:
        came = describe(node) if node else ""
        hint = nearest(name or "", names)
        mark = node.mark if node else tree.mark
        problems.append(Problem("preset", f"expected one of {', '.join(names)}", came, hint, mark))
        name = DEFAULT_PRESET
        tree.entries.pop("preset", None)
    base = parse_tree(preset_text(name), source=f"preset {name}", environ={}, problems=problems)
    policy = overlay(base.entries["policy"], tree.entries.get("policy"))
    tree.put("policy", policy, tree.keys.get("policy", policy.mark))
    bands = policy.entries.get("bands") if isinstance(policy, Map) else None
    if isinstance(bands, Map):
        bands.entries = dict(sorted(bands.entries.items()))


def _band_names(tree: Map) -> list[str]:
    policy = tree.entries["policy"]
    bands = policy.entries.get("bands") if isinstance(policy, Map) else None
    return list(bands.entries) if isinstance(bands, Map) else []


def _override(tree: Map, dotted_path: str, text: str) -> None:
    *parents, last = dotted_path.split(".")
    for part in parents:
        child = tree.entries.get(part)
        if not isinstance(child, Map):
            child = Map(_COMMAND_LINE)
            tree.put(part, child, _COMMAND_LINE)
        tree = child
    tree.put(last, Scalar(text, text, _COMMAND_LINE), _COMMAND_LINE)


def _add_backend(tree: Map, problems: list[Problem], *, url: str, engine: str, seats: int | None) -> None:
    models = tree.entries.get("models")
    if models is not None and not (isinstance(models, Scalar) and models.text is None):
        expected = "expected either --backend or models in the file, not both"
        problems.append(Problem("models", expected, mark=tree.keys["models"]))
        return
    backend = Map(_COMMAND_LINE)
    for key, text in (("url", url), ("engine", engine), ("seats", None if seats is None else str(seats))):
        if text is not None:
            backend.put(key, Scalar(text, text, _COMMAND_LINE), _COMMAND_LINE)
    model = Map(_COMMAND_LINE)
    model.put("name", Scalar(WILDCARD, WILDCARD, _COMMAND_LINE), _COMMAND_LINE)
    model.put("backends", Seq([backend], _COMMAND_LINE), _COMMAND_LINE)
    tree.put("models", Seq([model], _COMMAND_LINE), _COMMAND_LINE)
