"""Scenario files: found, read with the product's own schema for the policy, and made into ``simulation.Scenario``."""

from tidegate.cli.scenario._estimates import GatewayEstimator
from tidegate.cli.scenario._find import find_scenario, scenario_text, shipped_scenarios
from tidegate.cli.scenario._load import load_scenario, parse_scenario

__all__ = [
    "GatewayEstimator",
    "find_scenario",
    "load_scenario",
    "parse_scenario",
    "scenario_text",
    "shipped_scenarios",
]
