"""Modes and policies change under three times the load that the backend can carry: nobody is lost or answered twice."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from e2e.raw import Answer, Upstream, Visit, ask, chat, gateway, until, whole
from e2e.test_control import admin, config, is_fallback

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]  # 1 to 9 s on a machine at rest

SEATS, SERVICE_S, LOAD, SECONDS = 4, 0.1, 3.0, 6.0
RATE = SEATS / SERVICE_S * LOAD
"""Requests a second: with 4 seats of 0.1 s each the backend carries 40, and 120 come."""


async def test_changes_under_overload_lose_nobody() -> None:
    async def serve(visit: Visit) -> None:
        await asyncio.sleep(SERVICE_S)
        visit.answer(whole())

    more = "policy: {bands: {p1: {ttl: 3s}, p2: {ttl: 5s, capacity: 60}}}"
    async with Upstream(serve).running() as upstream, gateway(config(upstream.url, seats=SEATS, more=more)) as process:
        loop = asyncio.get_running_loop()
        answers: dict[str, list[Answer]] = {}

        async def one(number: int) -> None:
            name, band = f"n{number}", ("p0", "p1", "p2", "p2")[number % 4]
            answer = await ask(process.url, chat(), headers={"x-tidegate-band": band, "x-request-id": name})
            answers.setdefault(name, []).append(answer)

        async def load() -> list[asyncio.Task[None]]:
            begun, tasks = loop.time(), list[asyncio.Task[None]]()
            while (passed := loop.time() - begun) < SECONDS:
                while len(tasks) < passed * RATE:
                    tasks.append(asyncio.ensure_future(one(len(tasks))))
                await asyncio.sleep(0.01)
            return tasks

        loading = asyncio.ensure_future(load())
        await until(lambda: process.total("tidegate_queue_depth") > 30, within_s=5)
        late_s: list[float] = []
        for number in range(5):
            ceiling = 0.5 if number % 2 else 1
            good = {"bands": {"p2": {"ceiling": ceiling, "weight": 1 + number}}, "queue_capacity": 100 + number}
            assert (await admin(process, "PATCH", "/admin/policy", good))[0] == 200
            _, before = await admin(process, "GET", "/admin/policy")
            for bad in ({"bands": {"p2": {"ceiling": 7}}}, {"overtake_cap": 0.01}, {"bands": {"p9": {"floor": 0}}}):
                assert (await admin(process, "PATCH", "/admin/policy", {**bad, "max_flows": 9}))[0] == 400
            assert (await admin(process, "GET", "/admin/policy"))[1] == before
            assert (await admin(process, "POST", "/admin/mode", {"mode": "transactions_only"}))[0] == 200
            switched = loop.time()
            shed = await ask(process.url, chat(), headers={"x-tidegate-band": "p2"})
            late_s.append(loop.time() - switched)
            assert is_fallback(shed)
            assert (await admin(process, "POST", "/admin/mode", {"mode": "normal"}))[0] == 200
            _, audit = await admin(process, "GET", "/admin/audit?limit=1")
            assert audit["records"][0]["changes"] == [{"what": "mode", "from": "transactions_only", "to": "normal"}]
        tasks = await loading
        await asyncio.wait_for(asyncio.gather(*tasks), 12)
        assert max(late_s) < 1, "the next p2 after a switch has its fallback within a second"
        sent = len(tasks) + 5
        assert set(answers) == {f"n{number}" for number in range(len(tasks))}
        assert all(len(got) == 1 for got in answers.values())
        got = Counter("fallback" if is_fallback(answer) else str(answer.status) for (answer,) in answers.values())
        assert set(got) <= {"200", "429", "fallback"}, got
        assert min(got["200"], got["429"], got["fallback"]) > 0, got
        served = Counter(visit.headers["x-request-id"] for visit in upstream.visits)
        assert sum(served.values()) == got["200"]
        assert max(served.values()) == 1, "each was sent upstream once"
        await until(lambda: process.total("tidegate_requests_total") == sent, within_s=3)
        assert process.total("tidegate_queue_depth") == process.total("tidegate_running") == 0
