"""Batches when something goes wrong: each row has one record all the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from pathlib import Path

import openai
import pytest

from e2e.jobs_stage import calls, children, client_of, config, engine, names, prompt_of, reach, records, rows, submit
from e2e.raw import Visit, ask, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]


async def soon(visit: Visit) -> None:
    await asyncio.sleep(0.02)
    visit.answer(whole(prompt_of(visit)))


async def test_the_gateway_is_killed_at_random_moments(tmp_path: Path) -> None:
    """No row is lost or doubled; the engine is asked for no more than what was in flight again."""
    chance, count, seats, kills = random.Random(7), 300, 8, 5
    batch, again = None, 0
    async with engine(soon).running() as upstream:
        settings = config(tmp_path, upstream.url, seats=seats)
        for _ in range(kills):
            async with gateway(settings) as process, client_of(process.url) as client:
                batch = await submit(client, rows(count)) if batch is None else await client.batches.retrieve(batch.id)
                await asyncio.sleep(chance.uniform(0.05, 0.5))
                counts = (await client.batches.retrieve(batch.id)).request_counts
                assert counts is not None
                process.signal(signal.SIGKILL)
                again += len(calls(upstream)) + seats - counts.completed
        async with gateway(settings) as process, client_of(process.url) as client:
            assert batch is not None
            batch = await reach(client, batch)
            output, errors = await records(client, batch)
            assert (batch.status, len(output), len(errors)) == ("completed", count, 0)
            asked = calls(upstream)
            assert len(asked) == count
            # In flight at a kill: rows with a seat, and answers that were not on disk yet.
            assert asked.total() <= count + again


async def test_the_worker_is_killed(tmp_path: Path) -> None:
    """The gateway starts another one; rows that were being answered are not asked for again."""
    count = 400
    async with (
        engine(soon).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=4)) as process,
        client_of(process.url) as client,
    ):
        batch = await submit(client, rows(count))
        for _ in range(2):
            await asyncio.sleep(0.3)
            for pid in children(process.pid):
                os.kill(pid, signal.SIGKILL)
            batch = await client.batches.retrieve(batch.id)  # waits for the next worker
        batch = await reach(client, batch)
        output, _ = await records(client, batch)
        assert len(output) == count
        assert calls(upstream).total() == count


async def test_the_engine_dies_and_comes_back(tmp_path: Path) -> None:
    """No connection is no attempt: nothing is dead-lettered however long it takes."""
    count = 60
    async with engine(soon).running() as upstream:
        port = int(upstream.url.rpartition(":")[2])
        async with contextlib.AsyncExitStack() as stack:
            settings = config(tmp_path, upstream.url, seats=4, jobs=", max_attempts: 1")
            process = await stack.enter_async_context(gateway(settings))
            client = await stack.enter_async_context(client_of(process.url))
            batch = await submit(client, rows(count))
            await asyncio.sleep(0.15)
            upstream.behave = hang_up
            await asyncio.sleep(0.5)
            upstream.behave = soon
            batch = await reach(client, batch)
            output, errors = await records(client, batch)
            assert (len(output), len(errors)) == (count, 0)
    assert port


async def hang_up(visit: Visit) -> None:
    visit.writer.close()


async def test_an_engine_that_is_too_busy_costs_no_attempt(tmp_path: Path) -> None:
    busy = True

    async def serve(visit: Visit) -> None:
        if busy:
            visit.answer(b'{"error": {"message": "slow down", "code": "rate_limit_exceeded"}}', 429)
        else:
            visit.answer(whole(prompt_of(visit)))

    async with (
        engine(serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, jobs=", max_attempts: 1")) as process,
        client_of(process.url) as client,
    ):
        loop = asyncio.get_running_loop()
        began = loop.time()
        batch = await submit(client, rows(20))
        await asyncio.sleep(3)
        busy = False
        asked = calls(upstream)
        assert asked
        assert max(asked.values()) <= 1 + loop.time() - began, "a second between two tries at least"
        batch = await reach(client, batch)
        output, errors = await records(client, batch)
        assert (len(output), len(errors)) == (20, 0)


async def test_failures_are_tried_again_and_then_are_dead_letters(tmp_path: Path) -> None:
    whole_again = asyncio.Event()

    async def serve(visit: Visit) -> None:
        if prompt_of(visit) == "r1" and not whole_again.is_set():
            visit.answer(b'{"error": {"message": "it broke"}}', 500)
        else:
            visit.answer(whole(prompt_of(visit)))

    async with (
        engine(serve).running() as upstream,
        gateway(config(tmp_path, upstream.url, jobs=", max_attempts: 2")) as process,
        client_of(process.url) as client,
    ):
        batch = await reach(client, await submit(client, rows(3)))
        output, errors = await records(client, batch)
        assert (batch.status, names(output), names(errors)) == ("completed", {"r0", "r2"}, {"r1"})
        assert errors[0]["response"]["status_code"] == 500
        assert calls(upstream)["r1"] == 2
        found = json.loads((await ask(process.control, method="GET", path="/admin/dead-letters")).body)
        (letter,) = found["dead_letters"]
        assert (letter["custom_id"], letter["attempts"], letter["status"]) == ("r1", 2, 500)
        whole_again.set()
        again = await ask(process.control, path=f"/admin/dead-letters/{letter['id']}/redrive")
        assert again.status == 200
        new = await client.batches.retrieve(json.loads(again.body)["batch_id"])
        new = await reach(client, new)
        output, errors = await records(client, new)
        assert (names(output), names(errors)) == ({"r1"}, set())
        assert new.model_extra is not None
        assert new.model_extra["x_tidegate"]["redrive_of"] == batch.id
        gone = await ask(process.control, method="DELETE", path=f"/admin/dead-letters/{letter['id']}")
        assert gone.status == 404


async def test_a_batch_is_cancelled_and_keeps_what_is_done(tmp_path: Path) -> None:
    async with (
        engine(soon).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=2)) as process,
        client_of(process.url) as client,
    ):
        batch = await submit(client, rows(200))
        await until(lambda: calls(upstream).total() >= 60, within_s=10)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        batch = await reach(client, batch)
        asked = calls(upstream).total()
        assert (await client.batches.cancel(batch.id)).status == "cancelled"
        output, errors = await records(client, batch)
        assert asked == len(output)
        assert {record["error"]["code"] for record in errors} == {"batch_cancelled"}
        await asyncio.sleep(0.3)
        assert calls(upstream).total() == asked < 200


async def test_a_window_ends(tmp_path: Path) -> None:
    async def slowly(visit: Visit) -> None:
        await asyncio.sleep(0.3)
        visit.answer(whole(prompt_of(visit)))

    async with (
        engine(slowly).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=1)) as process,
        client_of(process.url) as client,
    ):
        batch = await reach(client, await submit(client, rows(50), window="5s"))
        assert (batch.status, batch.expired_at is not None) == ("expired", True)
        output, errors = await records(client, batch)
        assert output
        assert {record["error"]["code"] for record in errors} == {"batch_expired"}
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)


async def test_rows_wait_while_only_transactions_run(tmp_path: Path) -> None:
    async with (
        engine(soon).running() as upstream,
        gateway(config(tmp_path, upstream.url, seats=2)) as process,
        client_of(process.url) as client,
    ):
        batch = await submit(client, rows(120))
        await until(lambda: calls(upstream).total() >= 20, within_s=10)
        body = {"mode": "transactions_only"}
        assert (await ask(process.control, body, path="/admin/mode")).status == 200
        await until(lambda: process.total("tidegate_running") == 0, within_s=5)
        held = calls(upstream).total()
        await asyncio.sleep(0.5)
        assert calls(upstream).total() == held < 120
        assert (await ask(process.control, {"mode": "normal"}, path="/admin/mode")).status == 200
        batch = await reach(client, batch)
        assert len((await records(client, batch))[0]) == calls(upstream).total() == 120


async def test_a_limit_of_the_tenant_slows_its_batch_and_loses_nothing(tmp_path: Path) -> None:
    from tidegate.config import key_digest

    tenant = f'{{name: t, keys: ["{key_digest("k")}"], band: p2, limits: {{max_queued: 3, max_running: 2}}}}'
    settings = config(tmp_path, "{url}", more=f"tenants: [{tenant}]\n")
    async with (
        engine(soon).running() as upstream,
        gateway(settings.replace("{url}", upstream.url)) as process,
        client_of(process.url, "k") as client,
    ):
        batch = await reach(client, await submit(client, rows(30)))
        assert len((await records(client, batch))[0]) == 30
        assert upstream.most <= 2


async def test_a_gateway_that_is_stopped_leaves_nothing_open(tmp_path: Path) -> None:
    async with engine(soon).running() as upstream:
        settings = config(tmp_path, upstream.url, seats=2)
        async with gateway(settings) as process, client_of(process.url) as client:
            batch = await submit(client, rows(100))
            await until(lambda: calls(upstream).total() >= 20, within_s=10)
            worker = children(process.pid)
            process.signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
            assert worker
            assert not [pid for pid in worker if os.path.exists(f"/proc/{pid}")]  # noqa: ASYNC240
        async with gateway(settings) as process, client_of(process.url) as client:
            batch = await reach(client, batch)
            assert len((await records(client, batch))[0]) == 100
            assert calls(upstream).total() == 100
