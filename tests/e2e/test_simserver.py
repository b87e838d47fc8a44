"""The simulated engine as a process of its own: every route, and the official client."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from e2e.simserver_stage import QUESTION, call, chat, connection, metric, stats, text_of, until
from tidegate.simserver import EngineOptions, running_engine
from tidegate.testing.processes import engine_process

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with engine_process(model="sim-8b", seed=5, max_model_len=4096) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as one:
        yield one


# -- generation --------------------------------------------------------------------------------------------------


def test_streamed_text_equals_plain_text(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="sim-8b", messages=QUESTION, max_tokens=60)
    stream = client.chat.completions.create(
        model="sim-8b",
        messages=QUESTION,
        max_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, reasons, usage = "", [], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == plain.choices[0].message.content
    assert any(ord(letter) > 0x2E80 for letter in text), "the vocabulary was meant to hold Chinese"
    assert reasons == [plain.choices[0].finish_reason]
    assert usage is not None
    assert plain.usage is not None
    assert usage.completion_tokens == plain.usage.completion_tokens <= 60
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_events_are_utf8_lines_that_end_with_done(url: str) -> None:
    status, headers, body = call(url, "POST", "/v1/chat/completions", chat(stream=True))
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    events = body.decode("utf-8").split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    parsed = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {event["object"] for event in parsed} == {"chat.completion.chunk"}
    assert parsed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(parsed) == 31


def test_several_choices_differ_and_add_up(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="sim-8b",
        messages=QUESTION,
        n=2,
        max_tokens=20,
        extra_body={"ignore_eos": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40


def test_completions_take_lists_of_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="sim-8b", prompt=["one", "two"], max_tokens=8)
    alone = client.completions.create(model="sim-8b", prompt="two", max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[1].text == alone.choices[0].text
    streamed = client.completions.create(model="sim-8b", prompt="two", max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == alone.choices[0].text


def test_continued_answer_equals_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="sim-8b", messages=QUESTION, max_tokens=40)
    first = client.chat.completions.create(model="sim-8b", messages=QUESTION, max_tokens=15)
    said = first.choices[0].message.content
    rest = client.chat.completions.create(
        model="sim-8b",
        messages=[*QUESTION, {"role": "assistant", "content": said}],
        max_tokens=25,
        extra_body={"add_generation_prompt": False, "continue_final_message": True},
    )
    assert f"{said}{rest.choices[0].message.content}" == whole.choices[0].message.content
    assert whole.usage
    assert first.usage
    assert rest.usage
    assert rest.usage.prompt_tokens == first.usage.prompt_tokens + 15
    assert first.usage.completion_tokens + rest.usage.completion_tokens == whole.usage.completion_tokens


def test_continued_completion_equals_the_whole_one(client: openai.OpenAI) -> None:
    def write(prompt: str, tokens: int) -> str:
        return client.completions.create(model="sim-8b", prompt=prompt, max_tokens=tokens).choices[0].text

    whole = write("Once upon", 20)
    first = write("Once upon", 7)
    assert first + write(f"Once upon{first}", 13) == whole


def test_metadata_sets_the_length(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="sim-8b",
        messages=QUESTION,
        metadata={"tidegate_output_tokens": "77"},
    )
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (77, "stop")


def test_stop_text_ends_the_answer(client: openai.OpenAI) -> None:
    whole = text_of(client, max_tokens=30, extra_body={"ignore_eos": True})
    stop = whole[20:24]
    assert text_of(client, max_tokens=30, stop=stop, extra_body={"ignore_eos": True}) == whole[: whole.index(stop)]


TOOL = {
    "type": "function",
    "function": {
        "name": "find_order",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "count": {"type": "integer"}, "tags": {"type": "array"}},
        },
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find_order"}}])
def test_forced_tool_gets_a_wellformed_call(client: openai.OpenAI, choice: Any) -> None:
    ask: dict[str, Any] = {"model": "sim-8b", "messages": QUESTION, "tools": [TOOL], "tool_choice": choice}
    plain = client.chat.completions.create(**ask).choices[0]
    assert plain.finish_reason == "tool_calls"
    calls = plain.message.tool_calls
    assert calls
    assert calls[0].function.name == "find_order"
    assert json.loads(calls[0].function.arguments) == {"city": "上海 store", "count": 7, "tags": []}
    with client.chat.completions.stream(**ask) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls
    assert final.message.tool_calls[0].function.arguments == calls[0].function.arguments


def test_tools_that_are_not_forced_are_ignored(client: openai.OpenAI) -> None:
    assert text_of(client, tools=[TOOL], max_tokens=5)


def test_request_id_comes_back(url: str) -> None:
    _, _, body = call(url, "POST", "/v1/chat/completions", chat(), {"x-request-id": "order-77"})
    assert json.loads(body)["id"] == "chatcmpl-order-77"


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (chat(model="other"), {}, 404, "`other` does not exist"),
        (chat(max_tokens=5000), {}, 400, "maximum context length is 4096"),
        (chat(messages=[{"role": "user", "content": "word " * 5000}]), {}, 400, "maximum context length is 4096"),
        (chat(messages=[]), {}, 400, "messages must not be empty"),
        (chat(priority="high"), {}, 400, "priority"),
        (chat(priority=1.5), {}, 400, "priority"),
        (chat(), {"x-vllm-priority": "high"}, 400, "X-Vllm-Priority must be an integer"),
        (chat(max_tokens=0), {}, 400, "max_tokens"),
        (chat(tool_choice="required"), {}, 400, "tool_choice"),
        (chat(continue_final_message=True), {}, 400, "continue_final_message"),
        (b"{", {}, 400, "truncated"),
    ],
)
def test_refused_requests(url: str, body: object, headers: dict[str, str], status: int, said: str) -> None:
    got, _, answer = call(url, "POST", "/v1/chat/completions", body, headers)
    error = json.loads(answer)["error"]
    assert (got, error["code"]) == (status, status)
    assert said in error["message"]


def test_official_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=QUESTION)
    assert [model.id for model in client.models.list()] == ["sim-8b"]


def test_unknown_path_is_404(url: str) -> None:
    assert call(url, "GET", "/v1/nothing")[0] == 404
    assert call(url, "GET", "/health")[::2] == (200, b"")


# -- what a gateway sees -----------------------------------------------------------------------------------------


def test_metrics_have_the_names_of_vllm(url: str) -> None:
    call(url, "POST", "/v1/chat/completions", chat())
    page = call(url, "GET", "/metrics")[2].decode()
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
    ):
        assert f'vllm:{name}{{engine="0",model_name="sim-8b"}}' in page
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="sim-8b"}' in page
    assert 'block_size="16"' in page
    assert 'num_gpu_blocks="25625"' in page


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_aborts_at_once(url: str, stream: bool) -> None:
    assert until(lambda: stats(url)["running"] == 0), "what another test left has been noticed"
    before = stats(url)["finished"]["abort"]
    wire = connection(url)
    wire.request("POST", "/v1/chat/completions", json.dumps(chat(stream=stream, max_tokens=3000)))
    assert until(lambda: metric(url, "num_requests_running") == 1)
    assert metric(url, "kv_cache_usage_perc") > 0
    assert wire.sock is not None
    wire.sock.close()
    wire.close()
    started = time.monotonic()
    assert until(lambda: metric(url, "num_requests_running") == 0)
    assert time.monotonic() - started < 8, "of the twenty that it would have taken"
    assert metric(url, "kv_cache_usage_perc") == 0
    assert stats(url)["finished"]["abort"] == before + 1


def test_second_equal_prompt_is_cached(url: str) -> None:
    prompt = [{"role": "user", "content": "once more with feeling " * 50}]
    usages = [
        json.loads(call(url, "POST", "/v1/chat/completions", chat(messages=prompt))[2])["usage"] for _ in range(2)
    ]
    assert usages[0]["prompt_tokens_details"]["cached_tokens"] < 100
    expected = (usages[1]["prompt_tokens"] - 1) // 16 * 16
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] == expected


def test_priority_orders_the_waiting_list_and_the_header_overrides() -> None:
    with engine_process(max_sequences=1, order="priority", model="sim-8b", noise=0) as url:
        wires: dict[str, http.client.HTTPConnection] = {}
        asked: list[tuple[str, object, dict[str, str]]] = [
            ("running", chat(max_tokens=400), {}),
            ("last", chat(max_tokens=150, priority=-9), {"X-Vllm-Priority": "7"}),
            ("second", chat(max_tokens=150, priority=2), {}),
            ("first", chat(max_tokens=150, priority=1), {}),
        ]
        for name, body, headers in asked:
            expected = len(wires)
            wires[name] = connection(url)
            wires[name].request("POST", "/v1/chat/completions", json.dumps(body), headers)
            assert until(lambda: stats(url)["running"] + stats(url)["waiting"] >= expected + 1)  # noqa: B023
        ended: list[str] = []
        with selectors.DefaultSelector() as ready:
            for name, wire in wires.items():
                ready.register(wire.sock, selectors.EVENT_READ, name)
            while len(ended) < len(wires):
                for key, _ in ready.select(timeout=30):
                    ready.unregister(key.fileobj)
                    ended.append(key.data)
        for wire in wires.values():
            wire.close()
        assert ended == ["running", "first", "second", "last"]


def test_full_cache_preempts_and_still_answers_everything() -> None:
    with engine_process(kv_tokens=1024, model="sim-8b", speed=5) as url:
        wires = [connection(url) for _ in range(6)]
        for number, wire in enumerate(wires):
            messages = [{"role": "user", "content": f"question {number} " * 20}]
            wire.request("POST", "/v1/chat/completions", json.dumps(chat(messages=messages, max_tokens=300)))
        for wire in wires:
            body = json.loads(wire.getresponse().read())
            assert body["usage"]["completion_tokens"] == 300
            wire.close()
        assert metric(url, "num_preemptions_total") > 0
        assert stats(url)["recomputed_tokens"] > 0


def test_same_seed_same_text_in_another_process(url: str, client: openai.OpenAI) -> None:
    with engine_process(model="sim-8b", seed=5) as other, openai.OpenAI(base_url=f"{other}/v1", api_key="x") as twin:
        assert text_of(twin, max_tokens=50) == text_of(client, max_tokens=50)
    with engine_process(model="sim-8b", seed=6) as other, openai.OpenAI(base_url=f"{other}/v1", api_key="x") as third:
        assert text_of(third, max_tokens=50) != text_of(client, max_tokens=50)


def test_client_that_does_not_read_stops_nobody() -> None:
    # 16 x 1,500 events of some 190 bytes are more than the buffers of both sockets hold.
    with engine_process(model="sim-8b", speed=20) as url, contextlib.closing(socket.socket()) as stalled:
        parts = urlsplit(url)
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.settimeout(40)
        stalled.connect((parts.hostname, parts.port))
        body = json.dumps(chat(stream=True, n=16, max_tokens=1500)).encode()
        length = f"connection: close\r\ncontent-length: {len(body)}"
        stalled.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n".encode() + body)
        assert until(lambda: stats(url)["running"] == 16)
        assert call(url, "POST", "/v1/chat/completions", chat(stream=True))[0] == 200
        assert until(lambda: stats(url)["running"] == 0)
        received = bytearray()
        while data := stalled.recv(1 << 20):
            received += data
    assert received.count(b"data: ") == 16 * 1501 + 1
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_wrong_options_end_with_a_message() -> None:
    with pytest.raises(RuntimeError, match="profile: expected one of"), engine_process(profile="h200"):
        pass
    with pytest.raises(RuntimeError, match="speed: expected more than 0"), engine_process(speed=0):
        pass


def test_engine_inside_the_event_loop_of_a_test() -> None:
    async def story() -> None:
        async with running_engine(EngineOptions(speed=20)) as (url, app):
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
                answer = await client.chat.completions.create(model="sim", messages=QUESTION, max_tokens=5)
                assert answer.choices[0].message.content
            assert app.stats()["steps"] == 5
            assert app.model.idle

    asyncio.run(story())
