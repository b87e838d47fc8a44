"""More work than an engine can take: what waits, waits in the gateway and in the order of the bands."""

from __future__ import annotations

import asyncio
from statistics import mean

import pytest

from e2e.client_cases import Target
from engines.servers import ENGINE_TEST, VLLM_BLOCK, VLLM_BLOCKS, Gauge, ask

pytestmark = ENGINE_TEST

WAITING = {"llamacpp": "llamacpp:requests_deferred", "vllm": "vllm:num_requests_waiting"}
SEATS = {"llamacpp": 4, "vllm": 6}


@pytest.fixture(params=["llama_target", "vllm_target"], ids=["llamacpp", "vllm"])
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue(request.param)
    return found


async def test_more_requests_than_slots_wait_in_the_gateway(target: Target) -> None:
    kind, seats = target.engine.kind, SEATS[target.engine.kind]
    inside, queued = Gauge(), Gauge()
    async with (
        target.many() as client,
        inside.watching(lambda: target.engine.total(WAITING[kind])),
        queued.watching(lambda: target.gateway.total("tidegate_queue_depth")),
    ):
        answers = await asyncio.gather(*(ask(client, tokens=20) for _ in range(4 * seats)))
    assert [answer for answer in answers if answer.error] == []
    assert max(queued.seen) >= seats
    # vLLM shows a request as waiting for the moment between its arrival and the next step
    allowed = 0 if kind == "llamacpp" else seats
    assert max(inside.seen) <= allowed
    assert mean(inside.seen) < 1
    assert len(inside.seen) > 10


async def test_without_a_gateway_they_wait_in_the_engine(target: Target) -> None:
    """Shows that the number above can be wrong."""
    kind, seats = target.engine.kind, SEATS[target.engine.kind]
    inside = Gauge()
    async with target.many() as client, inside.watching(lambda: target.engine.total(WAITING[kind])):
        straight = client.with_options(base_url=target.engine.url + "/v1")
        await asyncio.gather(*(_plain(straight, tokens=20) for _ in range(4 * seats)))
    assert max(inside.seen) > seats


async def _plain(client: object, *, tokens: int) -> None:
    await client.chat.completions.create(  # type: ignore[attr-defined]
        model="tiny",
        messages=[{"role": "user", "content": "tide"}],
        max_tokens=tokens,
        extra_body={"ignore_eos": True},
    )


async def test_p0_runs_before_the_p2_that_came_earlier(target: Target) -> None:
    seats = SEATS[target.engine.kind]
    async with target.many() as client:
        lengths = [8 + 4 * (number % 6) for number in range(5 * seats)]  # so that seats come back one by one
        low = [asyncio.create_task(ask(client, tokens=length, band="p2")) for length in lengths]
        while await asyncio.to_thread(target.gateway.total, "tidegate_queue_depth", band="p2") < 4 * seats:
            assert not any(task.done() for task in low)
        high = await asyncio.gather(*(ask(client, tokens=10, band="p0") for _ in range(4)))
        came = min(answer.asked for answer in high)
        overtaken = [answer for answer in await asyncio.gather(*low) if answer.seated > came]
    assert [answer for answer in high + overtaken if answer.error] == []
    assert len(overtaken) >= seats
    p0_waited = mean(answer.seated - came for answer in high)
    p2_waited = mean(answer.seated - came for answer in overtaken)
    assert p0_waited < p2_waited / 2


async def test_a_full_kv_cache_of_vllm_costs_time_but_no_answer(vllm_target: Target) -> None:
    engine = vllm_target.engine
    low_tokens, high_tokens, cache = 220, 60, VLLM_BLOCKS * VLLM_BLOCK
    assert 5 * low_tokens > cache, "the case needs more tokens than the cache holds"
    before = engine.total("vllm:num_preemptions_total")
    use = Gauge()
    async with vllm_target.many() as client, use.watching(lambda: engine.total("vllm:kv_cache_usage_perc")):
        low = [asyncio.create_task(ask(client, tokens=low_tokens, band="p2")) for _ in range(5)]
        while await asyncio.to_thread(vllm_target.running) < 5:
            pass
        high = await ask(client, tokens=high_tokens, band="p0")
        answers = [high, *await asyncio.gather(*low)]
    assert [answer for answer in answers if answer.error] == []
    assert [answer.tokens for answer in answers] == [high_tokens, *[low_tokens] * 5]
    assert max(use.seen) > 0.9 or engine.total("vllm:num_preemptions_total") > before
