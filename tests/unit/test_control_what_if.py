"""A policy is tried on the traffic just seen, by the simulator in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli.scenario import load_scenario
from tidegate.config import key_digest, parse_settings, patch_policy
from tidegate.control import child
from tidegate.control.child import ChildError, simulate
from tidegate.control.what_if import MOST_REQUESTS, SPAN_S, WhatIf, scenario_of
from tidegate.core import Ticket, WorkEstimate
from tidegate.telemetry.arrivals import RecentArrivals
from tidegate.testing import run_virtual
from unit.control_stage import FILE, OPERATORS, Stage

PATCH = {"policy": {"bands": {"p2": {"floor": 0.1}}}, "what_if": True}
ODD = """
models:
  - {name: "org/a model", backends: [{name: b, url: "http://b:1", seats: 2}, {name: c, url: "http://c:1", seats: auto}]}
  - {name: "*", backends: [{name: d, url: "http://d:1", seats: 3}]}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def a_run(**bands: float) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "sent": 5,
            "answered": 4,
            "refused": {"expired": 1},
            "wait": {"p50": 0.1, "p99": bands.get(name, 0.5)},
            "ttft": {"p99": None},
        }
        for name in ("p0", "p1", "p2")
    ]
    return {"runs": {"tidegate": {"bands": rows}}}


class Simulator:
    """Stands for the child; ``runs`` collects what it was asked."""

    def __init__(self, fault: str = "") -> None:
        self.runs: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.fault = fault
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, scenario: str, traces: dict[str, str]) -> dict[str, Any]:
        self.runs.append((json.loads(scenario), traces))
        await self.go_on.wait()
        if self.fault:
            raise ChildError(self.fault)
        return a_run(p2=float(len(self.runs)))


async def seen(stage: Stage, count: int = 6) -> None:
    for number in range(count):
        work = WorkEstimate(100 + number, 10)
        ticket = Ticket(f"t{number}", "m", number % 3, "shop", work=work)
        stage.recorder.submitted(stage.driver.now(), ticket, [])
        await asyncio.sleep(1)


def staged(simulator: Simulator, text: str = FILE) -> Stage:
    return Stage(text, what_if=simulator)


def test_both_policies_run_on_the_arrivals_of_the_last_minute() -> None:
    async def story() -> None:
        simulator = Simulator()
        stage = staged(simulator)
        await seen(stage)
        answer = await stage.ask("POST", "/admin/policy/preview", PATCH)
        assert answer.status == 200, answer.body
        found = answer.json["what_if"]
        assert (found["requests"], found["span_s"], found["profile"]) == (6, 6, "h100-8b")
        assert (found["bands"]["p2"]["now"]["wait_p99_s"], found["bands"]["p2"]["then"]["wait_p99_s"]) == (1, 2)
        (now, traces), (then, same) = simulator.runs
        assert traces == same
        assert traces["m0.csv"].splitlines()[:3] == [
            "arrival_ms,prompt_tokens,output_tokens,tenant,band",
            "0.000,100,10,shop,p0",
            "1000.000,101,10,shop,p1",
        ]
        assert (now["policy"]["bands"]["p2"]["floor"], then["policy"]["bands"]["p2"]["floor"]) == (0.05, 0.1)
        assert (stage.edges, stage.audit.newest(9)) == ([], [])

    run_virtual(story())


def test_what_is_older_than_a_minute_does_not_count() -> None:
    async def story() -> None:
        stage = staged(Simulator())
        await seen(stage)
        await asyncio.sleep(SPAN_S + 1)
        answer = await stage.ask("POST", "/admin/policy/preview", PATCH)
        assert answer.json["what_if"] == {"error": "no requests came in the last 60 s"}

    run_virtual(story())


def test_one_at_a_time_and_only_where_it_is_wanted() -> None:
    async def story() -> None:
        simulator = Simulator()
        stage = staged(simulator)
        await seen(stage)
        assert (await stage.ask("POST", "/admin/policy/preview", {"policy": {}})).json["what_if"] is None
        assert (await stage.ask("POST", "/admin/policy/preview", PATCH | {"what_if": "yes"})).status == 400
        assert (await stage.ask("POST", "/admin/policy/preview", PATCH | {"what_if": {"profil": "x"}})).status == 400
        bad = {"policy": {"bands": {"p2": {"floor": 7}}}, "what_if": True}
        assert (await stage.ask("POST", "/admin/policy/preview", bad)).json["what_if"] is None
        assert simulator.runs == []
        simulator.go_on.clear()
        first = asyncio.ensure_future(stage.ask("POST", "/admin/policy/preview", PATCH))
        await asyncio.sleep(1)
        assert (await stage.ask("POST", "/admin/policy/preview", PATCH)).status == 409
        simulator.go_on.set()
        assert (await first).status == 200
        assert (await stage.ask("POST", "/admin/policy/preview", PATCH)).status == 200

    run_virtual(story())


def test_a_viewer_may_not_spend_computing_time() -> None:
    async def story() -> None:
        simulator = Simulator()
        stage = staged(simulator, FILE + f"control: {{{OPERATORS}}}")
        await seen(stage)
        assert (await stage.ask("POST", "/admin/policy/preview", PATCH, token="wall-token")).status == 403
        assert simulator.runs == []
        assert (await stage.ask("POST", "/admin/policy/preview", PATCH, token="duty-token")).status == 200

    run_virtual(story())


def test_what_goes_wrong_in_the_child_is_told_and_the_preview_stays() -> None:
    async def story() -> None:
        stage = staged(Simulator("the simulator took more than 20 s"))
        await seen(stage)
        for _ in range(2):
            answer = await stage.ask("POST", "/admin/policy/preview", PATCH)
            assert answer.json["what_if"] == {"error": "the simulator took more than 20 s"}
            assert answer.json["changes"][0]["to"] == 0.1

    run_virtual(story())


def test_the_scenario_is_one_that_the_simulator_reads(tmp_path: Path) -> None:
    """Model names of any kind, tenants with limits, and no key of anybody."""
    found: list[tuple[str, dict[str, str]]] = []
    keys = f"tenants: [{{name: shop, keys: ['{key_digest('secret')}'], limits: {{max_running: 3}}, weight: 2}}]"

    async def story() -> None:
        stage = Stage(ODD + keys)
        ring = RecentArrivals()
        for number, pool in enumerate(("org/a model", "default", "org/a model")):
            ring.note(float(number), Ticket(f"t{number}", pool, number, "shop", work=WorkEstimate(0, 0)))
        rows = list(ring.since(0.0))
        settings = patch_policy(stage.settings, {"bands": {"p2": {"shed_answer": {"model": "org/a model"}}}})
        backends = stage.driver.snapshot().backends
        found.append(scenario_of(settings, rows, backends, span_s=3.0, profile="slow"))

    run_virtual(story())
    ((scenario, traces),) = found
    assert key_digest("secret") not in scenario
    (tmp_path / "s.yaml").write_text(scenario)
    for name, text in traces.items():
        (tmp_path / name).write_text(text)
    loaded = load_scenario(str(tmp_path / "s.yaml"))
    assert [pool.name for pool in loaded.policy.pools] == ["m0", "m1"]
    assert [tenant.max_running for tenant in loaded.policy.tenants] == [3]
    assert sorted(traces) == ["m0.csv", "m1.csv"]


def test_the_ring_has_a_bound_and_gives_the_newest_in_order() -> None:
    ring = RecentArrivals(3)
    for number in range(5):
        ring.note(float(number), Ticket(f"t{number}", "m", 0, "shop"))
    assert [row.at for row in ring.since(0.0)] == [2, 3, 4]
    assert [row.at for row in ring.since(3.5)] == [4]
    assert MOST_REQUESTS < 50_000


@pytest.mark.anyio
@pytest.mark.timeout(90)  # a second; a child of the lowest priority gets little of a machine that does much else
async def test_a_child_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "TIMEOUT_S", 80.0)
    with pytest.raises(ChildError, match=r"^what-if\.yaml:1:\d+: duration: expected duration, it is required"):
        await simulate('{"engines": [{}], "sources": []}', {})


@pytest.mark.anyio
async def test_a_child_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "TIMEOUT_S", 0.2)
    children: list[int] = []
    begin = asyncio.create_subprocess_exec

    async def noted(*words: str, **more: Any) -> asyncio.subprocess.Process:
        process = await begin("sleep", "60", **more)
        children.append(process.pid)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    with pytest.raises(ChildError, match=r"more than 0\.2 s"):
        await simulate("{}", {})
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_real_simulator_judges_a_real_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "TIMEOUT_S", 8.0)
    settings = parse_settings(FILE.replace("seats: 1", "seats: 4"))
    ring, stage = RecentArrivals(), Stage(FILE.replace("seats: 1", "seats: 4"))
    began = stage.driver.now() - 30.0
    for number in range(600):
        work = WorkEstimate(1500, 250) if number % 10 else WorkEstimate(90, 60)
        ring.note(began + number / 20, Ticket(f"t{number}", "m", 2 if number % 10 else 0, "shop", work=work))
    stage.recorder.arrivals = ring
    strict = patch_policy(settings, {"discipline": "strict", "bands": {"p1": {"floor": 0}, "p2": {"floor": 0}}})
    found = await WhatIf(stage.driver, stage.recorder, simulate).ask(settings, strict, profile="a100-70b-tp4")
    if "took more than" in found.get("error", ""):
        pytest.skip("this machine is too busy for a process of the lowest priority")
    assert found.get("error") is None, found
    assert found["requests"] == 600
    for run in ("now", "then"):
        assert found["bands"]["p0"][run]["sent"] == 60
        assert found["bands"]["p0"][run]["wait_p99_s"] < found["bands"]["p2"][run]["wait_p99_s"]
