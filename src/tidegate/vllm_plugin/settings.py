"""Rules from what ``vllm serve --additional-config '{"tidegate": {…}}'`` says; what is not said is the default.

    {"tidegate": {"bands": {"p2": {"kv_watermark": 0.2}}, "preemptions_per_s": 5}}

Names and meanings are those of the gateway's settings file; times are numbers of seconds here. More bands than three
are made by naming them, without a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from tidegate.vllm_plugin.rules import BandRules, Rules, RulesError

KEY = "tidegate"
ANY_VERSION = "any_version"
"""Says that a version of vLLM that is not listed is to be tried."""


def read_rules(additional_config: object) -> tuple[Rules, bool]:
    """Give the rules, and whether a version that is not listed may be tried.

    Raises:
        RulesError: names the setting.
    """
    said = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
    found = dict(_mapping(KEY, said))
    anyhow = _one(f"{KEY}.{ANY_VERSION}", found.pop(ANY_VERSION, False), like=False)
    rules = Rules()
    try:
        if "bands" in found:
            rules = replace(rules, bands=_bands(found.pop("bands"), rules.bands))
        return _changed(rules, found, at=KEY), anyhow
    except RulesError as error:
        raise RulesError(f"{KEY}.{str(error).removeprefix(f'{KEY}.')}") from None


def _bands(said: object, rules: tuple[BandRules, ...]) -> tuple[BandRules, ...]:
    at = f"{KEY}.bands"
    found = dict(_mapping(at, said))
    known = [f"p{index}" for index in range(8)]
    for name in found:
        if name not in known:
            raise RulesError(f"{at}.{name}: expected bands named {known[0]} to {known[-1]}, the highest first")
    count = max([len(rules), *(known.index(name) + 1 for name in found)])
    lowest = rules[-1]
    bands = list(rules) + [lowest] * (count - len(rules))
    for gap in known[len(rules) : count]:
        if gap not in found:
            raise RulesError(f"{at}.{gap}: expected it too, since a lower band is named")
    return tuple(
        _changed(band, _mapping(f"{at}.{name}", found.get(name, {})), at=f"{at}.{name}")
        for name, band in zip(known, bands, strict=False)
    )


def _changed(default: Any, said: Mapping[str, object], *, at: str) -> Any:
    names = {field.name for field in fields(default)} - {"bands"}
    changes = {}
    for name, value in said.items():
        if name not in names:
            expected = ", ".join(sorted(names | ({"bands", ANY_VERSION} if at == KEY else set())))
            raise RulesError(f"{at}.{name}: no such setting; expected one of {expected}")
        changes[name] = _one(f"{at}.{name}", value, like=getattr(default, name))
    return replace(default, **changes)


def _one(at: str, value: object, *, like: Any) -> Any:
    """Check the type of a value; a whole number will do for a number."""
    if isinstance(like, bool) or isinstance(value, bool):
        if not (isinstance(like, bool) and isinstance(value, bool)):
            raise RulesError(f"{at}: expected {_words(like)}, got {value!r}")
        return value
    if isinstance(value, int) or (isinstance(value, float) and isinstance(like, float)):
        return type(like)(value)
    raise RulesError(f"{at}: expected {_words(like)}, got {value!r}")


def _words(like: object) -> str:
    return {bool: "true or false", int: "a whole number"}.get(type(like), "a number")


def _mapping(at: str, said: object) -> Mapping[str, object]:
    if not isinstance(said, Mapping):
        raise RulesError(f"{at}: expected a mapping, got {said!r}")
    return said
