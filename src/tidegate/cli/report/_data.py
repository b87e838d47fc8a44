"""A result as JSON; equal results give equal bytes."""

from __future__ import annotations

import json
from typing import Any

from tidegate.simulation.claims import Verdict
from tidegate.simulation.report import as_data
from tidegate.simulation.run import Result


def result_json(result: Result) -> str:
    """Return the result as an indented JSON document."""
    return json.dumps(result_data(result), ensure_ascii=False, indent=1)


def result_data(result: Result) -> dict[str, Any]:
    """Return the result as plain values."""
    scenario = result.scenario
    return {
        "scenario": scenario.name,
        "description": scenario.description,
        "seed": scenario.seed,
        "duration_s": scenario.duration_s,
        "bands": list(scenario.bands),
        "holds": result.holds,
        "claims": [_claim(verdict) for verdict in result.verdicts],
        "runs": {name: as_data(report) for name, report in result.runs.items()},
    }


def _claim(verdict: Verdict) -> dict[str, Any]:
    return {
        "claim": verdict.claim.text,
        "holds": verdict.holds,
        "left": None if verdict.left is None else round(verdict.left, 6),
        "right": None if verdict.right is None else round(verdict.right, 6),
        "at_least": verdict.at_least,
    }
