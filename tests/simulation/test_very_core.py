"""The simulation runs the gateway's own scheduler: the same class from the same place, no copy of any part of it."""

from __future__ import annotations

import ast
from pathlib import Path

import tidegate.core
from tidegate import clustering, runtime, simulation
from tidegate.core import Policy, Scheduler
from tidegate.simulation import World, run
from tidegate.simulation.run import RUNS, TIDEGATE, gate_named
from tidegate.simulation.scenario import Arrivals, EngineSpec, Kind, Scenario, Source

CORE, SIMULATION = (Path(package.__file__ or "").parent for package in (tidegate.core, simulation))


def functions(folder: Path) -> dict[str, str]:
    """Bodies of all functions of some length, without names, places and docstrings, by where they are."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                text = "\n".join(ast.dump(statement) for statement in body)
                if len(text) > 300:
                    found[text] = f"{path.name}:{node.name}"
    return found


def test_the_world_builds_the_class_that_the_gateway_drives() -> None:
    world = World(Policy(), {}, [])
    assert type(world.scheduler) is Scheduler
    assert vars(clustering)["Scheduler"] is Scheduler
    assert Scheduler.__module__ == "tidegate.core.scheduler"
    assert runtime.__name__ not in (SIMULATION / "world.py").read_text()


def test_the_policys_own_run_is_decided_by_that_class_and_not_by_a_baseline() -> None:
    source = Source("a", Arrivals(Kind.FIXED), band=0)
    scenario = Scenario("s", Policy(), (EngineSpec("b"),), (source,), 1.0)
    assert gate_named(TIDEGATE, scenario, {}) is scenario.policy
    assert RUNS[0] == TIDEGATE
    assert vars(run)["World"] is World


def test_nothing_of_the_core_is_copied() -> None:
    core, ours = functions(CORE), functions(SIMULATION)
    assert len(core) > 150
    assert len(ours) > 60
    assert {ours[text]: core[text] for text in core.keys() & ours.keys()} == {}


def test_no_name_of_the_core_means_something_else_in_the_simulation() -> None:
    public = set(tidegate.core.__all__)
    for path in sorted(SIMULATION.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name in public - {"Progress"}:
                raise AssertionError(f"{path.name} defines {node.name}, which is the core's")
