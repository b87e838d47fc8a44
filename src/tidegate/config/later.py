"""Settings of SPEC §14 that this version does not have yet: one table, by path.

Whoever builds a feature deletes its rows and adds the setting to the schema; a row comes before the schema, so that a
setting can be described there before all of it works. ``[]`` stands for any list index, ``*``
for any name. They are refused by name, because a setting that is accepted and does nothing is worse than none.
"""

from __future__ import annotations

NOT_YET: dict[str, str] = {}
"""Path to what the setting belongs to."""

NOT_YET_VALUES: dict[tuple[str, str], str] = {}
"""Path and value (``{}`` stands for a mapping) to what the value belongs to, where other values are supported."""


def _pattern(path: tuple[str | int, ...]) -> str:
    parts = ["[]" if isinstance(part, int) else f".{part}" for part in path]
    if path[:2] == ("policy", "bands") and len(path) > 2:
        parts[2] = ".*"
    return "".join(parts).removeprefix(".")


def not_yet(path: tuple[str | int, ...], value: str | None = None) -> str | None:
    """Return what a setting (or one value of it) belongs to, if this version does not have it."""
    pattern = _pattern(path)
    return NOT_YET.get(pattern) if value is None else NOT_YET_VALUES.get((pattern, value))
