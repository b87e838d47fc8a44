"""The page of metrics: Prometheus' text format, version 0.0.4.

A page has some 400 lines and is written on the event loop, which stands still meanwhile. prometheus-client takes 2.9 ms
for it. What stands before a value is the same on every page, so it is remembered here, and a page takes 0.5 ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from tidegate.telemetry.catalogue import Metric

REMEMBERED = 8192
"""Beginnings of lines; labels take few values, but backends come and go."""

_PLAIN = 1e6  # Go writes numbers from here on with an exponent


class Family(NamedTuple):
    """One metric and its samples: what stands before a value (``series``, ``bucket_series``), and the value."""

    metric: Metric
    samples: list[tuple[str, float]]


def page(families: Iterable[Family]) -> bytes:
    """Write the page."""
    parts: list[str] = []
    for metric, samples in families:
        parts.append(_head(metric))
        parts += [f"{start}{_number(value)}\n" for start, value in samples]
    return "".join(parts).encode()


@lru_cache(REMEMBERED)
def series(name: str, labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return what stands before a value."""
    pairs = sorted(zip(labels, values, strict=True))
    shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)
    return f"{name}{{{shown}}} " if shown else f"{name} "


@lru_cache(REMEMBERED)
def bucket_series(
    name: str, labels: tuple[str, ...], values: tuple[str, ...], edges: tuple[float, ...]
) -> tuple[str, ...]:
    """Return what stands before the values of a histogram: of its buckets up to +Inf, its count and its sum."""
    buckets = [series(f"{name}_bucket", (*labels, "le"), (*values, str(edge))) for edge in (*edges, "+Inf")]
    return (*buckets, series(f"{name}_count", labels, values), series(f"{name}_sum", labels, values))


@lru_cache(REMEMBERED)
def _head(metric: Metric) -> str:
    return f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind.value}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """Write a number as Go does: from a million on as 1.5e+06."""
    text = repr(float(value))
    if -_PLAIN < value < _PLAIN:
        return text
    if value == float("inf"):
        return "+Inf"
    whole, dot, part = text.partition(".")
    if value < 0 or not dot or "e" in part:
        return {"-inf": "-Inf", "nan": "NaN"}.get(text, text)
    digits = f"{whole[0]}.{whole[1:]}{part}".rstrip("0.")
    return f"{digits}e+{len(whole) - 1:02d}"
