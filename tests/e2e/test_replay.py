"""``tidegate replay`` against a real gateway: timing kept, the report of a simulation, and the same decisions anew."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tidegate.core import (
    Action,
    Dispatch,
    Drain,
    Evict,
    Health,
    Paused,
    Policy,
    RateLimit,
    Reading,
    Reject,
    Release,
    Requeue,
    Scheduler,
    Seats,
    Signal,
    Ticket,
    Waiter,
    WorkEstimate,
)
from tidegate.runtime.forms import ReleaseForm, TicketForm
from tidegate.runtime.replay import replay as decided_anew
from tidegate.simulation import Request, World
from tidegate.simulation.servers import NEVER, Leg, Progress
from tidegate.testing.gateway_process import GatewayProcess, gateway_process
from tidegate.testing.processes import engine_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

CONFIG = """\
gateway: {{drain_timeout: 1s}}
anonymous: {{band: p1, max_band: p0}}
models:
  - {{name: sim, backends: [{{name: b, url: "{url}", engine: tidegate, seats: {seats}}}]}}
"""

SCENARIO = """\
duration: 12s
drain: 60s
seed: 3
engines: [{profile: slow}]
sources:
  - {name: vip, band: p0, arrivals: {law: poisson, rate: 2}, prompt_tokens: 30, output_tokens: 5, model: m}
  - {name: chat, band: p1, arrivals: {law: fixed, rate: 4}, prompt_tokens: {low: 20, high: 60}, output_tokens: 20}
  - {name: jobs, band: p2, arrivals: {law: batch, rows: 20}, prompt_tokens: 40, output_tokens: 30}
  - {name: endless, band: p2, arrivals: {law: endless}, window: 3, prompt_tokens: 20, output_tokens: 20}
claims: [p0.answered_part >= 100%, all.sent >= 80]
"""


def rehearse(gateway: GatewayProcess, folder: Path, text: str, *words: str, status: int = 0) -> dict[str, Any]:
    file = folder / "scenario.yaml"
    file.write_text(text)
    command = [sys.executable, "-m", "tidegate", "replay", str(file), "--url", gateway.url, "--model", "sim", "--json"]
    done = subprocess.run([*command, *words], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return cast("dict[str, Any]", json.loads(done.stdout))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_a_scenario_is_sent_in_its_timing_and_reported_as_a_simulation_is(folder: Path) -> None:
    events = folder / "events.jsonl"
    config = CONFIG.format(url="{url}", seats=4) + "policy: {preempt_rate: 0}\n"  # the world below stops nobody
    with (
        engine_process(profile="slow", speed=8, noise=0) as url,
        gateway_process("--event-log", str(events), config=config.replace("{url}", url)) as gateway,
    ):
        data = rehearse(gateway, folder, SCENARIO, "--speed", "2", "--drain", "3")
        seen = gateway.requests()
    own = data["runs"]["tidegate"]
    p0, p1, p2 = own["bands"]
    assert p1["sent"] == 48
    assert p1["answered"] == 48
    assert p0["answered"] == p0["sent"] > 10
    assert p2["sent"] > 20
    assert own["total"]["open"] == 0
    assert own["total"]["refused"] == {}
    assert {source["name"]: source["sent"] for source in own["sources"]}["jobs"] == 20
    assert (data["duration_s"], own["seconds"]) == (6.0, 9.0)  # 12 s, twice as fast, and 3 s for what is open
    assert p1["answer_tokens"] == 48 * 20
    assert p0["wait"]["p50"] <= p0["ttft"]["p50"] <= p0["total"]["p50"]
    assert [claim["holds"] for claim in data["claims"]] == [True, True]
    assert len(seen) == own["total"]["sent"]
    assert {line["band"] for line in seen} == {"p0", "p1", "p2"}
    assert_the_same_decisions(events)


def test_waits_count_from_the_moment_a_request_was_due(folder: Path) -> None:
    """An engine that takes one at a time, a quarter of a second each, and eight a second: the last waits for all."""
    text = """\
duration: 4s
engines: [{profile: slow}]
sources: [{name: a, band: p1, arrivals: {law: fixed, rate: 8}, prompt_tokens: 10, output_tokens: 40, max_tokens: exact}]
policy: {bands: {p1: {shed_hopeless: false}}}
"""
    config = CONFIG.format(url="{url}", seats=1) + "policy: {bands: {p1: {shed_hopeless: false}}}\n"
    with (
        engine_process(profile="slow", speed=4, noise=0) as url,
        gateway_process(config=config.replace("{url}", url)) as gateway,
    ):
        data = rehearse(gateway, folder, text, "--drain", "12")
    band = data["runs"]["tidegate"]["bands"][1]
    assert (band["sent"], band["answered"]) == (32, 32)
    assert data["client_late_p99_s"] < 3.0
    assert band["wait"]["max"] > 2.0
    assert band["total"]["max"] > band["ttft"]["max"] > band["wait"]["max"] - 0.1
    assert sum(data["runs"]["tidegate"]["over_time"]["sent"]["p1"][:80]) == 16  # half of the run, half of the requests


def test_refusals_are_reported_by_reason_and_faults_end_with_1(folder: Path) -> None:
    text = """\
duration: 2s
engines: [{profile: slow}]
sources: [{name: a, band: p2, arrivals: {law: batch, rows: 30}, prompt_tokens: 10, output_tokens: 40}]
"""
    policy = "policy: {bands: {p2: {capacity: 5}}}\n"
    with (
        engine_process(profile="slow", speed=3, noise=0) as url,
        gateway_process(config=CONFIG.format(url=url, seats=1) + policy) as gateway,
    ):
        data = rehearse(gateway, folder, text, "--drain", "6")
        band = data["runs"]["tidegate"]["bands"][2]
        assert band["refused"] == {"queue_full": 24}
        assert band["answered"] == 6
        missing = rehearse(gateway, folder, text, "--model", "nothing", "--drain", "1", status=1)
    assert missing["runs"]["tidegate"]["bands"][2]["refused"] == {"unknown_model": 30}


# -- the same decisions ------------------------------------------------------------------------------------------------

Decision = tuple[str, str, str]
Event = tuple[float, str, list[Any]]
SIGNALS: dict[str, Any] = {kind.__name__: kind for kind in (Drain, Health, Paused, RateLimit, Reading, Seats, Waiter)}


def assert_the_same_decisions(path: Path) -> None:
    """The recorded run, by a fresh core as it was told, and by a simulated world with the recorded times."""
    anew = decisions_of([action for _, action in decided_anew(path)])
    assert sum(each[0] == "Dispatch" for each in anew) > 80
    assert len({each[2] for each in anew}) > 2  # turns and floors of several bands
    events = [msgspec.json.decode(line, type=Event) for line in path.read_bytes().splitlines()]
    assert in_a_world(events) == anew


def decisions_of(actions: list[Action]) -> list[Decision]:
    found: list[Decision] = []
    for action in actions:
        if isinstance(action, Dispatch):
            lease = action.lease
            found.append(("Dispatch", action.ticket.id, f"{lease.kind} {lease.backend} {lease.band}"))
        elif isinstance(action, Reject | Evict):
            found.append((type(action).__name__, action.ticket.id, action.reason))
    return found


class Told(Scheduler):
    """The gateway's scheduler, which notes its decisions under the recorded ids; it is woken when it was woken live."""

    def __init__(self, policy: Policy, names: list[str], releases: dict[int, Release]) -> None:
        super().__init__(policy)
        self._names, self._releases = names, releases
        self.decisions: list[Decision] = []

    def next_wakeup(self) -> float | None:
        return None

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        return self._noted(super().submit(now, ticket))

    def release(self, now: float, lease_id: int, release: Release | Requeue) -> list[Action]:
        return self._noted(super().release(now, lease_id, self._releases[lease_id]))

    def observe(self, now: float, signal: Signal | None) -> list[Action]:
        return self._noted(super().tick(now) if signal is None else super().observe(now, signal))

    def _noted(self, actions: list[Action]) -> list[Action]:
        self.decisions += [(kind, self._names[int(number)], how) for kind, number, how in decisions_of(actions)]
        return actions


class Recorded:
    """A server that ends each work at the recorded time, and brings the recorded facts at theirs."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[float, World], None]]] = []  # the next one last
        self.numbers: dict[int, int] = {}  # by lease: leases are counted in order of dispatch

    def start(self, now: float, number: int, request: Request, after: Leg | None = None) -> None:
        self.numbers[len(self.numbers) + 1] = number

    def pause(self, number: int) -> bool:
        raise AssertionError("nobody is stopped")

    def stop(self, number: int) -> None:
        raise AssertionError("nobody left")

    def work(self, number: int) -> None:
        return None

    def next_event(self) -> float:
        return self.due[-1][0] if self.due else NEVER

    def advance(self, now: float, progress: Progress) -> None:
        self.due.pop()[1](now, cast("World", progress))


Happening = Callable[[float, World], None]


def _ending(server: Recorded, lease: int) -> Happening:
    return lambda now, world: world.finished(now, server.numbers[lease])


def _fact(signal: Signal) -> Happening:
    return lambda now, world: world.observe(now, signal)


def in_a_world(events: list[Event]) -> list[Decision]:
    """Let the simulated world arrive, end and observe what was recorded; return what its scheduler decided."""
    policy = msgspec.convert(events[0][2][0], Policy, dec_hook=lambda kind, value: kind(value))
    tickets = [msgspec.convert(arguments[0], TicketForm).made() for _, kind, arguments in events if kind == "submit"]
    came = [at for at, kind, _ in events if kind == "submit"]
    server, releases = Recorded(), dict[int, Release]()
    for at, kind, arguments in reversed(events[1:]):
        if kind == "release":
            lease = arguments[0]
            releases[lease] = msgspec.convert(arguments[1], ReleaseForm).made()
            server.due.append((at, _ending(server, lease)))
        elif kind == "tick":
            server.due.append((at, _fact(cast("Signal", None))))
        elif kind.startswith("observe."):
            signal = msgspec.convert(arguments[0], SIGNALS[kind.removeprefix("observe.")])
            server.due.append((at, _fact(signal)))
    scheduler = Told(policy, [ticket.id for ticket in tickets], releases)
    arrivals = [Request(at, t.band, t.tenant, pool=t.pool) for at, t in zip(came, tickets, strict=True)]
    works = iter([ticket.work for ticket in tickets])

    def estimate(_: Request) -> WorkEstimate:
        return next(works)

    World(scheduler, {"b": server}, arrivals, estimate=estimate).run()
    return scheduler.decisions
