"""The official ``openai`` client, unchanged but for base URL and key, through gateway and simulated engine."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Literal

import httpx2
import openai
import pytest

from tidegate.config import key_digest
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

KEY, BULK_KEY = "sk-shop", "sk-bulk"
CONFIG = """
models:
  - name: sim
    aliases: [alias]
    backends: [{{name: a, url: "{engine}", engine: tidegate, seats: 8}}]
tenants:
  - {{name: shop, keys: ["{shop}"], band: p1, max_band: p0}}
  - {{name: bulk, keys: ["{bulk}"], band: p2, strict_bands: true, limits: {{requests_per_minute: 1}}}}
"""
FIXED = {"ignore_eos": True}
"""Makes the engine use up ``max_tokens``, as vLLM does."""

Switch = Callable[..., None]
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def gateway(engine: str) -> Iterator[GatewayProcess]:
    config = CONFIG.format(engine=engine, shop=key_digest(KEY), bulk=key_digest(BULK_KEY))
    with gateway_process(config=config) as process:
        yield process


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
def fault(engine: str) -> Iterator[Switch]:
    """Sets a fault of the engine; ends it after the test."""

    def switch(**fault: object) -> None:
        request = urllib.request.Request(engine + "/sim/fault", json.dumps(fault).encode(), method="POST")
        urllib.request.urlopen(request, timeout=5).close()

    yield switch
    switch(kind="none")


def test_a_plain_answer(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="sim", messages=HELLO, max_tokens=12, extra_body=FIXED, extra_headers={"x-request-id": "order-7"}
    )
    answer = raw.parse()
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (12, "length")
    assert answer.choices[0].message.content
    assert raw.headers["x-request-id"] == "order-7"
    assert (raw.headers["x-tidegate-band"], raw.headers["x-tidegate-queue-ms"]) == ("p1", "0")


def test_a_streamed_answer_is_that_of_the_engine(client: openai.OpenAI, engine: str) -> None:
    def text(through: openai.OpenAI) -> str:
        stream = through.chat.completions.create(model="sim", messages=HELLO, max_tokens=40, seed=1, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with openai.OpenAI(base_url=engine + "/v1", api_key="none") as direct:
        assert text(client) == text(direct) != ""


def test_usage_of_a_stream_comes_when_it_was_asked_for(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim", messages=HELLO, max_tokens=5, extra_body=FIXED, stream=True, stream_options={"include_usage": True}
    )
    usages = [chunk.usage for chunk in stream if chunk.usage]
    assert [usage.completion_tokens for usage in usages] == [5]


async def test_the_async_client_runs_many_at_once(gateway: GatewayProcess) -> None:
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=KEY, max_retries=0) as client:

        async def one(number: int) -> str | None:
            stream = await client.chat.completions.create(
                model="sim", messages=[{"role": "user", "content": str(number)}], max_tokens=20, stream=True
            )
            return [chunk.choices[0].finish_reason async for chunk in stream][-1]

        assert set(await asyncio.gather(*(one(number) for number in range(20)))) <= {"stop", "length"}


def test_completions_with_an_alias(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="alias", prompt="tide", max_tokens=6, extra_body=FIXED)
    assert answer.model == "sim"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


def test_several_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="sim", messages=HELLO, n=2, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1]
    stream = client.chat.completions.create(model="sim", messages=HELLO, n=2, max_tokens=8, stream=True)
    assert {choice.index for chunk in stream for choice in chunk.choices} == {0, 1}


def test_tools_pass_through(client: openai.OpenAI) -> None:
    tools: list[openai.types.chat.ChatCompletionToolParam] = [
        {"type": "function", "function": {"name": "price", "parameters": {"type": "object", "properties": {}}}}
    ]
    answer = client.chat.completions.create(
        model="sim", messages=HELLO, tools=tools, tool_choice={"type": "function", "function": {"name": "price"}}
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "price"
    json.loads(calls[0].function.arguments)


def test_chinese_text_survives_both_ways(client: openai.OpenAI) -> None:
    question = "双十一大促，订单状态如何？" * 50
    answers = [
        client.chat.completions.create(
            model="sim", messages=[{"role": "user", "content": question}], max_tokens=60, seed=3
        )
        .choices[0]
        .message.content
        for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert any("\u4e00" <= sign <= "\u9fff" for sign in answers[0] or "")


@pytest.mark.parametrize(("tier", "band", "really"), [("priority", "p0", "priority"), ("flex", "p2", "flex")])
def test_the_service_tier_chooses_the_band_and_is_told_back(
    client: openai.OpenAI, tier: Literal["priority", "flex"], band: str, really: str
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="sim",
        messages=HELLO,
        max_tokens=3,
        service_tier=tier,
    )
    assert (raw.headers["x-tidegate-band"], raw.parse().service_tier) == (band, really)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["sim", "alias"]
    assert client.models.retrieve("sim").object == "model"
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
    client: openai.OpenAI, kind: type[openai.APIStatusError], code: str, changes: dict[str, object]
) -> None:
    arguments: dict[str, object] = {"model": "sim", "messages": HELLO, "max_tokens": 3, **changes}
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**arguments)  # type: ignore[call-overload]
    assert caught.value.code == code
    assert caught.value.type
    assert caught.value.request_id


def test_a_tenant_over_its_rate_and_above_its_band(gateway: GatewayProcess) -> None:
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=BULK_KEY, max_retries=0) as client:
        with pytest.raises(openai.PermissionDeniedError) as denied:
            client.chat.completions.create(model="sim", messages=HELLO, service_tier="priority")
        assert denied.value.code == "forbidden_band"
        client.chat.completions.create(model="sim", messages=HELLO, max_tokens=2)
        with pytest.raises(openai.RateLimitError) as limited:
            client.chat.completions.create(model="sim", messages=HELLO, max_tokens=2)
        assert limited.value.code == "rate_limit_exceeded"
        assert 1 <= float(limited.value.response.headers["retry-after"]) <= 60


def test_a_bad_key_learns_nothing_of_the_models(gateway: GatewayProcess) -> None:
    with (
        openai.OpenAI(base_url=gateway.url + "/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_the_engines_own_errors_pass(client: openai.OpenAI, fault: Switch) -> None:
    fault(kind="500", times=1)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="sim", messages=HELLO)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="sim", messages=HELLO, max_tokens=1_000_000, extra_body={"n": 0})


def test_an_error_inside_a_stream_is_raised(client: openai.OpenAI, gateway: GatewayProcess, fault: Switch) -> None:
    before = gateway.total("tidegate_requests_total", outcome="failed")
    fault(kind="stream_error", times=1, after_tokens=3)
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(model="sim", messages=HELLO, max_tokens=20, stream=True))
    assert gateway.total("tidegate_requests_total", outcome="failed") == before + 1


def test_a_stream_that_is_cut_ends_with_an_error(client: openai.OpenAI, fault: Switch) -> None:
    fault(kind="cut", times=1, after_tokens=3)
    with pytest.raises(openai.APIError) as caught:
        list(client.chat.completions.create(model="sim", messages=HELLO, max_tokens=20, stream=True))
    assert caught.value.code == "upstream_error"


def test_an_answer_that_is_cut_is_a_502(client: openai.OpenAI, fault: Switch) -> None:
    fault(kind="cut", times=1, after_tokens=3)
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="sim", messages=HELLO, max_tokens=20)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_error")


def test_the_client_retries_after_the_time_it_is_told(gateway: GatewayProcess, fault: Switch) -> None:
    hints: list[float] = []

    def note(response: httpx2.Response) -> None:
        if response.status_code == 429:
            hints.append(float(response.headers["retry-after"]))

    fault(kind="429", times=1, retry_after_s=1)
    http = openai.DefaultHttpxClient(event_hooks={"response": [note]})
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=KEY, http_client=http) as client:
        began = time.monotonic()
        client.chat.completions.create(model="sim", messages=HELLO, max_tokens=2)
        took = time.monotonic() - began
    assert hints == [1.0]
    assert 1.0 <= took < 2.5


def test_leaving_a_stream_returns_its_seat(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    before = gateway.total("tidegate_requests_total", outcome="cancelled")
    with client.chat.completions.create(
        model="sim", messages=HELLO, max_tokens=5000, extra_body=FIXED, stream=True
    ) as stream:
        next(iter(stream))
        assert gateway.total("tidegate_running") == 1
    deadline = time.monotonic() + 1
    while gateway.total("tidegate_running") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gateway.total("tidegate_running") == 0
    assert gateway.total("tidegate_requests_total", outcome="cancelled") == before + 1
