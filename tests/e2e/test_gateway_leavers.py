"""Clients that leave, in every state: nothing of them stays, here or at the engine."""

from __future__ import annotations

import asyncio
import random

import pytest

from e2e.raw import DONE, Answer, Client, Upstream, Visit, ask, chat, chunk, gateway, until, whole
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

SEATS = 32

CONFIG = """
models: [{{name: raw, backends: [{{name: b0, url: "{url}", engine: vllm, seats: {seats}}}]}}]
policy: {{bands: {{p0: {{reserve: 0}}}}}}
"""


def ended(process: GatewayProcess) -> dict[str, float]:
    names = ("completed", "failed", "rejected", "evicted", "cancelled")
    return {name: process.total("tidegate_requests_total", outcome=name) for name in names}


async def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    async def hang(visit: Visit) -> None:
        await asyncio.sleep(60)

    async with Upstream(hang).running() as upstream, gateway(CONFIG.format(url=upstream.url, seats=1)) as process:
        first, second = await Client.connect(process.url), await Client.connect(process.url)
        first.send(chat())
        await until(lambda: len(upstream.visits) == 1, within_s=5)
        second.send(chat())
        await until(lambda: process.total("tidegate_queue_depth") == 1, within_s=5)
        second.leave()
        await until(lambda: process.total("tidegate_queue_depth") == 0, within_s=1)
        assert len(upstream.visits) == 1
        first.leave()
        await until(upstream.visits[0].left.is_set, within_s=1)
        await until(lambda: process.total("tidegate_running") == 0, within_s=1)
        assert ended(process)["cancelled"] == 2
        assert {line["status"] for line in process.requests()} <= {499}


async def test_on_a_kept_connection_a_client_leaves_before_the_head_and_an_engine_that_ends_it_is_asked_again() -> None:
    seen: list[Visit] = []

    async def behave(visit: Visit) -> None:
        seen.append(visit)
        if len(seen) == 2:
            await asyncio.sleep(60)
        elif len(seen) == 4:
            visit.writer.transport.abort()
        else:
            visit.answer(whole())

    engine = Upstream(behave, keeps=True)
    async with engine.running() as upstream, gateway(CONFIG.format(url=upstream.url, seats=1)) as process:
        assert (await ask(process.url, chat())).status == 200
        leaver = await Client.connect(process.url)
        leaver.send(chat())
        await until(lambda: len(seen) == 2, within_s=5)
        assert seen[1].writer is seen[0].writer, "it went out on the connection that was kept"
        leaver.leave()
        await until(seen[1].left.is_set, within_s=1)
        await until(lambda: process.total("tidegate_running") == 0, within_s=1)
        for visits in (3, 5):
            answer = await ask(process.url, chat())
            assert (answer.status, answer.body, len(seen)) == (200, whole(), visits)
        assert seen[3].writer is seen[2].writer
        assert ended(process) == {"completed": 3, "failed": 0, "rejected": 0, "evicted": 0, "cancelled": 1}


@pytest.mark.timeout(60)  # about 5 s on a quiet machine
async def test_a_thousand_clients_leave_at_random_moments() -> None:
    """Seeded; so few seats that many leave while they wait, and streams so slow that many leave in the middle."""
    rng = random.Random(7)
    late: list[float] = []
    loop = asyncio.get_running_loop()
    gone: dict[bytes, float] = {}
    again = False

    async def trickle(visit: Visit) -> None:
        if again:
            await visit.left.wait()
        await asyncio.sleep(0.05)
        visit.start_stream()
        for _ in range(20):
            visit.send(chunk("word"))
            await asyncio.sleep(0.02)
        visit.send(DONE)

    async def one(url: str, number: int, patience_s: float) -> Answer | None:
        client = await Client.connect(url)
        client.send(chat(stream=True, user=str(number)))
        try:
            async with asyncio.timeout(patience_s):
                return await client.answer()
        except TimeoutError:
            gone[b'"user": "%d"' % number] = loop.time()
            return None
        finally:
            client.leave()

    async with (
        Upstream(trickle).running() as upstream,
        gateway(CONFIG.format(url=upstream.url, seats=SEATS)) as process,
    ):
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number in range(1000):
                tasks.append(group.create_task(one(process.url, number, rng.expovariate(1 / 0.8))))
                await asyncio.sleep(0.002)
        answers = [task.result() for task in tasks]
        whole = [answer for answer in answers if answer is not None]
        await until(lambda: process.total("tidegate_running") + process.total("tidegate_queue_depth") == 0, within_s=1)
        await until(lambda: upstream.open == 0, within_s=1)

        assert {(answer.status, answer.body[-len(DONE) :]) for answer in whole} == {(200, DONE)}
        outcomes = ended(process)
        assert sum(outcomes.values()) == 1000
        assert outcomes["completed"] >= len(whole)
        assert outcomes["failed"] == outcomes["rejected"] == outcomes["evicted"] == 0
        assert upstream.most <= SEATS + 8, "the stub may see the next request before it sees that another one left"
        for visit in upstream.visits:
            mark = next((mark for mark in gone if mark in visit.body), None)
            if mark is not None and visit.left.is_set():
                late.append(visit.left_at - gone[mark])
        assert len(late) > 100
        assert len(gone) - len(late) > 100
        assert max(late) < 1.0
        # No seat is lost: all of them can be used again at once.
        again = True
        clients = [await Client.connect(process.url) for _ in range(SEATS)]
        for client in clients:
            client.send(chat(stream=True))
        await until(lambda: upstream.open == SEATS, within_s=5)
        for client in clients:
            client.leave()
        await until(lambda: process.total("tidegate_running") == 0, within_s=1)
