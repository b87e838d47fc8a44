"""The scheduler class inside vLLM's own scheduling code, step by step and without a model; see ``inside_vllm``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.servers import ENGINE_TEST, ROOT, engine_command
from tidegate.testing.real_engines import VLLM_ENVIRON

pytestmark = ENGINE_TEST


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    """All scenarios in one process, since importing vLLM is what takes the time. It has none of our dependencies."""
    python = Path(engine_command("vllm")[0]).with_name("python")
    model = ROOT / ".venv-vllm" / "models" / "tiny"
    environ = {**os.environ, **VLLM_ENVIRON, "PYTHONPATH": str(ROOT / "src"), "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [str(python), str(Path(__file__).with_name("inside_vllm.py")), str(model)]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=600)
    assert not ran.returncode, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert {name: said["wrong"] for name, said in found.items() if said.get("wrong")} == {}
    return found


def test_a_waiting_p0_takes_the_slot_of_the_p2_with_the_least_computed_in_the_next_step(played: dict[str, Any]) -> None:
    assert (played["slots"]["steps"], played["slots"]["stopped"]) == (1, [0, 0, 0, 1])
    assert played["slots"]["tokens"] == [60, 60, 60]


def test_nobody_is_stopped_for_one_whose_adapter_does_not_fit(played: dict[str, Any]) -> None:
    assert played["adapters"]["stops"] == 0


def test_one_that_is_stopped_and_admitted_in_the_same_step_comes_to_the_worker_whole(played: dict[str, Any]) -> None:
    assert played["resumed"]["stops"] == 1


def test_a_p0_does_not_wait_for_the_long_prompt_of_a_p2(played: dict[str, Any]) -> None:
    """Stock vLLM computes it to its end first; here it pauses, but for no more than every second step."""
    assert played["prompts"]["AsyncScheduler"] == 15
    assert played["prompts"]["TidegateScheduler"] == 1
    assert played["prompts"]["p2 in a flood"] <= 2 * 15


def test_a_flood_of_p0_starves_no_p2(played: dict[str, Any]) -> None:
    """One p2 in about seven admissions, after two seconds of 20 steps; the others wait for that longer."""
    assert played["flood"]["steps"] < 300


def test_stops_keep_to_their_rate(played: dict[str, Any]) -> None:
    assert 15 <= played["rate"]["two a second"] <= 2 + 2 * 10
    assert played["rate"]["none"] == 0


def test_whatever_comes_ends_whole_and_no_higher_band_pays_for_a_lower(played: dict[str, Any]) -> None:
    assert played["anything"]["stops"] > 5


def test_what_does_not_fit_is_refused_at_the_start_by_name(played: dict[str, Any]) -> None:
    said = played["refused"]
    assert said["setting"].startswith(
        "RulesError --additional-config: tidegate.preemption_per_s: no such setting; expected one"
    )
    assert said["version"].startswith("RuntimeError tidegate.vllm_plugin supports vLLM 0.32.x; this is 0.99.0.")
    assert said["policy"].startswith("RuntimeError tidegate.vllm_plugin: expected --scheduling-policy priority")
    assert (said["missing"], said["imports"]) == ("[]", "[]")
