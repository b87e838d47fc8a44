from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from tidegate.control import build_control_app
from tidegate.control.guard import is_loopback
from tidegate.core import (
    Action,
    BackendSpec,
    Evict,
    Health,
    Lease,
    Policy,
    PoolSpec,
    Release,
    Scheduler,
    Snapshot,
    Ticket,
)
from tidegate.runtime import Driver
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock, run_virtual

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 1),)),))
LOCAL = [(b"host", b"127.0.0.1:8401")]


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


class Stage:
    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self.recorder = Recorder(POLICY)
        self.driver = Driver(scheduler or Scheduler(POLICY), LoopClock(), self.recorder)
        self.app = build_control_app(self.driver, self.recorder)

    async def get(self, path: str, headers: list[tuple[bytes, bytes]] | None = None, *, method: str = "GET") -> Answer:
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": LOCAL if headers is None else headers,
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8401),
        }
        await self.app(scope, receive, send)
        kind = dict(sent[0]["headers"]).get(b"content-type", b"").decode()
        return Answer(sent[0]["status"], kind, b"".join(message.get("body", b"") for message in sent[1:]))


def test_metrics_are_in_the_prometheus_text_format() -> None:
    async def story() -> None:
        answer = await Stage().get("/metrics")
        assert (answer.status, answer.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b'\ntidegate_seats{backend="b"} 1.0\n' in answer.body

    run_virtual(story())


def test_ready_while_a_backend_is_up_and_nothing_drains() -> None:
    async def story() -> None:
        stage = Stage()
        seen = [await stage.get("/readyz")]
        stage.driver.observe(Health("b", up=False))
        seen.append(await stage.get("/readyz"))
        stage.driver.observe(Health("b", up=True))
        seen.append(await stage.get("/readyz"))
        lease = await stage.driver.acquire(Ticket("t", "m", 0, "tenant"))
        assert isinstance(lease, Lease)
        draining = asyncio.create_task(stage.driver.drain(60))
        await asyncio.sleep(1)
        seen.append(await stage.get("/readyz"))
        stage.driver.release(lease, Release())
        await draining
        seen.append(await stage.get("/livez"))
        assert [(answer.status, answer.body) for answer in seen] == [
            (200, b"ready\n"),
            (503, b"no backend is up\n"),
            (200, b"ready\n"),
            (503, b"draining\n"),
            (200, b"alive\n"),
        ]

    run_virtual(story())


def test_the_state_is_the_schedulers_snapshot() -> None:
    async def story() -> None:
        stage = Stage()
        await stage.driver.acquire(Ticket("t", "m", 2, "tenant"))
        waiting = asyncio.create_task(stage.driver.acquire(Ticket("u", "m", 2, "tenant")))
        await asyncio.sleep(4)
        answer = await stage.get("/admin/state")
        state = json.loads(answer.body)
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert (state["queued"], state["running"], state["draining"]) == (1, 1, False)
        assert [row["oldest_wait_s"] for row in state["bands"]] == [0.0, 0.0, 4.0]
        waiting.cancel()

    run_virtual(story())


@pytest.mark.parametrize(
    "headers",
    [
        [(b"host", b"tidegate.example.com")],
        [(b"host", b"127.0.0.1.evil.example:8401")],
        [(b"host", b"10.0.0.7:8401")],
        [],
        [*LOCAL, (b"host", b"evil.example")],
        [*LOCAL, (b"origin", b"https://evil.example")],
        [*LOCAL, (b"origin", b"null")],
        [*LOCAL, (b"origin", b"http://127.0.0.1:9999")],
        [*LOCAL, (b"x-forwarded-for", b"203.0.113.9")],
        [*LOCAL, (b"forwarded", b"for=203.0.113.9")],
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/livez", "/readyz", "/admin/state", "/nothing"])
def test_web_pages_and_proxies_are_not_let_in(path: str, headers: list[tuple[bytes, bytes]]) -> None:
    async def story() -> None:
        answer = await Stage().get(path, headers)
        assert answer.status == 403
        assert json.loads(answer.body)["error"]["code"] == "forbidden"

    run_virtual(story())


@pytest.mark.parametrize(
    "headers",
    [
        [(b"host", b"localhost:8401")],
        [(b"host", b"LOCALHOST")],
        [(b"host", b"[::1]:8401")],
        [(b"host", b"127.8.9.1")],
        [*LOCAL, (b"origin", b"http://127.0.0.1:8401")],
    ],
)
def test_programs_on_this_machine_are_let_in(headers: list[tuple[bytes, bytes]]) -> None:
    async def story() -> None:
        assert (await Stage().get("/livez", headers)).status == 200

    run_virtual(story())


def test_after_a_fault_of_the_scheduler_health_says_so_and_metrics_go_on() -> None:
    class Broken(Scheduler):
        def tick(self, now: float) -> list[Action]:
            raise RuntimeError("a bug")

        def snapshot(self, now: float) -> Snapshot:
            raise RuntimeError("half updated")

    async def story() -> None:
        stage = Stage(Broken(POLICY))
        await stage.driver.acquire(Ticket("t", "m", 0, "tenant"))
        with capture_logs():
            assert isinstance(await stage.driver.acquire(Ticket("u", "m", 0, "tenant")), Evict)
        for path in ("/readyz", "/admin/state"):
            answer = await stage.get(path)
            assert (answer.status, answer.body[:21]) == (503, b"the scheduler stopped")
        answer = await stage.get("/metrics")
        assert answer.status == 200
        assert b'tidegate_requests_total{band="p0",model="m",outcome="evicted"} 1.0' in answer.body

    run_virtual(story())


def test_what_is_not_there_is_404_and_nothing_can_be_written() -> None:
    async def story() -> None:
        stage = Stage()
        assert (await stage.get("/admin/policy")).status == 404
        assert (await stage.get("/admin/state", method="POST")).status == 405
        assert (await stage.get("/metrics", method="DELETE")).status == 405

    run_virtual(story())


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost.", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("127.1", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_loopback_names(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
