"""Live changes: whole or not at all, and nobody who waits is lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from tidegate.config import ConfigError, Problem, Settings, parse_settings
from tidegate.core import Lease, Release, Ticket
from tidegate.testing import run_virtual
from unit.control_stage import FILE, JSON, LOCAL, OPERATORS, Stage

ROW = {"name": "b", "url": "http://b:1", "seats": 1}


def test_a_policy_is_read_changed_and_written_whole() -> None:
    async def story() -> None:
        stage = Stage()
        policy = (await stage.get("/admin/policy")).json
        policy["bands"]["p2"]["ceiling"] = 0.5
        policy["bands"]["p1"]["ttl"] = "20s"
        answer = await stage.ask("PUT", "/admin/policy", policy)
        assert answer.status == 200
        assert answer.json["changes"] == [
            {"what": "policy.bands.p1.ttl", "from": "15s", "to": "20s"},
            {"what": "policy.bands.p2.ceiling", "from": 1, "to": 0.5},
        ]
        assert (await stage.get("/admin/policy")).json == policy
        (record,) = (await stage.get("/admin/audit")).json["records"]
        assert (record["who"], record["action"], record["changes"]) == ("local", "policy", answer.json["changes"])

    run_virtual(story())


def test_a_change_loses_nobody_who_waits() -> None:
    async def story() -> None:
        stage = Stage()
        first = await stage.driver.acquire(Ticket("first", "m", 2, "t"))
        waiting = [asyncio.create_task(stage.driver.acquire(Ticket(f"w{i}", "m", i % 3, "t"))) for i in range(30)]
        await asyncio.sleep(0.1)
        patch = {"queue_capacity": 1, "discipline": "weighted", "bands": {"p2": {"capacity": 1, "weight": 3}}}
        assert (await stage.ask("PATCH", "/admin/policy", patch)).status == 200
        await stage.ask("PUT", "/admin/backends", {"models": [{"name": "m", "backends": [{**ROW, "seats": 90}]}]})
        leases = await asyncio.gather(*waiting)
        assert all(isinstance(lease, Lease) for lease in leases)
        assert isinstance(first, Lease)
        stage.driver.release(first, Release())

    run_virtual(story())


def test_no_change_is_no_record() -> None:
    async def story() -> None:
        stage = Stage()
        answer = await stage.ask("PATCH", "/admin/policy", {})
        seen = (answer.status, answer.json, stage.audit.newest(9), stage.edges)
        assert seen == (200, {"changes": [], "record": None}, [], [])

    run_virtual(story())


@pytest.mark.parametrize(
    ("method", "path", "body", "param", "message"),
    [
        ("PATCH", "/admin/policy", {"bands": {"p2": {"ceiling": 5}, "p1": {"wieght": 1}}},
         "policy.bands.p1.wieght", "policy.bands.p1.wieght: unknown setting; did you mean 'weight'? (and 1 more)"),
        ("PATCH", "/admin/policy", {"overtake_cap": 0.01}, "policy.overtake_cap",
         "policy.overtake_cap: expected at least the sum of the floors"),
        ("PATCH", "/admin/policy", {"bands": {"p3": {"floor": 0}}}, "policy.bands",
         "policy.bands: expected no change: this needs a restart"),
        ("PUT", "/admin/policy", {"discipline": "aging"}, "policy.unit",
         "policy.unit: expected the whole policy, this is missing"),
        ("PUT", "/admin/backends", {"models": [{"name": "m", "backends": [{"url": "b:1"}]}]},
         "models[0].backends[0].url", "models[0].backends[0].url: expected a root URL"),
        ("PUT", "/admin/backends", {}, None, 'expected {"models": ['),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_whole(method: str, path: str, body: Any, param: str, message: str) -> None:
    async def story() -> None:
        stage = Stage()
        before = stage.live.settings
        answer = await stage.ask(method, path, body)
        error = answer.json["error"]
        assert (answer.status, error["code"], error["param"]) == (400, "invalid_settings", param)
        assert error["message"].startswith(message)
        assert error["errors"][0]["field"] == (param or "")
        assert error["errors"][0]["message"] == error["message"].partition(" (and ")[0]
        assert stage.live.settings is before
        assert (stage.edges, stage.audit.newest(9)) == ([], [])

    run_virtual(story())


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ([(b"content-type", b"text/plain")], b"{}", 415),
        ([], b"{}", 415),
        ([(b"content-type", b"application/x-www-form-urlencoded")], b"a=b", 415),
        ([JSON, (b"content-encoding", b"gzip")], b"{}", 415),
        ([JSON], b"{", 400),
        ([JSON], b"[" * 100_000, 400),
        ([JSON], b'"' + b"x" * 1024 * 1024 + b'"', 413),
        ([JSON, (b"origin", b"http://evil.example")], b"{}", 403),
        ([(b"content-type", b"application/json; charset=utf-8")], b"{}", 200),
        ([(b"content-type", b"application/merge-patch+json")], b"{}", 200),
    ],
)
def test_only_json_is_read(headers: list[tuple[bytes, bytes]], body: bytes, status: int) -> None:
    async def story() -> None:
        stage = Stage()
        answer = await stage.ask("PATCH", "/admin/policy", body, headers=[*LOCAL, *headers])
        assert answer.status == status
        assert stage.edges == []

    run_virtual(story())


def test_backends_are_shown_without_credentials_and_changed_live() -> None:
    async def story() -> None:
        stage = Stage()
        shown = await stage.get("/admin/backends")
        assert b"hunter2" not in shown.body
        rows = [*shown.json["models"][0]["backends"], {"name": "new", "url": "http://new:1", "seats": 2}]
        answer = await stage.ask("PUT", "/admin/backends", {"models": [{"name": "m", "backends": rows}]})
        assert answer.status == 200
        assert [row.name for row in stage.driver.snapshot().backends] == ["b", "new"]
        assert stage.live.settings.models[0].backends[0].api_key is not None
        for path in ("/admin/audit", "/admin/backends", "/admin/state", "/admin/policy", "/metrics"):
            assert b"hunter2" not in (await stage.get(path)).body

    run_virtual(story())


def test_the_file_is_read_again_whole_or_not_at_all() -> None:
    async def story() -> None:
        texts = [FILE + "policy: {bands: {p1: {ttl: 1min}}}", FILE + "gateway: {max_body: 1MiB}", FILE + "modes: {}"]
        stage = Stage(load=lambda: parse_settings(texts.pop(0)))
        answer = await stage.ask("POST", "/admin/reload", {})
        changes = [{"what": "policy.bands.p1.ttl", "from": "15s", "to": "1min"}]
        assert answer.json == {"changes": changes, "record": 1}
        answer = await stage.ask("POST", "/admin/reload", {})
        assert answer.json["error"]["errors"] == [
            {
                "field": "gateway.max_body",
                "expected": "expected no change: this needs a restart",
                "got": "",
                "nearest": None,
                "message": "gateway.max_body: expected no change: this needs a restart",
            }
        ]
        assert stage.live.settings.policy.bands["p1"].ttl == 60
        with capture_logs() as logs:
            await stage.live.on_signal()
        assert [line["event"] for line in logs] == ["control.changed", "control.reloaded"]
        assert logs[1]["changed"] == ["policy.bands.p1.ttl"]
        assert [record.who for record in stage.audit.newest(9)] == ["signal", "local"]

    run_virtual(story())


def test_a_signal_with_a_file_that_is_wrong_only_leaves_a_line_in_the_log() -> None:
    def broken() -> Settings:
        raise ConfigError([Problem("models", "expected models")])

    async def story() -> None:
        for load in (broken, None):
            stage = Stage(load=load)
            with capture_logs() as logs:
                await stage.live.on_signal()
            assert [line["event"] for line in logs] == ["control.reload_refused"]
            assert stage.edges == []

    run_virtual(story())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [\n", "duty.yaml:2:1: expected YAML: "),
        (
            FILE + "polcy: {}\n",
            f"duty.yaml:{FILE.count(chr(10)) + 1}:1: polcy: unknown setting; did you mean 'policy'?",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(text: str, message: str) -> None:
    async def story() -> None:
        stage = Stage(load=lambda: parse_settings(text, source="duty.yaml"))
        answer = await stage.ask("POST", "/admin/reload", {})
        assert answer.status == 400
        assert answer.json["error"]["message"].startswith(message)

    run_virtual(story())


def test_a_file_without_the_mode_in_force_is_refused() -> None:
    async def story() -> None:
        stage = Stage(FILE + "modes: {night: {admit: [p2]}}", load=lambda: parse_settings(FILE))
        stage.live.switch("night", who="a")
        answer = await stage.ask("POST", "/admin/reload", {})
        assert answer.json["error"]["message"] == "modes: expected night, it is the mode in force"
        stage.live.switch("normal", who="a")
        assert (await stage.ask("POST", "/admin/reload", {})).status == 200

    run_virtual(story())


def test_a_mode_to_go_back_to_that_a_file_took_away_becomes_normal() -> None:
    async def story() -> None:
        stage = Stage(FILE + "modes: {night: {admit: [p2]}}", load=lambda: parse_settings(FILE))
        stage.live.switch("night", who="a")
        stage.live.switch("observe", who="a", revert_after_s=5)
        await stage.live.reload(who="a")
        await asyncio.sleep(6)
        assert stage.live.mode == "normal"

    run_virtual(story())


def test_operators_may_change_live() -> None:
    async def story() -> None:
        stage = Stage(load=lambda: parse_settings(FILE + f"control: {{{OPERATORS}}}"))
        assert (await stage.ask("POST", "/admin/reload", {})).status == 200
        assert (await stage.ask("POST", "/admin/reload", {})).status == 401
        assert (await stage.ask("POST", "/admin/reload", {}, token="duty-token")).status == 200
        assert "sha256" not in json.dumps((await stage.get("/admin/audit")).json)

    run_virtual(story())
