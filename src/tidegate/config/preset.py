"""The shipped policies: whole files, one for each situation the product was made for."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

DEFAULT_PRESET = "flash-sale"


def preset_names() -> list[str]:
    """Names of the shipped presets, the default first."""
    names = sorted(entry.name.removesuffix(".yaml") for entry in _folder().iterdir() if entry.name.endswith(".yaml"))
    return sorted(names, key=lambda name: name != DEFAULT_PRESET)


def preset_text(name: str) -> str:
    """Text of a preset: a commented file that holds its whole policy.

    Raises:
        KeyError: there is no such preset.
    """
    if name not in preset_names():
        raise KeyError(name)
    return _folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def _folder() -> Traversable:
    return files("tidegate.config").joinpath("presets")
