"""The bands inside vLLM's batch: our scheduler class against vLLM's own priority policy, on the same load."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import openai
import pytest

from e2e.client_cases import Target
from e2e.raw import until
from engines.servers import (
    ENGINE_TEST,
    VLLM_SLOTS,
    Answer,
    ask,
    behind_gateway,
    vllm_server,
)
from tidegate.testing.engines import EngineServer
from tidegate.testing.real_engines import MODEL, SCHEDULER

pytestmark = ENGINE_TEST

SEATS = 8
SETTINGS = "policy: {preempt_rate: 0, bands: {p0: {reserve: 0}, p1: {ceiling: 0.625}, p2: {ceiling: 0.625}}}\n"
"""Two seats more than the engine has slots, which lower bands do not take: what competes there, the engine decides.
The gateway itself stops nobody and keeps nothing free."""

P2_TOKENS = 145
LONG = "word and more " * 45
"""Some 140 tokens: more than four blocks."""


@pytest.fixture(scope="module")
def banded_vllm(logs: Path) -> Iterator[EngineServer]:
    """Like ``slow_vllm``, with our class in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
        with vllm_server(logs / "vllm-banded", model="slow", more=("--scheduler-cls", SCHEDULER)) as server:
            yield server


@dataclass(frozen=True, slots=True)
class Trial:
    """One p0 among p2 that holds all slots: its time to the first token, seconds, and what became of the p2."""

    first_s: float
    p0_tokens: int
    low: list[Answer]


async def trial(target: Target) -> Trial:
    async with target.many() as client:
        begun = [asyncio.Event() for _ in range(VLLM_SLOTS)]
        low = [asyncio.create_task(ask(client, tokens=P2_TOKENS, band="p2", begun=each)) for each in begun]
        for each in begun:  # each has a slot then; nothing is asked meanwhile that could take the time of their answers
            await each.wait()
        first_s, tokens = await first_token(client, tokens=20)
        return Trial(first_s, tokens, await asyncio.gather(*low))


async def first_token(client: openai.AsyncOpenAI, *, tokens: int) -> tuple[float, int]:
    """Ask as p0; give the seconds to the first piece of text, and the tokens of the whole answer."""
    asked, first, counted = time.monotonic(), 0.0, 0
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "tide"}],
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
        extra_headers={"x-tidegate-band": "p0"},
    )
    async for chunk in stream:
        if not first and chunk.choices and chunk.choices[0].delta.content:
            first = time.monotonic() - asked
        counted = chunk.usage.completion_tokens if chunk.usage else counted
    return first, counted


@pytest.mark.timeout(600, func_only=True)
async def test_p0_does_not_wait_for_the_p2_that_holds_all_slots(
    slow_vllm: EngineServer, banded_vllm: EngineServer
) -> None:
    """Both in turn, so that whatever else the machine does meets both."""
    stock, banded = [], []
    before = banded_vllm.total("vllm:num_preemptions_total")
    with (
        behind_gateway(slow_vllm, seats=SEATS, settings=SETTINGS) as with_stock,
        behind_gateway(banded_vllm, seats=SEATS, settings=SETTINGS) as with_class,
    ):
        for _ in range(3):
            stock.append(await trial(with_stock))
            banded.append(await trial(with_class))
    stopped = banded_vllm.total("vllm:num_preemptions_total") - before
    for each in stock + banded:
        assert [answer.error for answer in each.low] == [None] * VLLM_SLOTS, "no p2 is lost"
        assert [answer.tokens for answer in each.low] == [P2_TOKENS] * VLLM_SLOTS
        assert each.p0_tokens == 20
    waits = [[round(each.first_s, 3) for each in trials] for trials in (stock, banded)]
    told = f"stock priority {waits[0]} s, our class {waits[1]} s, {stopped:.0f} stops"
    print(f"p0's first token with all slots held by p2: {told}")  # noqa: T201 - shown by pytest -s
    assert stopped >= 3
    assert median(waits[1]) <= median(waits[0]) / 10, waits


async def test_a_full_kv_cache_costs_p0_nothing_and_loses_no_answer(banded_vllm: EngineServer) -> None:
    """Five p2 prompts fit, their answers do not; p0 comes when the cache is full."""
    server = banded_vllm
    before, seen = server.total("vllm:num_preemptions_total"), server.log.stat().st_size

    def full() -> bool:
        stopped = server.total("vllm:num_preemptions_total") - before
        return stopped > 0 or server.total("vllm:kv_cache_usage_perc") > 0.9

    settings = SETTINGS.replace("p2: {ceiling: 0.625", KEEP)
    with behind_gateway(server, seats=SEATS, settings=settings) as target:
        async with target.many() as client:
            low: list[Answer] = []
            going = True

            async def in_turn(number: int) -> None:
                while going:
                    low.append(await ask(client, tokens=80, band="p2", prompt=f"{number} {len(low)} {LONG}"))

            async with asyncio.TaskGroup() as group:
                for number in range(5):
                    group.create_task(in_turn(number))
                await until(full, within_s=180)
                high = await asyncio.gather(*(ask(client, tokens=60, band="p0") for _ in range(2)))
                going = False
    assert [answer for answer in [*high, *low] if answer.error] == []
    assert {answer.tokens for answer in high} == {60}
    assert {answer.tokens for answer in low} == {80}
    stopped = re.findall(r"tidegate: band (\d) stopped", server.log.read_text()[seen:])
    assert "2" in stopped, "the cache was never short"
    assert "0" not in stopped


KEEP = "p2: {kv_watermark: 0, kv_resume: 0, ceiling: 0.625"
"""The gateway's own watermark is off, so that the cache gets full."""
