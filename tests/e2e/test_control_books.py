"""What the control room writes down outlives the process, however it ends; a file is read again under load."""

from __future__ import annotations

import asyncio
import csv
import io
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from e2e.raw import Answer, Upstream, Visit, ask, chat, gateway, until, whole
from e2e.test_control import admin, config
from tidegate.config import key_digest
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]  # 1 to 9 s on a machine at rest


async def quick(visit: Visit) -> None:
    visit.answer(whole())


def kept(folder: Path, url: str, *, seats: int = 4, more: str = "") -> str:
    store = f'control: {{store: "sqlite:///{folder / "control.db"}"}}'
    return config(url, seats=seats, more=f"{store}\n{more}")


async def status_of(process: GatewayProcess, key: str) -> int:
    answer = await ask(process.url, chat(), headers={"authorization": f"Bearer {key}"})
    return answer.status


async def kill(process: GatewayProcess) -> None:
    process.signal(signal.SIGKILL)
    await asyncio.to_thread(process.wait, 5)


async def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    """Kill -9 right after each 200: the change is in the list, the tenant is there, the revoked key is nobody's."""
    async with Upstream(quick).running() as upstream:
        settings = kept(tmp_path, upstream.url)
        async with gateway(settings) as process:
            status, made = await admin(process, "POST", "/admin/tenants", {"name": "shop", "band": "p0"})
            await kill(process)
        assert status == 201
        async with gateway(settings) as process:
            assert await status_of(process, made["key"]) == 200
            status, other = await admin(process, "POST", "/admin/tenants/shop/keys", {})
            assert status == 201
            path = f"/admin/tenants/shop/keys/{key_digest(made['key'])[7:19]}"
            assert (await admin(process, "DELETE", path))[0] == 200
            await kill(process)
        async with gateway(settings) as process:
            assert [await status_of(process, key) for key in (made["key"], other["key"])] == [401, 200]
            status, changed = await admin(process, "PATCH", "/admin/policy", {"queue_capacity": 7})
            await kill(process)
        assert (status, changed["record"]) == (200, 4)
        async with gateway(settings) as process:
            _, audit = await admin(process, "GET", "/admin/audit")
            assert [(row["id"], row["action"]) for row in audit["records"]] == [
                (4, "policy"),
                (3, "key"),
                (2, "key"),
                (1, "tenant"),
            ]
            status, error = await admin(process, "POST", "/admin/audit/4/undo", {})
            assert (status, error["error"]["code"]) == (409, "conflict"), "a start begins with the file's policy"
            status, _ = await admin(process, "POST", "/admin/audit/2/undo", {})
            assert status == 200
            assert await status_of(process, other["key"]) == 401
    text = "".join(sqlite3.connect(tmp_path / "control.db").iterdump())
    assert made["key"] not in text


async def usage_of(process: GatewayProcess) -> dict[str, dict[str, str]]:
    answer = await ask(process.control, method="GET", path="/admin/usage.csv")
    assert answer.status == 200
    return {row["tenant"]: row for row in csv.DictReader(io.StringIO(answer.body.decode()))}


async def test_usage_is_what_the_clients_saw_and_outlives_a_restart(tmp_path: Path) -> None:
    keys = {name: key_digest(name) for name in ("shop", "batch", "third")}
    rows = "".join(f"{{name: '{name}', keys: ['{digest}'], band: p1}}, " for name, digest in keys.items())
    more = f"tenants: [{rows}]\npolicy: {{bands: {{p1: {{capacity: 2, ttl: 20s}}}}}}"
    seen: dict[str, Counter[int]] = {name: Counter() for name in keys}

    async def one(process: GatewayProcess, name: str) -> None:
        answer = await ask(process.url, chat(), headers={"authorization": f"Bearer {name}"})
        seen[name][answer.status] += 1

    async with Upstream(quick).running() as upstream:
        settings = kept(tmp_path, upstream.url, seats=1, more=more)
        async with gateway(settings) as process:
            for _ in range(3):
                await asyncio.gather(*(one(process, name) for name in ("shop", "batch") for _ in range(15)))
                await one(process, "third")
            too_much = {"authorization": "Bearer shop", "content-type": "text/plain"}
            answer = await ask(process.url, chat(), headers=too_much)
            seen["shop"][answer.status] += 1
            before = await usage_of(process)
            process.signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
        async with gateway(settings) as process:
            found = await usage_of(process)
    assert found == before
    assert set(found) == {"shop", "batch", "third"}
    for name, counts in seen.items():
        row = found[name]
        assert (int(row["completed"]), int(row["rejected"])) == (counts[200], counts.total() - counts[200])
        assert (int(row["input_tokens"]), int(row["output_tokens"])) == (3 * counts[200], 2 * counts[200])
        assert int(row["refused_queue_full"]) == counts[429]
        assert int(row["refused_bad_request"]) == counts[415]
        assert int(row["dispatches"]) == counts[200]
    assert sum(counts[429] for counts in seen.values()) > 0, "some were refused"


async def test_a_file_is_read_again_while_requests_wait(tmp_path: Path) -> None:
    """Ten reloads with 40 requests waiting: all are answered once, and limits of the client port change live."""
    release = asyncio.Event()

    async def hold(visit: Visit) -> None:
        await release.wait()
        visit.answer(whole())

    async with Upstream(hold).running() as upstream:
        file = tmp_path / "t.yaml"
        file.write_text(kept(tmp_path, upstream.url, seats=2))
        async with gateway(None, "-c", str(file)) as process:
            tasks = [asyncio.ensure_future(ask(process.url, chat())) for _ in range(40)]
            await until(lambda: process.total("tidegate_queue_depth") == 38, within_s=5)
            for number in range(1, 11):
                more = f"gateway: {{max_connections_per_tenant: 40}}\npolicy: {{queue_capacity: {number}}}"
                file.write_text(kept(tmp_path, upstream.url, seats=2 + number % 2, more=more))
                status, answer = await admin(process, "POST", "/admin/reload", {})
                assert status == 200, answer
            changed = {row["what"] for row in answer["changes"]}
            assert changed == {"policy.queue_capacity", "models.raw.backends.b0.seats"}
            refused = await ask(process.url, chat())
            assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
            file.write_text(kept(tmp_path, upstream.url, seats=2, more="gateway: {max_connections: 5}"))
            status, answer = await admin(process, "POST", "/admin/reload", {})
            assert (status, answer["error"]["param"]) == (400, "gateway.max_connections")
            release.set()
            answers: list[Answer] = await asyncio.gather(*tasks)
            assert Counter(each.status for each in answers) == {200: 40}
            assert len(upstream.visits) == 40


async def test_a_browser_logs_in_and_out() -> None:
    more = f"control: {{operators: [{{name: duty, role: operator, token: '{key_digest('duty')}'}}]}}"
    async with Upstream(quick).running() as upstream, gateway(config(upstream.url, seats=1, more=more)) as process:
        json_type = {"content-type": "application/json"}
        host = {"host": process.control.removeprefix("http://")}
        answer = await ask(process.control, {"token": "duty"}, path="/admin/login", headers=json_type | host)
        assert answer.status == 200
        given = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
        own = given | {"origin": process.control} | json_type | host
        path = "/admin/mode"
        assert (await ask(process.control, {"mode": "observe"}, path=path, headers=own)).status == 200
        foreign = own | {"origin": "http://127.0.0.1:1"}
        assert (await ask(process.control, {"mode": "normal"}, path=path, headers=foreign)).status == 403
        assert (await ask(process.control, {}, path="/admin/logout", headers=own)).status == 200
        assert (await ask(process.control, {"mode": "normal"}, path=path, headers=own)).status == 401
        assert "duty" not in process.log.read_text().replace('"who":"duty"', "")


async def test_a_policy_can_be_tried_where_there_is_traffic() -> None:
    async with Upstream(quick).running() as upstream, gateway(config(upstream.url, seats=8)) as process:
        body = {"policy": {"bands": {"p2": {"floor": 0.1}}}, "what_if": True}
        status, found = await admin(process, "POST", "/admin/policy/preview", body)
        assert (status, found["what_if"]) == (200, {"error": "no requests came in the last 60 s"})
