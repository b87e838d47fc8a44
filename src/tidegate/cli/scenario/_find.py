"""Where scenarios and their traces are: files of the user's, those that ship, and folders of public traces."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

from tidegate.config import ConfigError, Mark, Problem, nearest

_SUFFIX = ".yaml"


def shipped_scenarios() -> list[str]:
    """Names of the scenarios that come with the package."""
    return sorted(entry.name.removesuffix(_SUFFIX) for entry in _folder().iterdir() if entry.name.endswith(_SUFFIX))


def scenario_text(name: str) -> str:
    """Text of a shipped scenario.

    Raises:
        KeyError: there is none of this name.
    """
    if name not in shipped_scenarios():
        raise KeyError(name)
    return _folder().joinpath(name + _SUFFIX).read_text(encoding="utf-8")


def find_scenario(given: str) -> Path:
    """Return the file of a scenario given by path or by the name of a shipped one.

    Raises:
        ConfigError: there is neither.
    """
    path = Path(given)
    if path.suffix in (_SUFFIX, ".yml") or path.is_file():
        return path  # a missing one is told when it is read
    names = shipped_scenarios()
    if given in names:
        return _real(_folder().joinpath(given + _SUFFIX))
    expected = f"expected a file, or one of the shipped scenarios: {', '.join(names)}"
    raise ConfigError([Problem("", expected, repr(given), nearest(given, names), Mark("scenario"))])


def find_trace(name: str, beside: Path, folders: Sequence[Path]) -> Path | None:
    """Return a trace's file: as written, beside the scenario, in ``folders``, or shipped; ``None`` without any."""
    if Path(name).is_absolute():
        return Path(name) if Path(name).is_file() else None
    for folder in (beside, *folders):
        if (folder / name).is_file():
            return folder / name
    if "/" not in name and (data := files("tidegate.cli").joinpath("data", name)).is_file():
        return _real(data)
    return None


def _folder() -> Traversable:
    return files("tidegate.cli").joinpath("scenarios")


def _real(resource: Traversable) -> Path:
    with as_file(resource) as path:  # wheels are installed as files
        return path
