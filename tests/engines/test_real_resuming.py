"""Answers that are stopped for p0, or whose engine dies, go on at a real engine: one stream, one end, the exact text.

What a continued leg says is what the engine itself says when it is asked to go on with the text so far. That need not
be what an uninterrupted answer would have said: a text cut into other tokens than it was written in goes on otherwise.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from e2e.client_cases import KEY, Target
from engines.servers import ENGINE_TEST, behind_gateway, llama_server
from tidegate.config import key_digest
from tidegate.testing.engines import EngineServer
from tidegate.testing.gateway_process import gateway_process
from tidegate.testing.real_engines import MODEL

pytestmark = ENGINE_TEST

STOPS = "policy: {preempt_rate: 1, max_preemptions: 9, bands: {p0: {reserve: 0}, p2: {floor: 0}}}\n"
TOKENS = 300
"""So many that an answer still runs when a client that got no time for a second asks for the next."""
QUESTION: list[Any] = [{"role": "user", "content": "tide"}]


@dataclass(slots=True)
class Told:
    """A streamed answer: its pieces and when each came, its ends and output tokens; ``begun`` after some pieces."""

    pieces: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    tokens: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def pause(self, began: float, ended: float) -> tuple[float, str]:
        """Of the time between two pieces that shares most with the one given: how much that is, and the text before."""
        shared = [min(after, ended) - max(before, began) for before, after in pairwise(self.times)]
        longest = max(shared)
        return longest, "".join(self.pieces[: shared.index(longest) + 1])


async def stream(
    client: openai.AsyncOpenAI, band: str, tokens: int, told: Told, messages: list[Any] = QUESTION
) -> None:
    more = {"add_generation_prompt": False, "continue_final_message": True} if len(messages) > 1 else {}
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True, **more},
        extra_headers={"x-tidegate-band": band},
    )
    async for chunk in answer:
        for choice in chunk.choices:
            if choice.delta.content:
                told.pieces.append(choice.delta.content)
                told.times.append(time.monotonic())
                if len(told.pieces) == 8:
                    told.begun.set()
            if choice.finish_reason:
                told.ends.append(choice.finish_reason)
        if chunk.usage:
            told.tokens = chunk.usage.completion_tokens


async def under_way(told: Told, task: asyncio.Task[None]) -> None:
    """Wait until an answer has begun; if it ends before, let its error be seen."""
    begun = asyncio.create_task(told.begun.wait())
    await asyncio.wait({begun, task}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        begun.cancel()
        await task
        raise AssertionError("the answer ended before it was stopped")


async def goes_on_exactly(told: Told, first: str, engine: EngineServer) -> None:
    """Hold an answer in two legs, of which ``first`` is one, against the engine itself."""
    assert (told.ends, told.tokens) == (["length"], TOKENS)
    rest = told.text.removeprefix(first)
    alone = Told()
    async with openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0) as direct:
        await stream(direct, "p0", TOKENS, alone, [*QUESTION, {"role": "assistant", "content": first}])
    assert len(rest) > 3
    assert not told.text.isascii(), "letters of two tokens can be cut in half"
    assert "\ufffd" not in told.text
    assert alone.text.startswith(rest)


@pytest.fixture(params=["slow_llama", "slow_vllm"], ids=["llamacpp", "vllm"])
def engine(request: pytest.FixtureRequest) -> EngineServer:
    """Started here and not in a test, whose limit is not meant for it."""
    found: EngineServer = request.getfixturevalue(request.param)
    return found


async def test_an_answer_that_is_stopped_for_p0_goes_on_exactly(engine: EngineServer) -> None:
    low, high = Told(), Told()
    with behind_gateway(engine, seats=1, settings=STOPS) as target:
        async with target.many() as client:
            going = asyncio.create_task(stream(client, "p2", TOKENS, low))
            await under_way(low, going)
            await stream(client, "p0", 40, high)
            await going
        stopped = target.gateway.total("tidegate_preemptions_total")
    assert (high.ends, high.tokens) == (["length"], 40)
    assert stopped == 1
    assert high.times[-1] < low.times[-1], "p0 was not served first"
    _, first = low.pause(high.times[0], high.times[-1])
    await goes_on_exactly(low, first, engine)


async def test_an_answer_whose_llama_cpp_dies_goes_on_exactly_at_another(logs: Path, slow_llama: EngineServer) -> None:
    """Two answers, one on each; the one whose engine dies waits for the other's seat."""
    both = Told(), Told()
    with llama_server(logs / "llama-mortal", model="slow", slots=4, context=4096) as mortal:
        rows = ", ".join(
            f'{{name: {name}, url: "{engine.url}", engine: llamacpp, seats: 1}}'
            for name, engine in (("a", mortal), ("b", slow_llama))
        )
        tenant = f'{{name: shop, keys: ["{key_digest(KEY)}"], band: p1, max_band: p0}}'
        config = f"models: [{{name: {MODEL}, backends: [{rows}]}}]\ntenants: [{tenant}]\n"
        with gateway_process(config=config) as gateway:
            async with Target(gateway, slow_llama, MODEL).many() as client:
                going = [asyncio.create_task(stream(client, "p1", TOKENS, told)) for told in both]
                for told, task in zip(both, going, strict=True):
                    await under_way(told, task)
                killed = time.monotonic()
                os.killpg(mortal.pid, signal.SIGKILL)
                await asyncio.gather(*going)
            assert gateway.total("tidegate_requests_total", outcome="failed") == 0
    one, two = both  # the one that is broken waits from the kill until the other's answer has ended
    waited = (one.pause(killed, two.times[-1]), one), (two.pause(killed, one.times[-1]), two)
    (_, first), broken = max(waited, key=lambda found: found[0][0])
    await goes_on_exactly(broken, first, slow_llama)
