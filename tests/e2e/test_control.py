"""The control port of a live gateway: modes under load, changes that are whole or not at all, tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from e2e.raw import Answer, Upstream, Visit, ask, chat, chunk, gateway, until, whole
from tidegate.config import key_digest
from tidegate.testing.gateway_process import GatewayProcess
from tidegate.testing.processes import engine_process

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]  # 1 to 9 s on a machine at rest

CONFIG = """
models: [{{name: raw, backends: [{{name: b0, url: "{url}", engine: {engine}, seats: {seats}}}]}}]
{more}
"""


def config(url: str, *, seats: int, engine: str = "openai", more: str = "") -> str:
    return CONFIG.format(url=url, seats=seats, engine=engine, more=more)


async def command(process: GatewayProcess, *args: str, token: str = "") -> tuple[int, str]:
    """Run ``tidegate mode`` as a user does."""
    words = [sys.executable, "-m", "tidegate", "mode", "--url", process.control, *args]
    environ = {**os.environ, "TIDEGATE_TOKEN": token}
    done = await asyncio.to_thread(
        subprocess.run, words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True, check=False
    )
    return done.returncode, done.stdout


async def admin(
    process: GatewayProcess, method: str, path: str, body: object = None, *, token: str | None = None
) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(process.control + path, data, headers, method=method)

    def send() -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=40) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return await asyncio.to_thread(send)


def is_fallback(answer: Answer) -> bool:
    return answer.status == 200 and b"load_shedding_fallback" in answer.body


async def test_the_switch_under_load() -> None:
    """Waiting p2 get their fallback within a second, p0 goes on, running work ends; each is answered once."""
    async with contextlib.AsyncExitStack() as stack:
        url = stack.enter_context(engine_process(speed=4, noise=0, model="raw"))
        process = await stack.enter_async_context(gateway(config(url, seats=4, engine="tidegate")))
        loop = asyncio.get_running_loop()
        ended: dict[int, float] = {}

        async def one(number: int, band: str, tokens: int) -> Answer:
            body = chat(max_tokens=tokens, ignore_eos=True, stream=number % 2 == 0)
            answer = await ask(process.url, body, headers={"x-tidegate-band": band})
            ended[number] = loop.time()
            return answer

        low = [asyncio.ensure_future(one(number, "p2", 1200)) for number in range(60)]
        await until(lambda: process.total("tidegate_queue_depth", band="p2") >= 50, within_s=5)
        stop = asyncio.Event()
        high: list[Answer] = []

        async def customers() -> None:
            number = 1000
            while not stop.is_set():
                number += 1
                high.append(await one(number, "p0", 20))

        shoppers = [asyncio.ensure_future(customers()) for _ in range(2)]
        status, output = await command(process, "transactions_only", "--revert-after", "10min")
        assert (status, output.splitlines()[1:]) == (
            0,
            ["back to normal in 10min", "modes: normal, transactions_only, observe"],
        )
        switched = loop.time()
        answers = await asyncio.gather(*low)
        shed = [number for number, answer in enumerate(answers) if is_fallback(answer)]
        assert len(shed) >= 20, "most still waited when the switch was flipped"
        late = [number for number in range(60) if number not in shed and ended[number] > switched]
        stopped = process.total("tidegate_preemptions_total", victim="p2")
        assert len(late) <= 4 + stopped, "only what held one of the four seats, or had to leave it, was still served"
        assert max(ended[number] for number in shed) < switched + 1
        assert {answer.status for answer in answers} == {200}
        assert not any(answer.broken for answer in answers)
        assert is_fallback(await ask(process.url, chat(max_tokens=5), headers={"x-tidegate-band": "p1"}))
        assert process.metrics()['tidegate_mode{mode="transactions_only"}'] == 1
        assert (await command(process, "transactions_only", "--revert-after", "1s"))[0] == 0
        await until(lambda: 'tidegate_mode{mode="normal"}' in process.metrics(), within_s=6)
        again = await ask(process.url, chat(max_tokens=5), headers={"x-tidegate-band": "p2"})
        assert (again.status, is_fallback(again)) == (200, False)
        stop.set()
        await asyncio.gather(*shoppers)
        assert len(high) >= 10
        assert all(answer.status == 200 and not is_fallback(answer) and not answer.broken for answer in high)
        sent = len(low) + len(high) + 2
        await until(lambda: len(process.requests()) == sent, within_s=2)
        lines = process.requests()
        assert len({line["request_id"] for line in lines}) == sent
        assert process.total("tidegate_requests_total") == sent
        assert process.total("tidegate_running") == process.total("tidegate_queue_depth") == 0
        _, audit = await admin(process, "GET", "/admin/audit")
        assert [(row["who"], row["changes"][0]["to"]) for row in audit["records"]] == [
            ("timer", "normal"),
            ("local", "transactions_only"),  # it was set when the mode ends
            ("local", "transactions_only"),
        ]


async def hang(visit: Visit) -> None:
    await asyncio.sleep(60)


@contextlib.asynccontextmanager
async def waiting(process: GatewayProcess, count: int, band: str) -> AsyncIterator[list[asyncio.Task[Answer]]]:
    """``count`` requests of a band that wait behind one that hangs."""
    tasks = [
        asyncio.ensure_future(ask(process.url, chat(), headers={"x-tidegate-band": band, "x-request-id": f"r{n}"}))
        for n in range(count + 1)
    ]
    await until(lambda: process.total("tidegate_queue_depth") == count, within_s=5)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_invalid_policy_changes_nothing_and_a_valid_one_loses_nobody() -> None:
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url, seats=1)) as process,
        waiting(process, 5, "p2"),
    ):
        _, before = await admin(process, "GET", "/admin/policy")
        wrong = {**before, "bands": {**before["bands"], "p2": {**before["bands"]["p2"], "ceiling": 7}}}
        status, answer = await admin(process, "PUT", "/admin/policy", wrong)
        assert (status, answer["error"]["param"]) == (400, "policy.bands.p2.ceiling")
        assert await admin(process, "GET", "/admin/policy") == (200, before)
        status, answer = await admin(process, "PATCH", "/admin/policy", {"bands": {"p2": {"capacity": 1}}})
        assert (status, answer["changes"][0]["to"]) == (200, 1)
        assert process.total("tidegate_queue_depth") == 5
        refused = await ask(process.url, chat(), headers={"x-tidegate-band": "p2"})
        assert (refused.status, refused.error["code"]) == (429, "queue_full")


async def test_a_changed_message_is_what_the_next_shed_request_gets() -> None:
    async with Upstream(hang).running() as upstream, gateway(config(upstream.url, seats=1)) as process:
        await admin(process, "PATCH", "/admin/policy", {"bands": {"p2": {"message": {"en": "Come back at noon."}}}})
        await admin(process, "POST", "/admin/mode", {"mode": "transactions_only"})
        answer = await ask(process.url, chat(), headers={"x-tidegate-band": "p2", "accept-language": "en"})
        assert b"Come back at noon." in answer.body


async def test_one_request_is_seen_and_stopped() -> None:
    async with Upstream(hang).running() as upstream, gateway(config(upstream.url, seats=1)) as process:
        async with waiting(process, 2, "p1") as tasks:
            _, listed = await admin(process, "GET", "/admin/requests?band=p1")
            names = [row["name"] for row in listed["requests"]]
            assert len(names) == 2
            status, why = await admin(process, "GET", f"/admin/requests/anonymous/{names[0]}")
            assert (status, why["id"]) == (200, listed["requests"][0]["id"])
            assert (await admin(process, "DELETE", f"/admin/requests/{why['id']}"))[0] == 200
            stopped = await tasks[int(names[0][1:])]
            assert (stopped.status, stopped.error["code"]) == (499, "cancelled")
            assert process.total("tidegate_queue_depth") == 1
            (running,) = {"r0", "r1", "r2"} - set(names)
            assert (await admin(process, "DELETE", f"/admin/requests/anonymous/{running}"))[0] == 200
            stopped = await tasks[int(running[1:])]
            assert (stopped.status, stopped.error["code"]) == (499, "cancelled")
            assert (await admin(process, "DELETE", f"/admin/requests/{why['id']}"))[0] == 404
            assert process.total("tidegate_requests_total") == 2
            assert process.total("tidegate_requests_total", outcome="cancelled") == 2
            assert process.total("tidegate_refusals_total") == 0
            await until(lambda: len(process.requests()) == 2, within_s=3)
            assert {(line["outcome"], line["reason"]) for line in process.requests()} == {("cancelled", "cancelled")}
        await until(lambda: process.total("tidegate_running") == process.total("tidegate_queue_depth") == 0, within_s=3)


async def test_a_backend_is_added_and_the_old_one_leaves_when_its_streams_have_ended() -> None:
    go_on = asyncio.Event()

    async def slow(visit: Visit) -> None:
        visit.start_stream()
        visit.send(chunk("old"))
        await go_on.wait()
        visit.send(chunk("", "stop") + b"data: [DONE]\n\n")

    async def quick(visit: Visit) -> None:
        visit.answer(whole("new"))

    old, new = Upstream(slow), Upstream(quick)
    async with old.running(), new.running(), gateway(config(old.url, seats=1)) as process:
        stream = asyncio.ensure_future(ask(process.url, chat(stream=True)))
        await until(lambda: process.total("tidegate_running") == 1, within_s=5)
        later = asyncio.ensure_future(ask(process.url, chat()))
        await until(lambda: process.total("tidegate_queue_depth") == 1, within_s=5)
        by_name = new.url.replace("127.0.0.1", "localhost")
        rows = {"models": [{"name": "raw", "backends": [{"name": "b1", "url": by_name, "seats": 2}]}]}
        status, _ = await admin(process, "PUT", "/admin/backends", rows)
        assert status == 200
        assert b"new" in (await later).body
        go_on.set()
        answer = await stream
        assert (answer.status, answer.broken) == (200, False)
        assert answer.body.endswith(b"data: [DONE]\n\n")
        await until(lambda: [row["name"] for row in process.state()["backends"]] == ["b1"], within_s=3)


async def test_a_signal_reads_the_file_again(tmp_path: Path) -> None:
    async with Upstream(hang).running() as upstream:
        file = tmp_path / "t.yaml"
        file.write_text(config(upstream.url, seats=1))
        async with gateway(None, "-c", str(file)) as process:
            file.write_text(config(upstream.url, seats=1, more="policy: {bands: {p1: {ttl: 0}}}"))
            process.signal(signal.SIGHUP)
            await until(lambda: "control.reload_refused" in process.log.read_text(), within_s=5)
            file.write_text(config(upstream.url, seats=1, more="policy: {bands: {p1: {ttl: 1h}}}"))
            process.signal(signal.SIGHUP)
            await until(lambda: "control.reloaded" in process.log.read_text(), within_s=5)
            _, policy = await admin(process, "GET", "/admin/policy")
            assert policy["bands"]["p1"]["ttl"] == "1h"
            assert "Traceback" not in process.log.read_text()


async def test_tokens_and_roles_on_a_live_port() -> None:
    operators = "".join(
        f"{{name: {name}, role: {role}, token: '{key_digest(name)}'}}, "
        for name, role in (("duty", "operator"), ("wall", "viewer"))
    )
    more = f"control: {{operators: [{operators}]}}"
    async with Upstream(hang).running() as upstream, gateway(config(upstream.url, seats=1, more=more)) as process:
        assert (await admin(process, "GET", "/admin/mode"))[0] == 200
        assert (await admin(process, "POST", "/admin/mode", {"mode": "observe"}, token="wall"))[0] == 403
        status, output = await command(process, "observe")
        assert (status, output) == (1, "tidegate mode: expected an operator's token: Authorization: Bearer TOKEN\n")
        status, output = await command(process, "observe", token="duty")
        assert (status, output.splitlines()[0].endswith("by duty)")) == (0, True)
        assert "duty" not in process.log.read_text().replace('"who":"duty"', "")


def would(process: GatewayProcess, reason: str) -> list[int]:
    """How many of a reason each line tells: one line a second at most, with what is new since the one before."""
    return [line.get(reason, 0) for line in process.lines() if line["event"] == "observe.would"]


async def test_a_week_of_observing_shows_what_would_have_been_refused() -> None:
    more = "policy: {bands: {p1: {capacity: 2}}}"
    async with Upstream(hang).running() as upstream, gateway(config(upstream.url, seats=1, more=more)) as process:
        assert (await admin(process, "POST", "/admin/mode", {"mode": "observe"}))[0] == 200
        async with waiting(process, 4, "p1"):  # two more than the band may hold
            assert process.total("tidegate_would_total", reason="queue_full") == 2
            assert process.total("tidegate_refusals_total") == 0
            assert process.state()["would"] == {"queue_full": 2}
            await until(lambda: sum(would(process, "queue_full")) == 2, within_s=5)


async def test_draining_from_the_control_port() -> None:
    async with (
        Upstream(hang).running() as upstream,
        gateway(config(upstream.url, seats=1)) as process,
        waiting(process, 2, "p1") as tasks,
    ):
        assert await admin(process, "POST", "/admin/drain", {}) == (202, {"waiting": 0, "running": 1})
        await until(lambda: sum(task.done() for task in tasks) == 2, within_s=5)
        answers = [task.result() for task in tasks if task.done()]
        assert [(answer.status, answer.error["code"]) for answer in answers] == [(503, "draining")] * 2
        ready = await ask(process.url, method="GET", path="/readyz")
        assert (ready.status, ready.body) == (503, b"draining\n")
