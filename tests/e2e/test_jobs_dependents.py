"""Requests that depend on batches, and callers that wait for them: both lend their band to rows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from e2e.jobs_stage import client_of, config, engine, prompt_of, reach, row, rows, submit
from e2e.raw import Answer, Visit, ask, gateway, until, whole
from tidegate.config import key_digest
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]

STRICT = "policy: {discipline: strict, bands: {p0: {reserve: 0}}}\n"


class Steps:
    """An engine that answers one request for each step."""

    def __init__(self) -> None:
        self._steps: asyncio.Queue[None] = asyncio.Queue()

    async def serve(self, visit: Visit) -> None:
        await self._steps.get()
        visit.answer(whole(prompt_of(visit)))

    def go(self, count: int) -> None:
        for _ in range(count):
            self._steps.put_nowait(None)


def send(process: GatewayProcess, text: str, **headers: str) -> asyncio.Future[Answer]:
    """Ask for a completion; underscores in names of headers are dashes."""
    body = {"model": "raw", "messages": [{"role": "user", "content": text}]}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.ensure_future(ask(process.url, body, headers=named))


async def queued(process: GatewayProcess, band: str, count: int) -> None:
    await until(lambda: process.total("tidegate_queue_depth", band=band) >= count, within_s=10)


async def test_a_request_runs_after_the_batch_it_depends_on_and_lends_to_it(tmp_path: Path) -> None:
    """Rows of p2 stand behind a queue of p1; a p0 depends on their batch, so they go first, and it goes next."""
    steps = Steps()
    async with (
        engine(steps.serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=1, more=STRICT)) as process,
        client_of(process.url) as client,
    ):
        singles = [send(process, f"s{number}") for number in range(4)]
        await queued(process, "p1", 3)
        batch = await submit(client, rows(3))
        await queued(process, "p2", 3)
        last = send(process, "last", x_tidegate_depends_on=batch.id, x_tidegate_band="p0")
        await until(lambda: process.total("tidegate_inheritances_total") >= 3, within_s=10)
        steps.go(8)
        assert (await last).status == 200
        await asyncio.gather(*singles)
        assert [prompt_of(visit) for visit in upstream.visits][1:4] == ["r0", "r1", "r2"]
        asked = [prompt_of(visit) for visit in upstream.visits]
        assert asked.index("last") > asked.index("r2")
        assert (await client.batches.retrieve(batch.id)).status == "completed"


async def test_a_request_lends_what_it_is_lent(tmp_path: Path) -> None:
    """A p0 depends on a p1 that depends on a batch of p2: its rows go before the p1 that waited already."""
    steps = Steps()
    async with (
        engine(steps.serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=1, more=STRICT)) as process,
        client_of(process.url) as client,
    ):
        singles = [send(process, f"s{number}") for number in range(3)]
        await queued(process, "p1", 2)
        batch = await submit(client, rows(2))
        await queued(process, "p2", 2)
        middle = send(process, "middle", x_request_id="middle", x_tidegate_depends_on=batch.id)
        await until(lambda: process.total("tidegate_inheritances_total") >= 2, within_s=10)
        top = send(process, "top", x_tidegate_depends_on="middle", x_tidegate_band="p0")
        await until(lambda: process.total("tidegate_inheritances_total") >= 4, within_s=10)  # lifted once more
        steps.go(3)
        await reach(client, batch)  # its files are written; a seat does not wait for that, and goes to s1
        await until(lambda: process.state()["parked"] == 1, within_s=5)
        steps.go(4)
        assert ((await middle).status, (await top).status) == (200, 200)
        await asyncio.gather(*singles)
        asked = [prompt_of(visit) for visit in upstream.visits]
        assert asked == ["s0", "r0", "r1", "s1", "middle", "top", "s2"]


async def test_who_waits_lifts_rows_of_a_batch_that_stands_behind_another(tmp_path: Path) -> None:
    """Another batch of the same tenant ends earlier and fills the window; rows of the awaited one come all the same."""
    steps = Steps()
    async with (
        engine(steps.serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=1, more=STRICT)) as process,
        client_of(process.url) as client,
    ):
        await submit(client, b"\n".join(row(f"first{number}") for number in range(400)), window="1h")
        await queued(process, "p2", 120)
        batch = await submit(client, rows(3))
        await reach(client, batch, "in_progress")
        last = send(process, "last", x_tidegate_depends_on=batch.id, x_tidegate_band="p0")
        await until(lambda: process.total("tidegate_inheritances_total") >= 3, within_s=10)
        steps.go(4)
        await reach(client, batch)
        await until(lambda: process.state()["parked"] == 0, within_s=5)
        steps.go(2)
        assert (await last).status == 200
        asked = [prompt_of(visit) for visit in upstream.visits]
        assert asked[1:4] == ["r0", "r1", "r2"]
        assert asked[5] == "last"  # of the others, only what took the seat while the files were written


async def test_a_batch_that_does_not_complete_fails_who_depends_on_it(tmp_path: Path) -> None:
    steps = Steps()
    tenants = ", ".join(f'{{name: {name}, keys: ["{key_digest(name)}"], band: p1, max_band: p0}}' for name in "ab")
    async with (
        engine(steps.serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=1, more=f"{STRICT}tenants: [{tenants}]\n")) as process,
        client_of(process.url, "a") as client,
    ):

        def depends(batch_id: str, key: str = "a") -> asyncio.Future[Answer]:
            return send(process, "x", x_tidegate_depends_on=batch_id, authorization=f"Bearer {key}")

        async def fails(waiting: asyncio.Future[Answer], *words: str) -> None:
            answer = await asyncio.wait_for(waiting, 30)
            assert (answer.status, answer.error["code"]) == (424, "dependency_failed")
            assert all(word in answer.error["message"] for word in words), answer.error

        batch = await submit(client, rows(5))
        await reach(client, batch, "in_progress")
        await fails(depends(batch.id, "b"), batch.id)  # another tenant's: there is none of this name
        await fails(depends(f"a/{batch.id}", "b"), "another tenant")
        await fails(depends("batch_" + "0" * 24), "is not known")
        waiting = depends(batch.id)
        await asyncio.sleep(2.5)  # longer than a name that nobody knows is given
        assert not waiting.done()
        await client.batches.cancel(batch.id)
        steps.go(5)
        await fails(waiting, batch.id, "cancelled")
        broken = await reach(client, await submit(client, b"{broken"))
        assert broken.status == "failed"
        await fails(depends(broken.id), broken.id, "failed")
        assert not [visit for visit in upstream.visits if prompt_of(visit) == "x"]
        steps.go(5)
        late = await reach(client, await submit(client, rows(2), window="1h"))
        assert late.status == "completed"
        steps.go(1)
        answer = await depends(late.id)
        assert answer.status == 200
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == "x"


async def test_a_window_that_ends_fails_who_depends_on_it(tmp_path: Path) -> None:
    steps = Steps()
    async with (
        engine(steps.serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=1)) as process,
        client_of(process.url) as client,
    ):
        batch = await submit(client, rows(3), window="2s")
        await queued(process, "p2", 2)
        waiting = send(process, "x", x_tidegate_depends_on=batch.id)
        await reach(client, batch, "finalizing")
        steps.go(3)  # the row that runs
        answer = await asyncio.wait_for(waiting, 30)
        assert (answer.status, answer.error["code"]) == (424, "dependency_failed")


async def test_a_client_that_leaves_lends_no_more(tmp_path: Path) -> None:
    steps = Steps()
    async with (
        engine(steps.serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=1, more=STRICT)) as process,
        client_of(process.url) as client,
    ):
        singles = [send(process, f"s{number}") for number in range(3)]
        await queued(process, "p1", 2)
        batch = await submit(client, rows(2))
        await queued(process, "p2", 2)
        leaver = send(process, "leaver", x_tidegate_depends_on=batch.id, x_tidegate_band="p0")
        await until(lambda: process.total("tidegate_inheritances_total") >= 2, within_s=10)
        leaver.cancel()
        await until(lambda: process.state()["parked"] == 0, within_s=5)
        steps.go(5)
        await asyncio.gather(*singles)
        await reach(client, batch)
        assert [prompt_of(visit) for visit in upstream.visits] == ["s0", "s1", "s2", "r0", "r1"]


async def test_rows_that_are_lent_p0_run_while_only_transactions_do(tmp_path: Path) -> None:
    """Nobody else's do: of two batches, only the one that a p0 depends on goes on."""
    async with (
        engine().running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=2)) as process,
        client_of(process.url) as client,
    ):
        assert (await ask(process.control, {"mode": "transactions_only"}, path="/admin/mode")).status == 200
        other = await submit(client, b"\n".join(row(f"other{number}") for number in range(20)))
        batch = await submit(client, rows(20))  # more than lend_limit
        await queued(process, "p2", 30)
        answer = await asyncio.wait_for(send(process, "x", x_tidegate_depends_on=batch.id, x_tidegate_band="p0"), 40)
        assert answer.status == 200
        assert {prompt_of(visit) for visit in upstream.visits} == {*(f"r{number}" for number in range(20)), "x"}
        assert (await client.batches.retrieve(other.id)).status == "in_progress"
