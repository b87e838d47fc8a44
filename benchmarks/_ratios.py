"""Ratios of figures of one run, kept from run to run: they move when the code does, and hardly with the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

RECORDED = Path(__file__).with_name("ratios.json")
MOVED = 0.10
"""A ratio that differs by more than this part of the recorded one is told."""

noted: dict[str, float] = {}
"""Ratios of this run by name."""


def note(name: str, ratio: float) -> None:
    """Keep one ratio of this run."""
    noted[name] = round(ratio, 2)


def moved(now: Mapping[str, float], before: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Give name, recorded and present value of each ratio of ``now`` that moved; one without a record did not."""
    return [
        (name, before[name], ratio)
        for name, ratio in sorted(now.items())
        if name in before and abs(ratio - before[name]) > MOVED * before[name]
    ]


def recorded(path: Path = RECORDED) -> dict[str, float]:
    """Read the ratios of the last recorded run; none when there is no record."""
    if not path.exists():
        return {}
    found: dict[str, float] = json.loads(path.read_text())
    return found


def record(now: Mapping[str, float], path: Path = RECORDED) -> None:
    """Write ``now`` over what is recorded under the same names."""
    path.write_text(json.dumps(dict(sorted((recorded(path) | dict(now)).items())), indent=2) + "\n")
