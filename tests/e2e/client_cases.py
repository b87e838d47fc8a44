"""What the official ``openai`` client, unchanged but for base URL and key, finds behind the gateway: any engine.

The cases run against the simulated engine (here), and against llama.cpp and vLLM (``tests/engines``). A module that
runs them has the fixture ``target`` and a subclass of ``ClientCases``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import openai
import pytest

from tidegate.config import key_digest
from tidegate.testing.engines import EngineServer
from tidegate.testing.gateway_process import GatewayProcess

KEY, BULK_KEY = "sk-shop", "sk-bulk"
FIXED = {"ignore_eos": True}
"""Makes the engine use up ``max_tokens``."""
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
RUNNING = {
    "tidegate": "vllm:num_requests_running",
    "vllm": "vllm:num_requests_running",
    "llamacpp": "llamacpp:requests_processing",
}
"""The engine's own gauge of running requests."""


@dataclass(frozen=True)
class Target:
    """A gateway and the one engine behind it, which serves ``model`` (and calls it ``alias`` too)."""

    gateway: GatewayProcess
    engine: EngineServer
    model: str

    def client(self, key: str = KEY) -> openai.OpenAI:
        """A client of the gateway that does not retry."""
        return openai.OpenAI(base_url=self.gateway.url + "/v1", api_key=key, max_retries=0)

    def many(self, key: str = KEY) -> openai.AsyncOpenAI:
        """The same for many requests at a time."""
        return openai.AsyncOpenAI(base_url=self.gateway.url + "/v1", api_key=key, max_retries=0)

    def direct(self) -> openai.OpenAI:
        """A client of the engine itself."""
        return openai.OpenAI(base_url=self.engine.url + "/v1", api_key="none", max_retries=0)

    def running(self) -> float:
        """Requests in the engine's batch, by its own account."""
        return self.engine.total(RUNNING[self.engine.kind])


def gateway_config(engine: EngineServer, model: str, *, seats: int) -> str:
    """A settings file with one engine and two tenants."""
    return f"""
models:
  - name: {model}
    aliases: [alias]
    backends: [{{name: a, url: "{engine.url}", engine: {engine.kind}, seats: {seats}}}]
tenants:
  - {{name: shop, keys: ["{key_digest(KEY)}"], band: p1, max_band: p0}}
  - {{name: bulk, keys: ["{key_digest(BULK_KEY)}"], band: p2, strict_bands: true, limits: {{requests_per_minute: 1}}}}
"""


def eventually(true: Callable[[], bool], within_s: float = 20.0) -> bool:
    """Ask until it is true or the time is over."""
    deadline = time.monotonic() + within_s
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


class ClientCases:
    """See the module docstring."""

    LONG = 400
    """Tokens of an answer that is left in its middle."""

    @pytest.fixture
    def client(self, target: Target) -> Iterator[openai.OpenAI]:
        with target.client() as made:
            yield made

    def test_a_plain_answer(self, client: openai.OpenAI, target: Target) -> None:
        raw = client.chat.completions.with_raw_response.create(
            model=target.model,
            messages=HELLO,
            max_tokens=12,
            extra_body=FIXED,
            extra_headers={"x-request-id": "order-7"},
        )
        answer = raw.parse()
        assert answer.usage is not None
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (12, "length")
        assert answer.choices[0].message.content
        assert raw.headers["x-request-id"] == "order-7"
        assert (raw.headers["x-tidegate-band"], raw.headers["x-tidegate-queue-ms"]) == ("p1", "0")

    def test_a_streamed_answer_is_that_of_the_engine(self, client: openai.OpenAI, target: Target) -> None:
        def text(through: openai.OpenAI) -> str:
            stream = through.chat.completions.create(
                model=target.model, messages=HELLO, max_tokens=40, seed=1, temperature=0, stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

        with target.direct() as direct:
            assert text(client) == text(direct) != ""

    def test_usage_of_a_stream_comes_when_it_was_asked_for(self, client: openai.OpenAI, target: Target) -> None:
        stream = client.chat.completions.create(
            model=target.model,
            messages=HELLO,
            max_tokens=5,
            extra_body=FIXED,
            stream=True,
            stream_options={"include_usage": True},
        )
        usages = [chunk.usage for chunk in stream if chunk.usage]
        assert [usage.completion_tokens for usage in usages] == [5]

    async def test_the_async_client_runs_many_at_once(self, target: Target) -> None:
        async with target.many() as client:

            async def one(number: int) -> str | None:
                stream = await client.chat.completions.create(
                    model=target.model, messages=[{"role": "user", "content": str(number)}], max_tokens=20, stream=True
                )
                return [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices][-1]

            assert set(await asyncio.gather(*(one(number) for number in range(20)))) <= {"stop", "length"}

    def test_completions_with_an_alias(self, client: openai.OpenAI, target: Target) -> None:
        answer = client.completions.create(model="alias", prompt="tide", max_tokens=6, extra_body=FIXED)
        assert answer.model == target.model
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 6

    def test_several_choices(self, client: openai.OpenAI, target: Target) -> None:
        answer = client.chat.completions.create(model=target.model, messages=HELLO, n=2, max_tokens=8)
        assert [choice.index for choice in answer.choices] == [0, 1]
        stream = client.chat.completions.create(model=target.model, messages=HELLO, n=2, max_tokens=8, stream=True)
        assert {choice.index for chunk in stream for choice in chunk.choices} == {0, 1}

    def test_chinese_text_survives_both_ways(self, client: openai.OpenAI, target: Target) -> None:
        def answer(through: openai.OpenAI) -> tuple[str | None, int]:
            made = through.chat.completions.create(
                model=target.model,
                messages=[{"role": "user", "content": "双十一大促，订单状态如何？" * 5}],
                max_tokens=30,
                seed=3,
                temperature=0,
                extra_body=FIXED,
            )
            assert made.usage is not None
            return made.choices[0].message.content, made.usage.prompt_tokens

        with target.direct() as direct:
            answer(direct)  # then both find the prompt in the prefix cache: with and without it, last bits may differ
            assert answer(client) == answer(direct)

    @pytest.mark.parametrize(("tier", "band", "really"), [("priority", "p0", "priority"), ("flex", "p2", "flex")])
    def test_the_service_tier_chooses_the_band_and_is_told_back(
        self, client: openai.OpenAI, target: Target, tier: Literal["priority", "flex"], band: str, really: str
    ) -> None:
        raw = client.chat.completions.with_raw_response.create(
            model=target.model, messages=HELLO, max_tokens=3, service_tier=tier
        )
        assert (raw.headers["x-tidegate-band"], raw.parse().service_tier) == (band, really)

    def test_models(self, client: openai.OpenAI, target: Target) -> None:
        assert [model.id for model in client.models.list()] == [target.model, "alias"]
        assert client.models.retrieve(target.model).object == "model"
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("other/one")
        assert caught.value.code == "unknown_model"

    @pytest.mark.parametrize(
        ("kind", "code", "changes"),
        [
            (openai.NotFoundError, "unknown_model", {"model": "gpt-x"}),
            (openai.BadRequestError, "bad_request", {"extra_headers": {"x-tidegate-band": "p9"}}),
            (openai.BadRequestError, "bad_request", {"extra_body": {"stream": "yes"}}),
            (openai.AuthenticationError, "unauthorized", {"extra_headers": {"authorization": "Bearer wrong"}}),
            (openai.BadRequestError, "bad_request", {"extra_body": {"max_tokens": "many"}}),
            (openai.RateLimitError, "queue_timeout", {"extra_headers": {"x-tidegate-ttl": "-1s"}}),
        ],
        ids=["model", "band", "stream", "key", "type", "ttl"],
    )
    def test_refusals_are_the_clients_own_errors(
        self,
        client: openai.OpenAI,
        target: Target,
        kind: type[openai.APIStatusError],
        code: str,
        changes: dict[str, object],
    ) -> None:
        arguments: dict[str, object] = {"model": target.model, "messages": HELLO, "max_tokens": 3, **changes}
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**arguments)  # type: ignore[call-overload]
        assert caught.value.code == code
        assert caught.value.type
        assert caught.value.request_id

    @pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
    @pytest.mark.parametrize(
        "changes",
        [{"messages": [{"role": "user", "content": "word " * 40_000}]}, {"extra_body": {"n": 0}}],
        ids=["long prompt", "no choice"],
    )
    def test_the_engines_refusals_pass(
        self, client: openai.OpenAI, target: Target, changes: dict[str, object], streamed: bool
    ) -> None:
        before = target.gateway.total("tidegate_refusals_total")
        arguments: dict[str, object] = {"model": target.model, "messages": HELLO, "stream": streamed, **changes}
        errors = []
        with target.direct() as direct:
            for through in (client, direct):
                with pytest.raises(openai.BadRequestError) as caught:
                    through.chat.completions.create(**arguments)  # type: ignore[call-overload]
                errors.append(caught.value.body)
        assert errors[0] == errors[1]
        assert target.gateway.total("tidegate_refusals_total") == before

    def test_leaving_a_stream_frees_its_seat_and_the_engine(self, client: openai.OpenAI, target: Target) -> None:
        before = target.gateway.total("tidegate_requests_total", outcome="cancelled")
        with client.chat.completions.create(
            model=target.model, messages=HELLO, max_tokens=self.LONG, extra_body=FIXED, stream=True
        ) as stream:
            next(iter(stream))
            assert target.gateway.total("tidegate_running") == 1
            assert target.running() == 1
        assert eventually(lambda: target.gateway.total("tidegate_running") == 0)
        assert eventually(lambda: target.running() == 0)
        assert target.gateway.total("tidegate_requests_total", outcome="cancelled") == before + 1
