"""Rows of batches while modes are switched, engines die, and batches are cancelled: each is recorded once, whole."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs_stage import client_of, reach, records, row, submit
from e2e.raw import ask, gateway, until
from e2e.test_chaos import Mortal, mortal, other, settings, steady, text_of  # noqa: F401  (fixtures)
from e2e.test_control import admin
from e2e.test_resuming import request, say
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(120)]  # 8 to 15 s on a machine at rest

ROWS = 24
STORM_S = 4.0


def body_of(number: int) -> dict[str, Any]:
    return request(f"row {number % 6}", max_tokens=20 + 10 * (number % 6))


async def storm(rng: random.Random, process: GatewayProcess, doomed: Mortal) -> None:
    """Switch modes, stop rows for p0, and kill an engine twice."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + STORM_S
    kills = [ends - STORM_S * part for part in (0.35, 0.75)]
    high = []
    while loop.time() < ends:
        await asyncio.sleep(rng.uniform(0.05, 0.2))
        high += [asyncio.ensure_future(say(process.url, request("vip", max_tokens=5), "p0")) for _ in range(3)]
        mode = rng.choice(["transactions_only", "normal", "normal", "observe", "quiet"])
        assert (await admin(process, "POST", "/admin/mode", {"mode": mode}))[0] == 200
        if kills and loop.time() > kills[-1]:
            kills.pop()
            await asyncio.to_thread(doomed.kill)
            await asyncio.sleep(rng.uniform(0, 0.5))
            await asyncio.to_thread(doomed.start)
    assert (await admin(process, "POST", "/admin/mode", {"mode": "normal"}))[0] == 200
    assert {answer.status for answer in await asyncio.gather(*high)} <= {200, 429, 502, 503}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_each_row_is_recorded_once_and_whole(steady: str, other: str, seed: int, tmp_path: Path) -> None:  # noqa: F811
    rng = random.Random(seed)
    whole = await asyncio.gather(*(ask(steady, body_of(number)) for number in range(6)))
    exact = [text_of(answer)[0] for answer in whole]
    jobs = f'\njobs: {{store: "sqlite:///{tmp_path}/jobs.db", files: "{tmp_path}/files"}}\n'
    lines = b"".join(row(f"r{number}", **body_of(number)) + b"\n" for number in range(ROWS))
    async with (
        mortal() as doomed,
        gateway(settings(steady, doomed.url, other, "fallback") + jobs) as process,
        client_of(process.url) as client,
    ):
        kept, dropped = await submit(client, lines), await submit(client, lines)
        await until(lambda: process.total("tidegate_running") >= 2, within_s=10)
        storming = asyncio.ensure_future(storm(rng, process, doomed))
        await asyncio.sleep(STORM_S * rng.uniform(0.2, 0.8))
        dropped = await client.batches.cancel(dropped.id)
        await storming
        kept, dropped = await reach(client, kept, within_s=60), await reach(client, dropped, within_s=30)
        assert (kept.status, dropped.status) == ("completed", "cancelled")
        output, errors = await records(client, kept)
        assert (len(output), errors) == (ROWS, [])
        some, cancelled = await records(client, dropped)
        assert {record["error"]["code"] for record in cancelled} <= {"batch_cancelled"}
        for record in (*output, *some):
            number = int(record["custom_id"].removeprefix("r"))
            (choice,) = record["response"]["body"]["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == (exact[number % 6], "length")
        assert process.total("tidegate_preemptions_total", victim="p2") >= 1
        await until(lambda: process.total("tidegate_running") == process.total("tidegate_queue_depth") == 0, within_s=5)
        assert "Traceback" not in process.log.read_text()
