"""Two gateways share one PostgreSQL: each row is claimed by one of them, whoever dies."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types import Batch

from e2e.jobs_stage import calls, client_of, config, engine, prompt_of, reach, records, rows, submit
from e2e.raw import Visit, ask, gateway, until, whole
from tidegate.testing.postgres import PostgresProcess, postgres_process

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.anyio, pytest.mark.timeout(60)]
COUNT, SEATS = 300, 4


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresProcess]:
    with postgres_process() as server:
        yield server


def settings(folder: Path, url: str, store: str) -> str:
    return config(folder, url, seats=SEATS).replace(f"sqlite:///{folder}/jobs.db", store)


async def soon(visit: Visit) -> None:
    await asyncio.sleep(0.02)
    visit.answer(whole(prompt_of(visit)))


async def test_two_gateways_share_a_batch_and_one_is_killed(tmp_path: Path, postgres: PostgresProcess) -> None:
    both_send = asyncio.Event()

    async def held(visit: Visit) -> None:
        await both_send.wait()
        await soon(visit)

    async with engine(held).running() as upstream:
        text = settings(tmp_path, upstream.url, postgres.url)
        async with gateway(text) as one, gateway(text) as two, client_of(two.url) as client:
            async with client_of(one.url) as first:
                batch = await submit(first, rows(COUNT))
            await until(lambda: upstream.most > SEATS, within_s=20)
            both_send.set()
            await until(lambda: calls(upstream).total() > COUNT // 4, within_s=20)
            counts = (await client.batches.retrieve(batch.id)).request_counts
            assert counts is not None
            one.signal(signal.SIGKILL)
            again = len(calls(upstream)) + SEATS - counts.completed
            batch = await reach(client, batch, within_s=30)
            output, _ = await records(client, batch)
            assert len(output) == COUNT
            assert calls(upstream).total() <= COUNT + again


async def refusal(client: openai.AsyncOpenAI, batch: str) -> openai.APIStatusError:
    """Ask for a batch until that is refused: the server's children outlive their parent for a moment."""
    async with asyncio.timeout(20):
        while True:
            try:
                await client.batches.retrieve(batch)
            except openai.APIStatusError as error:
                return error
            await asyncio.sleep(0.01)


async def found(client: openai.AsyncOpenAI, batch: str) -> Batch:
    """Ask for a batch until it is told: the gateway connects again in its own time."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await client.batches.retrieve(batch)
            except openai.APIStatusError:
                await asyncio.sleep(0.05)


async def test_the_database_is_killed_and_started_again(tmp_path: Path, postgres: PostgresProcess) -> None:
    async with engine(soon).running() as upstream:
        text = settings(tmp_path, upstream.url, postgres.url)
        async with gateway(text) as process, client_of(process.url) as client:
            batch = await submit(client, rows(COUNT))
            for _ in range(2):
                before = calls(upstream).total()
                await until(lambda: calls(upstream).total() > before + 20, within_s=10)  # noqa: B023
                await asyncio.to_thread(postgres.kill)
                refused = await refusal(client, batch.id)
                assert (refused.status_code, refused.code) == (503, "store_unavailable")
                assert "PGSQL" not in refused.message, "a client hears nothing of where the store is"
                await until(lambda: "PGSQL" in process.log.read_text(), within_s=10)
                await asyncio.sleep(0.3)
                await asyncio.to_thread(postgres.start)
            batch = await reach(client, await found(client, batch.id), within_s=30)
            output, errors = await records(client, batch)
            assert (len(output), len(errors)) == (COUNT, 0)


async def test_a_request_waits_for_a_batch_whichever_gateway_ends_it(tmp_path: Path, postgres: PostgresProcess) -> None:
    async with engine(soon).running() as upstream:
        text = settings(tmp_path, upstream.url, postgres.url)
        async with gateway(text) as one, gateway(text) as two, client_of(one.url) as client:
            batch = await submit(client, rows(60))
            body = {"model": "raw", "messages": [{"role": "user", "content": "last"}]}
            headers = {"x-tidegate-depends-on": batch.id}
            waiting = [asyncio.ensure_future(ask(each.url, body, headers=headers)) for each in (one, two)]
            answers = await asyncio.wait_for(asyncio.gather(*waiting), 30)
            assert [answer.status for answer in answers] == [200, 200]
            asked = [prompt_of(visit) for visit in upstream.visits]
            assert asked[-2:] == ["last", "last"]
            assert len(asked) == 62
