"""A mode that closes a band, and answers of that band that have begun: they go on to their end."""

from __future__ import annotations

import asyncio

import pytest

from e2e.raw import gateway, until
from e2e.test_control import admin, is_fallback
from e2e.test_resuming import Doomed, config, engine, errors, going, read, request, say  # noqa: F401  (a fixture)
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]  # 2 s on a machine at rest

LOW = request("tell me", stream=True, max_tokens=120)
LONG = request("vip", stream=True, max_tokens=250)


async def only_p0(process: GatewayProcess) -> None:
    status, _ = await admin(process, "POST", "/admin/mode", {"mode": "transactions_only"})
    assert status == 200


async def test_an_answer_that_was_stopped_goes_on_while_only_p0_is_admitted(engine: str) -> None:  # noqa: F811
    async with gateway(config(engine, seats=1)) as process:
        expected = read(await say(engine, LOW))
        low = asyncio.ensure_future(say(process.url, LOW))
        await going(engine, 1)
        high = asyncio.ensure_future(say(process.url, LONG, "p0"))
        await until(lambda: process.total("tidegate_preemptions_total") == 1, within_s=5)
        new = asyncio.ensure_future(say(process.url, LOW))
        await until(lambda: process.total("tidegate_queue_depth", band="p2") == 2, within_s=5)
        await only_p0(process)
        assert is_fallback(await new)
        assert read(await high)[2] == ["length"]
        assert read(await low)[0] == expected[0]
        assert process.state()["mode"] == "transactions_only"


async def test_an_answer_whose_engine_died_goes_on_while_only_p0_is_admitted(engine: str) -> None:  # noqa: F811
    async with Doomed() as doomed, gateway(config(engine, doomed.url, seats=1)) as process:
        expected = read(await say(engine, LOW))
        high = asyncio.ensure_future(say(process.url, LONG, "p0"))
        await until(lambda: process.total("tidegate_running", backend="b0") == 1, within_s=5)
        low = asyncio.ensure_future(say(process.url, LOW))
        await until(lambda: process.total("tidegate_running", backend="b1") == 1, within_s=5)
        await going(doomed.url, 1)
        doomed.kill()
        await until(lambda: process.total("tidegate_running", backend="b1") == 0, within_s=5)
        await only_p0(process)
        answer = await low
        assert errors(answer) == 0
        assert read(answer)[0] == expected[0]
        assert read(await high)[2] == ["length"]
        assert process.total("tidegate_resumes_total", cause="broken", outcome="completed") == 1
