"""Write the settings reference from the schema.

``python -m tidegate.config.reference > docs/reference/configuration.md``; a test compares that file with this output,
so a setting cannot be added without its line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tidegate.config.fields import Kind, Section
from tidegate.config.later import NOT_YET, NOT_YET_VALUES
from tidegate.config.load import load_settings
from tidegate.config.policy import BandSettings, PolicySettings
from tidegate.config.preset import DEFAULT_PRESET, preset_names
from tidegate.config.schema import Settings
from tidegate.config.shape import field_annotation, member
from tidegate.config.values import Address, duration_text, size_text

_INTRO = """\
# Settings

<!-- Generated: python -m tidegate.config.reference > docs/reference/configuration.md -->

`tidegate init` writes a commented file to start from, `tidegate check -c FILE` judges one, `tidegate serve -c FILE`
runs it. Every key is optional but `models`, and even that when `--backend URL` is given: then one model called `*`
accepts any model name, and its pool is called `default`.

## How values are written

| kind | written |
|---|---|
| duration | `250ms`, `15s`, `30min`, `24h`, `7d`; a bare number is seconds |
| size | `32MiB`, `512KiB`, `1GB`; a bare number is bytes |
| part | exact: `0.05`, `5%` and `1/20` are the same |
| whole number | decimal, digits may be grouped: `20_000`; no leading zero |
| text | as written: `no`, `on` and `0755` are not turned into something else |
| name | text of 1 to 128 characters of `A-Za-z0-9._:-` |
| `true`, `false` | also `yes`, `no`, `on`, `off` |
| secret | best `${NAME}`, from the environment; never printed. `$${NAME}` is the text `${NAME}` itself |
| `sha256:` digest | `tidegate keygen` prints a key with its digest; a key itself is refused |
| band | `p0` (highest) to `p7`, one that `policy.bands` has |

- A key that is not known, or stands twice, is an error, and so is a setting that this version does not have.
- A section whose entries are all commented out counts as absent. `key: null` (or nothing) takes back an optional value
  of the preset, like `promote_after:`.
- Values in `rules[].when` match exactly, or as a prefix when they end with `*`.
- All problems are reported at once, each with line and column. Contradictions between settings are looked for once each
  setting by itself can be read.
- The file is YAML in UTF-8 of at most 8 MiB, one document, at most 24 levels deep, with at most 100 aliases.
"""

_PRESET_NOTES = """\
`reserve: auto` is measured for each pool: of 64 seats held 5 s each, at 3 times the load, 7 free seats keep the 99th
percentile of the p0 wait at 0 ms up to a p0 load of 40 %. A fixed number takes its place where you want one; it must
stay below the seats of every pool.
"""


def reference() -> str:
    """Return the whole page."""
    return "\n".join([_INTRO, *_sections(Settings, "", "The whole file"), *_presets(), *_later()]).rstrip() + "\n"


def _sections(model: type[Section], path: str, title: str) -> Iterator[str]:
    if path:
        yield f"## `{path}`\n"
        yield f"{title}\n"
    else:
        yield f"## {title}\n"
    yield "| setting | type | default | meaning |\n|---|---|---|---|"
    inner: list[tuple[str, type[Section]]] = []
    for key, info in model.model_fields.items():
        if f"{path}.{key}".removeprefix(".") in NOT_YET:
            continue
        shape, item = _innermost(field_annotation(model, key))
        yield f"| `{key}` | {_type(field_annotation(model, key))} | {_default(info, item)} | {info.description} |"
        if isinstance(item, type) and issubclass(item, Section):
            inner.append((f"{path}.{key}".removeprefix(".") + shape, item))
    yield ""
    for place, section in inner:
        yield from _sections(section, place, (section.__doc__ or "").split("\n\n")[0].replace("``", "`").strip())


def _innermost(annotation: Any) -> tuple[str, Any]:
    shape, inner = member(annotation)
    if shape == "list":
        deeper, item = _innermost(inner)
        return "[]" + deeper, item
    if shape == "map":
        deeper, item = _innermost(inner)
        return ".*" + deeper, item
    return "", inner


def _type(annotation: Any) -> str:
    shape, inner = member(annotation)
    if shape == "model":
        return "mapping"
    if shape == "list":
        return f"list of {_type(inner)}s" if _type(inner).isalpha() else f"list of {_type(inner)}"
    if shape == "map":
        return f"mapping of name to {_type(inner)}"
    kinds = [item.label for item in getattr(inner, "__metadata__", ()) if isinstance(item, Kind)]
    return kinds[0]


def _default(info: FieldInfo, item: Any) -> str:
    if isinstance(info.json_schema_extra, dict) and "shown" in info.json_schema_extra:
        return str(info.json_schema_extra["shown"])
    return "required" if info.default is PydanticUndefined else _shown(info.default, item)


def _shown(value: Any, item: Any) -> str:
    label = next((kind.label for kind in getattr(item, "__metadata__", ()) if isinstance(kind, Kind)), "")
    if value is None or value in ((), {}, "") or isinstance(value, Section):
        return "–"
    if label.startswith("duration"):
        return f"`{duration_text(value)}`"
    if label == "size":
        return f"`{size_text(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Fraction | float):
        return f"`{float(value):g}`"
    return f"`{value}`" if isinstance(value, str | int | Address) else str(value)


def _presets() -> Iterator[str]:
    policies = {name: _policy(name) for name in preset_names()}
    base = policies[DEFAULT_PRESET]
    yield "## Presets\n"
    yield f"The bands of `{DEFAULT_PRESET}`, the default (– : none):\n"
    yield f"| setting | {' | '.join(base.bands)} |\n|---|{'---|' * len(base.bands)}"
    for key in BandSettings.model_fields:
        if key != "message":
            _, item = member(field_annotation(BandSettings, key))
            values = (_shown(getattr(band, key), item) for band in base.bands.values())
            yield f"| `{key}` | {' | '.join(values)} |"
    yield "\n| preset | differs in |\n|---|---|"
    for name, policy in policies.items():
        yield f"| `{name}` | {'; '.join(_differences(policy, base)) or '–'} |"
    yield f"\n{_PRESET_NOTES}"


def _policy(preset: str) -> PolicySettings:
    return load_settings(None, environ={}, backend_url="http://127.0.0.1:8000", preset=preset).policy


def _differences(policy: PolicySettings, base: PolicySettings) -> Iterator[str]:
    for key in PolicySettings.model_fields:
        if key != "bands" and getattr(policy, key) != getattr(base, key):
            yield f"`{key}: {getattr(policy, key)}`"
    for name, band in policy.bands.items():
        for key in BandSettings.model_fields:
            if getattr(band, key) != getattr(base.bands[name], key):
                _, item = member(field_annotation(BandSettings, key))
                yield f"{name} `{key}` {_shown(getattr(band, key), item)}"


def _later() -> Iterator[str]:
    if not NOT_YET and not NOT_YET_VALUES:
        return
    yield "## Not in this version\n"
    yield "These settings are refused by name, because a setting that does nothing would pretend.\n"
    yield "| setting | belongs to |\n|---|---|"
    for path, belongs in NOT_YET.items():
        yield f"| `{path}` | {belongs} |"
    for (path, value), belongs in NOT_YET_VALUES.items():
        shown = "{model: NAME}" if value == "{}" else value
        yield f"| `{path}: {shown}` | {belongs} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
