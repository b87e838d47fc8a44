"""More work than an engine can take: what waits, waits in the gateway and in the order of the bands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from statistics import mean

import pytest

from e2e.client_cases import Target
from engines.servers import ENGINE_TEST, VLLM_SLOTS, Answer, Gauge, ask, behind_gateway, kept_open, reached
from tidegate.testing.engines import EngineServer

pytestmark = ENGINE_TEST

WAITING = {"llamacpp": "llamacpp:requests_deferred", "vllm": "vllm:num_requests_waiting"}
LONG = "word and more " * 45
"""Some 140 tokens: more than four blocks."""
SEATS = {"llamacpp": 4, "vllm": VLLM_SLOTS}


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
        answers = await asyncio.gather(*(ask(client, tokens=60) for _ in range(4 * seats)))
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

        def batch_row(number: int) -> Awaitable[Answer]:
            return ask(client, tokens=8 + 4 * (number % 6), band="p2")  # so that seats come back one by one

        async with kept_open(5 * seats, batch_row) as low:
            await reached(lambda: target.gateway.total("tidegate_queue_depth", band="p2") >= 3 * seats)
            high = await asyncio.gather(*(ask(client, tokens=10, band="p0") for _ in range(4)))
    came = min(answer.asked for answer in high)
    earlier = [answer for answer in low if answer.asked < came < answer.ended]
    assert [answer for answer in high + low if answer.error] == []
    assert len(earlier) >= 4 * seats
    assert mean(answer.waited_s for answer in high) < mean(answer.waited_s for answer in earlier) / 2


@pytest.mark.parametrize("kind", ["openai", "vllm"])
async def test_a_full_kv_cache_of_vllm_costs_time_but_no_answer(slow_vllm: EngineServer, kind: str) -> None:
    """By a gateway that cannot see the cache, and by one that can: five prompts fit, their answers do not."""
    before = slow_vllm.total("vllm:num_preemptions_total")

    def full() -> bool:
        preempted = slow_vllm.total("vllm:num_preemptions_total") - before
        return preempted > 0 or slow_vllm.total("vllm:kv_cache_usage_perc") > 0.9

    with behind_gateway(slow_vllm, seats=VLLM_SLOTS, kind=kind) as target:
        async with target.many() as client:

            def batch_row(number: int) -> Awaitable[Answer]:
                return ask(client, tokens=80, band="p2", prompt=f"{number} {LONG}")  # no common start to share blocks

            async with kept_open(5, batch_row) as low:
                await reached(full if kind == "openai" else lambda: target.running() >= 2)
                high = await ask(client, tokens=60, band="p0")
    assert [answer for answer in [high, *low] if answer.error] == []
    assert high.tokens == 60
    assert {answer.tokens for answer in low} == {80}
