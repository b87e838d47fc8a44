"""``kill -9`` of the engine, of PostgreSQL, and of whatever it hits with two gateways on one PostgreSQL.

Real processes throughout. ``python -m benchmarks.jobs_kill`` tells the same story at length.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai.types import Batch

from e2e.jobs_stage import ENDED, client_of, config, records, row, submit
from e2e.raw import gateway
from tidegate.testing.counting_engine import CountingEngine, counting_engine
from tidegate.testing.gateway_process import GatewayProcess
from tidegate.testing.postgres import PostgresProcess, postgres_process

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(90)]
COUNT, SEATS = 400, 4


@pytest.fixture
def postgres() -> Iterator[PostgresProcess]:
    with postgres_process() as server:
        yield server


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[CountingEngine]:
    with counting_engine(tmp_path / "asked", delay_s=0.02) as engine:
        yield engine


class Looker:
    """Looks at a batch through whichever gateway answers; counts must never run backwards."""

    def __init__(self) -> None:
        self.gateways: list[GatewayProcess] = []
        self._before = (0, 0)

    async def look(self, batch: Batch) -> Batch:
        for process in self.gateways:
            async with client_of(process.url) as client:
                try:
                    batch = await client.batches.retrieve(batch.id)
                except Exception:  # noqa: BLE001 - it is dead, or has no store now
                    continue
            counts = batch.request_counts
            assert counts is not None
            assert counts.completed >= self._before[0]
            assert counts.failed >= self._before[1]
            self._before = (counts.completed, counts.failed)
            break
        return batch

    async def until_ended(self, batch: Batch, within_s: float) -> Batch:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while batch.status not in ENDED:
                    await asyncio.sleep(0.05)
                    batch = await self.look(batch)
        return batch

    @property
    def done(self) -> int:
        """Rows that are known to have ended."""
        return sum(self._before)


def content() -> bytes:
    prompts = ([{"role": "user", "content": f"row {number}"}] for number in range(COUNT))
    return b"\n".join(row(f"r{number}", messages=prompt) for number, prompt in enumerate(prompts))


async def going(looker: Looker, batch: Batch, counting: CountingEngine, for_s: float) -> Batch:
    """Wait until rows are asked for again, so that a kill hits some, and then a while."""
    before = counting.size()
    while counting.size() == before and batch.status not in ENDED:
        batch = await looker.until_ended(batch, 0.1)
    return await looker.until_ended(batch, for_s)


async def judge(looker: Looker, batch: Batch, counting: CountingEngine, in_flight: int) -> None:
    batch = await looker.until_ended(batch, 40)
    assert batch.status == "completed"
    async with client_of(looker.gateways[0].url) as client:
        output, errors = await records(client, batch)
    assert (len(output), len(errors)) == (COUNT, 0)
    calls = counting.calls()
    assert len(calls) == COUNT
    assert calls.total() <= COUNT + in_flight + 3 * SEATS, "what was on its way to the engine was not counted there yet"


async def test_the_engine_is_killed(tmp_path: Path, counting: CountingEngine) -> None:
    """Rows without an answer go back and use no attempt: with one attempt each, none is a dead letter."""
    chance, looker, in_flight = random.Random(3), Looker(), 0
    async with gateway(config(tmp_path, counting.url, seats=SEATS, jobs=", max_attempts: 1")) as process:
        looker.gateways.append(process)
        async with client_of(process.url) as client:
            batch = await submit(client, content())
        for _ in range(2):
            batch = await going(looker, batch, counting, chance.uniform(0.1, 0.4))
            done = looker.done
            counting.kill()
            in_flight += len(counting.calls()) - done
            await asyncio.sleep(chance.uniform(0, 0.3))
            await asyncio.to_thread(counting.start)
        await judge(looker, batch, counting, in_flight)


@pytest.mark.services
async def test_the_database_is_killed(tmp_path: Path, counting: CountingEngine, postgres: PostgresProcess) -> None:
    """The gateway keeps what it holds and says it again: no row is asked for twice."""
    chance, looker = random.Random(4), Looker()
    text = config(tmp_path, counting.url, seats=SEATS).replace(f"sqlite:///{tmp_path}/jobs.db", postgres.url)
    async with gateway(text) as process:
        looker.gateways.append(process)
        async with client_of(process.url) as client:
            batch = await submit(client, content())
        in_flight = 0
        for _ in range(3):
            batch = await going(looker, batch, counting, chance.uniform(0.1, 0.4))
            done = looker.done
            await asyncio.to_thread(postgres.kill)
            in_flight += len(counting.calls()) - done
            await asyncio.sleep(chance.uniform(0, 0.3))
            await asyncio.to_thread(postgres.start)
        await judge(looker, batch, counting, in_flight)


@pytest.mark.services
async def test_two_gateways_and_anything_is_killed(
    tmp_path: Path, counting: CountingEngine, postgres: PostgresProcess
) -> None:
    chance, looker, in_flight = random.Random(5), Looker(), 0
    text = config(tmp_path, counting.url, seats=SEATS).replace(f"sqlite:///{tmp_path}/jobs.db", postgres.url)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            looker.gateways.append(await stack.enter_async_context(gateway(text)))
        async with client_of(looker.gateways[0].url) as client:
            batch = await submit(client, content())
        for victim in ("gateway", "engine", "postgres"):
            batch = await going(looker, batch, counting, chance.uniform(0.2, 0.5))
            done = looker.done
            if victim == "gateway":
                dead = looker.gateways.pop(chance.randrange(2))
                dead.signal(signal.SIGKILL)
                await asyncio.to_thread(dead.wait, 10)
            elif victim == "engine":
                counting.kill()
            else:
                await asyncio.to_thread(postgres.kill)
            in_flight += len(counting.calls()) - done
            if victim == "gateway":
                looker.gateways.append(await stack.enter_async_context(gateway(text)))
            elif victim == "engine":
                await asyncio.to_thread(counting.start)
            else:
                await asyncio.to_thread(postgres.start)
        await judge(looker, batch, counting, in_flight)
