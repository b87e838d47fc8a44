"""What real engines show of themselves, and what the gateway makes of it."""

from __future__ import annotations

import asyncio

from e2e.raw import until
from engines.servers import ENGINE_TEST, VLLM_BLOCK, VLLM_BLOCKS, ask, behind_gateway
from tidegate.backends import SIGNALS
from tidegate.backends.engine_signals import read_page, read_slots
from tidegate.core import Reading
from tidegate.testing.engines import EngineServer

pytestmark = ENGINE_TEST


def reading(engine: EngineServer) -> Reading:
    names = SIGNALS[engine.kind]
    assert names is not None
    found = read_page(names, engine.get("/metrics"), backend="b", at=0.0)
    assert found is not None
    return found


async def test_vllm_shows_everything_that_the_table_names(slow_vllm: EngineServer) -> None:
    before = reading(slow_vllm)
    assert before == Reading("b", 0.0, 1.0, 0, 0, before.preemptions, before.kv_tokens, before.generated)
    assert before.preemptions is not None
    assert before.kv_tokens is not None
    assert before.kv_tokens // VLLM_BLOCK in (VLLM_BLOCKS, VLLM_BLOCKS + 1)  # one block is never used
    with behind_gateway(slow_vllm, seats=4) as target:
        async with target.many() as client:
            streams = [asyncio.ensure_future(ask(client, tokens=200)) for _ in range(4)]
            fullest = 1.0
            while not all(stream.done() for stream in streams):
                shown = target.gateway.total("tidegate_backend_kv_free_ratio")
                fullest = min(fullest, shown)
                await asyncio.sleep(0.05)
            await asyncio.gather(*streams)
        assert -1.0 <= fullest < 0.8
        await until(lambda: target.gateway.total("tidegate_backend_kv_free_ratio") == 1.0, within_s=90)
        assert target.gateway.total("tidegate_backend_stale") == 0
    after = reading(slow_vllm)
    assert (after.generated or 0) - (before.generated or 0) == 800


async def test_llamacpp_shows_its_requests_and_slots_but_no_cache(slow_llama: EngineServer) -> None:
    shown = reading(slow_llama)
    assert (shown.running, shown.waiting, shown.kv_free, shown.kv_tokens) == (0, 0, None, None)
    slots = read_slots(slow_llama.get("/slots"))
    assert slots is not None
    assert len(slots) == 4
    with behind_gateway(slow_llama, seats=8) as target:
        await until(lambda: target.gateway.total("tidegate_seats") == 4, within_s=90)
        async with target.many() as client:
            answers = await asyncio.gather(*[ask(client, tokens=50) for _ in range(10)])
        assert [answer.error for answer in answers] == [None] * 10
        assert target.gateway.total("tidegate_backend_stale") == 0
