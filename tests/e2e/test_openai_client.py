"""The official ``openai`` client, unchanged but for base URL and key, through gateway and simulated engine."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import openai
import pytest

from e2e.client_cases import BULK_KEY, HELLO, KEY, ClientCases, Target, gateway_config
from tidegate.testing.engines import EngineServer
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

Switch = Callable[..., None]


@pytest.fixture(scope="module")
def target(engine: str) -> Iterator[Target]:
    server = EngineServer("tidegate", engine, pid=0, log=Path(os.devnull))
    with gateway_process(config=gateway_config(server, "sim", seats=8)) as gateway:
        yield Target(gateway, server, "sim")


@pytest.fixture
def gateway(target: Target) -> GatewayProcess:
    return target.gateway


@pytest.fixture
def client(target: Target) -> Iterator[openai.OpenAI]:
    with target.client() as made:
        yield made


@pytest.fixture
def fault(engine: str) -> Iterator[Switch]:
    """Sets a fault of the engine; ends it after the test."""

    def switch(**fault: object) -> None:
        request = urllib.request.Request(engine + "/sim/fault", json.dumps(fault).encode(), method="POST")
        urllib.request.urlopen(request, timeout=40).close()

    yield switch
    switch(kind="none")


class TestSimulatedEngine(ClientCases):
    """The cases that every engine has to pass."""

    LONG = 6000  # ten seconds of this engine


def test_chinese_answers_are_not_broken(client: openai.OpenAI) -> None:
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
        client.chat.completions.create(model="sim", messages=HELLO, max_tokens=1_000_000)


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


def timed(client: openai.OpenAI, timeout_s: float) -> float:
    """Ask, and return how long it took, seconds."""
    began = time.monotonic()
    client.chat.completions.create(model="sim", messages=HELLO, max_tokens=2, timeout=timeout_s)
    return time.monotonic() - began


@pytest.mark.parametrize(("timeout_s", "seen"), [(30.0, 0), (0.9, 1)])
def test_an_engines_429_is_waited_for_by_whoever_has_the_time(
    gateway: GatewayProcess, fault: Switch, timeout_s: float, seen: int
) -> None:
    """The gateway, unless the client would have given up by then: then the client itself, for as long as it is told."""
    hints: list[float] = []

    def note(response: httpx2.Response) -> None:
        if response.status_code == 429:
            hints.append(float(response.headers["retry-after"]))

    fault(kind="429", times=1, retry_after_s=1)
    http = openai.DefaultHttpxClient(event_hooks={"response": [note]})
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=KEY, http_client=http) as client:
        took = timed(client, timeout_s)
    assert len(hints) == seen
    assert all(1 <= hint <= 2 for hint in hints)
    assert 0.9 <= took < max(hints, default=1.0) + 15
