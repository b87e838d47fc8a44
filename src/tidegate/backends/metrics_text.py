"""Find the samples of a few metrics in a page of the Prometheus text format, without parsing the rest.

A page of vLLM has thousands of histogram lines of which six lines matter, so each name is searched for and only its
lines are read. What is not a proper sample line is skipped, never an error: an engine's page is a hint, not a contract.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

# Possessive (*+), so that a hostile page cannot make the search go back over what it has passed.
_REST = re.compile(
    rb"(?:\{(?P<labels>(?:[^\"{}\n]|\"(?:[^\"\\\n]|\\.)*+\")*+)\})?"
    rb"[ \t]++(?P<value>[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?)"
    rb"(?:[ \t]++-?\d++)?[ \t]*+\r?(?:\n|\Z)"
)
_LABEL = re.compile(rb"([a-zA-Z_]\w*)\s*=\s*\"((?:[^\"\\\n]|\\.)*+)\"")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(slots=True, frozen=True)
class Sample:
    """One line of a page: its labels and its value, which is finite."""

    labels: dict[str, str]
    value: float


def find_samples(page: bytes, name: bytes) -> list[Sample]:
    """Give the samples of one metric in the order in which they stand.

    Lines that are malformed or whose value is NaN or infinite are left out.

    Args:
        page: the whole page.
        name: of the metric exactly as it stands on the page, so with ``_total`` for most counters.
    """
    found = []
    at = 0 if page.startswith(name) else _next_line(page, name, 0)
    while at >= 0:
        match = _REST.match(page, at + len(name))
        if match is not None and isfinite(value := float(match["value"])):
            found.append(Sample(_labels(match["labels"]), value))
        at = _next_line(page, name, at)
    return found


def _next_line(page: bytes, name: bytes, at: int) -> int:
    """Find the next line that starts with ``name``; -1 when there is none."""
    found = page.find(b"\n" + name, at)
    return -1 if found < 0 else found + 1


def _labels(text: bytes | None) -> dict[str, str]:
    if not text:
        return {}
    return {key.decode(): _plain(value.decode("utf-8", "replace")) for key, value in _LABEL.findall(text)}


def _plain(value: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), value) if "\\" in value else value
