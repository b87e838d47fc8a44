"""Requests that wait for each other, and callers who ask after them."""

from __future__ import annotations

import asyncio
import json

import pytest

from e2e.raw import Answer, Client, Upstream, Visit, ask, chat, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CONFIG = """
models: [{{name: raw, backends: [{{name: b0, url: "{url}", engine: vllm, seats: 1}}]}}]
policy: {{bands: {{p0: {{reserve: 0}}}}}}
"""


async def state(url: str, name: str, query: str = "", **headers: str) -> Answer:
    return await ask(url, method="GET", path=f"/v1/requests/{name}{query}", headers=headers)


def said(answer: Answer) -> tuple[str, str | None]:
    found = json.loads(answer.body)
    return found["status"], found["outcome"]


async def test_a_request_is_known_by_its_name_from_arrival_to_its_end() -> None:
    go = asyncio.Event()

    async def serve(visit: Visit) -> None:
        await go.wait()
        visit.answer(whole())

    async with Upstream(serve).running() as upstream, gateway(CONFIG.format(url=upstream.url)) as process:
        first = asyncio.ensure_future(ask(process.url, chat(), headers={"x-request-id": "first"}))
        await until(lambda: len(upstream.visits) == 1, within_s=5)
        second = asyncio.ensure_future(ask(process.url, chat(), headers={"x-request-id": "second"}))
        await until(lambda: process.total("tidegate_queue_depth") == 1, within_s=5)
        assert said(await state(process.url, "first")) == ("running", None)
        assert said(await state(process.url, "second", "?wait=50ms")) == ("waiting", None)
        waiting = asyncio.ensure_future(state(process.url, "second", "?wait=20s"))
        go.set()
        assert said(await waiting) == ("done", "completed")
        assert {answer.status for answer in await asyncio.gather(first, second)} == {200}
        unknown = await state(process.url, "third")
        assert (unknown.status, unknown.error["param"], unknown.error["code"]) == (404, "name", "unknown_request")
        for bad in ("x?wait=soon", "x?wait=1ms&wait=2ms", "x%20y"):
            assert (await state(process.url, bad)).status == 400


async def test_a_name_may_be_asked_after_two_seconds_before_its_request_comes() -> None:
    go = asyncio.Event()

    async def serve(visit: Visit) -> None:
        await go.wait()
        visit.answer(whole())

    async with Upstream(serve).running() as upstream, gateway(CONFIG.format(url=upstream.url)) as process:
        loop = asyncio.get_running_loop()
        began = loop.time()
        never = asyncio.ensure_future(state(process.url, "never", "?wait=30s"))
        soon = asyncio.ensure_future(state(process.url, "soon", "?wait=30s"))
        await asyncio.sleep(0)
        assert (await ask(process.url, method="GET", path="/livez")).status == 200, "what came before has been read"
        late = asyncio.ensure_future(ask(process.url, chat(), headers={"x-request-id": "soon"}))
        assert ((await never).status, never.result().error["code"]) == (404, "unknown_request")
        assert 2.0 <= loop.time() - began < 10
        await asyncio.sleep(0.2)
        assert not soon.done()
        go.set()
        assert said(await soon) == ("done", "completed")
        assert (await late).status == 200


async def test_a_caller_that_waits_lends_its_band() -> None:
    """A p2 request at the end of the queue goes next once a p0 caller waits for it."""
    steps: asyncio.Queue[None] = asyncio.Queue()

    async def serve(visit: Visit) -> None:
        await steps.get()
        visit.answer(whole())

    async with Upstream(serve).running() as upstream, gateway(CONFIG.format(url=upstream.url)) as process:
        tasks = []
        for number in range(5):
            headers = {"x-request-id": f"row-{number}", "x-tidegate-band": "p2" if number in (0, 4) else "p1"}
            tasks.append(asyncio.ensure_future(ask(process.url, chat(user=f"row-{number}"), headers=headers)))
            await until(lambda: process.state()["queued"] + len(upstream.visits) == len(tasks), within_s=5)
        caller = await Client.connect(process.url)
        caller.send(method="GET", path="/v1/requests/row-4?wait=30s", headers={"x-tidegate-band": "p0"})
        await until(lambda: process.total("tidegate_inheritances_total") == 1, within_s=2)
        steps.put_nowait(None)
        await until(lambda: len(upstream.visits) == 2, within_s=2)
        assert b"row-4" in upstream.visits[1].body
        assert json.loads(upstream.visits[1].body)["priority"] == 0
        steps.put_nowait(None)
        assert said(await caller.answer()) == ("done", "completed")
        caller.leave()
        for _ in range(3):
            steps.put_nowait(None)
        await asyncio.gather(*tasks)
        order = [json.loads(visit.body)["user"] for visit in upstream.visits]
        assert order == ["row-0", "row-4", "row-1", "row-2", "row-3"]


async def test_a_caller_that_leaves_takes_its_band_with_it() -> None:
    async def hang(visit: Visit) -> None:
        await asyncio.sleep(60)

    async with Upstream(hang).running() as upstream, gateway(CONFIG.format(url=upstream.url)) as process:
        clients = []
        for name, band in (("row-0", "p1"), ("row-1", "p1"), ("row-2", "p2")):
            client = await Client.connect(process.url)
            client.send(chat(user=name), headers={"x-request-id": name, "x-tidegate-band": band})
            clients.append(client)
            await until(lambda: process.state()["queued"] + len(upstream.visits) == len(clients), within_s=5)
        caller = await Client.connect(process.url)
        caller.send(method="GET", path="/v1/requests/row-2?wait=30s", headers={"x-tidegate-band": "p0"})
        await until(lambda: process.total("tidegate_inheritances_total") == 1, within_s=2)
        caller.leave()
        await until(lambda: any(line["status"] == 499 for line in process.requests()), within_s=2)
        clients[0].leave()
        await until(lambda: len(upstream.visits) == 2, within_s=2)
        assert b"row-1" in upstream.visits[1].body
        for client in clients:
            client.leave()


async def test_a_request_waits_for_what_it_depends_on() -> None:
    async def serve(visit: Visit) -> None:
        await asyncio.sleep(0.1)
        visit.answer(whole())

    async with Upstream(serve).running() as upstream, gateway(CONFIG.format(url=upstream.url)) as process:
        late = asyncio.ensure_future(
            ask(process.url, chat(user="after"), headers={"x-request-id": "after", "x-tidegate-depends-on": "before"})
        )
        await until(lambda: process.state()["parked"] == 1, within_s=5)
        early = await ask(process.url, chat(user="before"), headers={"x-request-id": "before"})
        assert (early.status, (await late).status) == (200, 200)
        assert [b"before" in visit.body for visit in upstream.visits] == [True, False]
        itself = await ask(process.url, chat(), headers={"x-request-id": "loop", "x-tidegate-depends-on": "loop"})
        assert (itself.status, itself.error["code"]) == (409, "dependency_cycle")
        failed = await ask(process.url, chat(), headers={"x-tidegate-depends-on": "never-sent"})
        assert (failed.status, failed.error["code"]) == (424, "dependency_failed")
        assert "never-sent" in failed.error["message"]
