"""Whatever stands in a file: it is read, or every problem is told. Nothing else is raised."""

from __future__ import annotations

import contextlib

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.config import ConfigError, parse_settings, preset_text

TEXT = preset_text("flash-sale")
PIECES = [
    "*a",
    "&a ",
    "!!int ",
    "<<: ",
    "${X}",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "\n",
    "  ",
    "'",
    '"',
    "|",
    "0755",
    "~",
    "p9",
]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(TEXT)), st.integers(0, 40), st.lists(st.sampled_from(PIECES), max_size=4) | st.just([]))
def test_a_damaged_file_is_read_or_its_problems_are_told(start: int, cut: int, pieces: list[str]) -> None:
    damaged = TEXT[:start] + "".join(pieces) + TEXT[start + cut :]
    with contextlib.suppress(ConfigError):
        parse_settings(damaged)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_read_or_its_problems_are_told(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_settings(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
SECTIONS = ["gateway", "control", "preset", "anonymous", "models", "tenants", "rules", "policy", "objectives", "jobs"]


@settings(max_examples=75, deadline=None)
@given(st.dictionaries(st.sampled_from(SECTIONS), values, max_size=4))
def test_any_shape_is_read_or_its_problems_are_told(data: dict[str, object]) -> None:
    with contextlib.suppress(ConfigError):
        parse_settings(yaml.safe_dump(data, allow_unicode=True))
