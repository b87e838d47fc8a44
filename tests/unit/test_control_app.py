from __future__ import annotations

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from tidegate.control.guard import is_loopback
from tidegate.core import Action, Evict, Health, Lease, Release, Scheduler, Snapshot, Ticket
from tidegate.testing import run_virtual
from unit.control_stage import FILE, LOCAL, OPERATORS, Stage


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
        assert state["waste"] == {"tokens": 0, "computed": 0, "causes": {}}
        stage.recorder.recomputed("preempted", 9)
        stage.recorder.recomputed("broken", 20)
        wanted = {"tokens": 29, "computed": 29, "causes": {"broken": 20, "preempted": 9}}
        assert (await stage.get("/admin/state")).json["waste"] == wanted
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


@pytest.mark.interpreted
def test_after_a_fault_of_the_scheduler_health_says_so_and_metrics_go_on() -> None:
    class Broken(Scheduler):
        def tick(self, now: float) -> list[Action]:
            raise RuntimeError("a bug")

        def snapshot(self, now: float) -> Snapshot:
            raise RuntimeError("half updated")

    async def story() -> None:
        stage = Stage(scheduler=lambda settings: Broken(settings.core_policy()))
        await stage.driver.acquire(Ticket("t", "m", 0, "tenant"))
        with capture_logs():
            assert isinstance(await stage.driver.acquire(Ticket("u", "m", 0, "tenant")), Evict)
        answer = await stage.get("/readyz")
        assert (answer.status, answer.body[:21]) == (503, b"the scheduler stopped")
        for path in ("/admin/state", "/admin/requests", "/admin/requests/u", "/admin/policy"):
            answer = await stage.get(path)
            assert (answer.status, answer.json["error"]["code"]) == (503, "fault")
        answer = await stage.get("/metrics")
        assert answer.status == 200
        assert b'tidegate_requests_total{band="p0",model="m",outcome="evicted"} 1.0' in answer.body

    run_virtual(story())


def test_what_is_not_there_is_404_and_what_cannot_be_done_is_405() -> None:
    async def story() -> None:
        stage = Stage()
        for path in ("/admin/nothing", "/admin/state/", "/metrics/"):
            missing = await stage.get(path)
            assert (missing.status, missing.json["error"]["code"]) == (404, "not_found")
        for path, method in (("/admin/state", "POST"), ("/metrics", "DELETE")):
            wrong = await stage.get(path, method=method)
            assert (wrong.status, b"GET" in wrong.headers[b"allow"]) == (405, True)
            assert method in wrong.json["error"]["message"]

    run_virtual(story())


def test_beyond_loopback_any_host_and_a_proxy_may_come_but_no_foreign_page() -> None:
    async def story() -> None:
        stage = Stage(FILE + f"control: {{listen: '0.0.0.0:8401', {OPERATORS}}}")
        host = [(b"host", b"tidegate.example.com")]
        seen = [
            (await stage.get("/livez", headers)).status
            for headers in (
                host,
                [*host, (b"x-forwarded-for", b"10.0.0.7")],
                [*host, (b"origin", b"https://tidegate.example.com")],
                [*host, (b"origin", b"https://evil.example")],
                [],
            )
        ]
        assert seen == [200, 200, 200, 403, 403]

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
