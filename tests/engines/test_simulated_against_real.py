"""The simulated engine against the real ones: what it imitates is the same, what differs is listed.

Each class of difference has a test. The differences that remain stand in ``docs/how-to/engines.md``; a test that pins
one fails when it disappears, so that the page does not go stale.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from e2e.client_cases import Target
from engines.servers import ENGINE_TEST, VLLM_BLOCK, VLLM_BLOCKS, VLLM_MOST, VLLM_SLOTS
from tidegate.testing.engines import EngineServer
from tidegate.testing.processes import engine_process
from tidegate.testing.real_engines import MODEL

pytestmark = ENGINE_TEST

Fields = Mapping[str, object]

HELLO = [{"role": "user", "content": "hello"}]
STARTED = [*HELLO, {"role": "assistant", "content": "so"}]
WORDS = ["tide", "import", "class", "while", "string", "object", "return", "lambda", "yield", "assert", "global"]
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.fixture(scope="module")
def simulated(logs: Path) -> Iterator[EngineServer]:
    with engine_process(model=MODEL, max_model_len=512, speed=4, noise=0) as url:
        yield EngineServer("tidegate", url, pid=0, log=logs / "none")


def post(
    engine: EngineServer, body: object, *, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Post to an engine; a stream comes back as the list of its events."""
    parts = urlsplit(engine.url)
    assert parts.hostname is not None
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=200)) as wire:
        wire.request("POST", path, json.dumps(body), {"content-type": "application/json", **(headers or {})})
        response = wire.getresponse()
        answer = response.read()
    if response.getheader("content-type", "").startswith("text/event-stream"):
        events = [line.removeprefix(b"data: ") for line in answer.splitlines() if line.startswith(b"data: ")]
        assert events.pop() == b"[DONE]"
        return response.status, [json.loads(event) for event in events]
    return response.status, json.loads(answer)


def chat(engine: EngineServer, changes: Fields, *, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    return post(engine, {"model": MODEL, "messages": HELLO, "max_tokens": 3, **changes}, headers=headers)


def families(engine: EngineServer) -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels of each metric of an engine."""
    found = {}
    page = engine.get("/metrics").decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    for name, labels in re.findall(r"^([\w:]+)(?:\{(.*)\})? \S+$", page, re.MULTILINE):
        kind = types.get(name) or types.get(name.removesuffix("_total"))
        if kind:
            found[name] = kind, frozenset(re.findall(r'(\w+)="', labels))
    return found


def test_every_metric_of_the_simulated_engine_is_one_of_vllm(simulated: EngineServer, slow_vllm: EngineServer) -> None:
    ours, theirs = families(simulated), families(slow_vllm)
    info = "vllm:cache_config_info"
    assert ours.keys() <= theirs.keys()
    assert {name: ours[name] for name in ours if name != info} == {name: theirs[name] for name in ours if name != info}
    assert ours[info][1] - theirs[info][1] == {"model_name"}
    assert {"block_size", "num_gpu_blocks"} <= ours[info][1]


@pytest.mark.parametrize(
    "name",
    ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
     "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total"],
)  # fmt: skip
def test_vllm_tells_what_the_gateway_will_read(slow_vllm: EngineServer, name: str) -> None:
    assert slow_vllm.total(f"vllm:{name}") >= 0


@pytest.mark.parametrize(
    "name",
    ["requests_processing", "requests_deferred", "prompt_tokens_total", "tokens_predicted_total",
     "n_busy_slots_per_decode", "n_tokens_max"],
)  # fmt: skip
def test_llama_cpp_tells_what_the_gateway_will_read(fast_llama: EngineServer, name: str) -> None:
    assert fast_llama.total(f"llamacpp:{name}") >= 0


def test_llama_cpp_tells_its_context_by_slot_and_no_use_of_its_cache(fast_llama: EngineServer) -> None:
    assert [name for name in fast_llama.metrics() if "kv" in name or "usage" in name] == []
    slots = json.loads(fast_llama.get("/slots"))
    assert [slot["n_ctx"] for slot in slots] == [2048] * 4
    assert {type(slot["is_processing"]) for slot in slots} == {bool}
    assert fast_llama.get("/slots?fail_on_no_slot=1")


REFUSED: dict[str, tuple[dict[str, object], str | None]] = {
    "unknown model": ({"model": "nope"}, "model"),
    "long prompt": ({"messages": [{"role": "user", "content": "word and more " * 800}]}, "input_tokens"),
    "long answer": ({"max_tokens": 100_000}, "max_tokens"),
    "no answer": ({"max_tokens": 0}, "max_tokens"),
    "two ways to go on": ({**CONTINUE, "add_generation_prompt": True, "messages": STARTED}, None),
    "tool without tools": ({"tool_choice": "required"}, "tool_choice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_the_form_of_vllm(simulated: EngineServer, slow_vllm: EngineServer, name: str) -> None:
    changes, param = REFUSED[name]
    ours, theirs = (chat(engine, changes) for engine in (simulated, slow_vllm))
    for status, body in (ours, theirs):
        assert body["error"].keys() == {"message", "type", "param", "code"}
        assert body["error"]["code"] == status
        assert body["error"]["param"] == param
    assert ours[0] == theirs[0]
    assert ours[1]["error"]["type"] == theirs[1]["error"]["type"]


@pytest.mark.parametrize(
    ("changes", "ours", "theirs"),
    [
        ({"n": 0}, ("BadRequestError", "n"), ("BadRequestError", None)),
        ({"messages": []}, ("BadRequestError", "messages"), ("BadRequestError", None)),
        ({"priority": "high"}, ("BadRequestError", None), ("Bad Request", "body.priority")),
    ],
    ids=["n", "messages", "priority"],
)
def test_some_refusals_of_vllm_have_another_type_or_param(
    simulated: EngineServer,
    slow_vllm: EngineServer,
    changes: dict[str, object],
    ours: tuple[str, str | None],
    theirs: tuple[str, str | None],
) -> None:
    for engine, expected in ((simulated, ours), (slow_vllm, theirs)):
        status, body = chat(engine, changes)
        assert (status, body["error"]["type"], body["error"]["param"]) == (400, *expected)


def test_a_refusal_of_llama_cpp_has_no_param(fast_llama: EngineServer) -> None:
    status, body = chat(fast_llama, REFUSED["long prompt"][0])
    assert (status, body["error"]["type"]) == (400, "exceed_context_size_error")
    assert body["error"].keys() == {"code", "message", "type", "n_prompt_tokens", "n_ctx"}
    assert chat(fast_llama, {"model": "nope"})[0] == 200, "it serves any model name"
    assert chat(fast_llama, {"priority": "high"})[0] == 200, "it knows no priority"


@pytest.mark.parametrize("value", [-3, 0, 7])
def test_a_whole_priority_is_accepted(simulated: EngineServer, slow_vllm: EngineServer, value: int) -> None:
    for engine in (simulated, slow_vllm):
        assert chat(engine, {"priority": value})[0] == 200
        assert chat(engine, {}, headers={"X-Vllm-Priority": str(value)})[0] == 200


def test_vllm_ignores_a_priority_header_that_is_no_number(simulated: EngineServer, slow_vllm: EngineServer) -> None:
    wrong = {"X-Vllm-Priority": "high"}
    assert (chat(simulated, {}, headers=wrong)[0], chat(slow_vllm, {}, headers=wrong)[0]) == (400, 200)


def test_events_of_a_stream_come_in_the_same_order(simulated: EngineServer, slow_vllm: EngineServer) -> None:
    def told(engine: EngineServer) -> list[tuple[list[str], str | None, bool]]:
        _, events = chat(engine, {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}})
        return [
            (
                sorted(key for choice in event["choices"] for key in choice["delta"]),
                next((choice["finish_reason"] for choice in event["choices"]), None),
                "usage" in event,
            )
            for event in events
        ]

    assert told(simulated) == told(slow_vllm)
    assert told(simulated)[-1] == ([], None, True)


@pytest.fixture(params=["simulated", "slow_vllm", "fast_llama"])
def server(request: pytest.FixtureRequest) -> EngineServer:
    found: EngineServer = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_an_answer_is_continued_exactly(server: EngineServer, streamed: bool) -> None:
    """At temperature 0 two halves joined are the whole: what resuming a broken stream rests on.

    It holds where the engine cuts the given text into the tokens that the text was made of, which its usage shows.
    Our models write words in no order, so that this is often not so; ordinary text seldom is cut otherwise.
    """

    def go_on(given: str, tokens: int) -> tuple[str, int]:
        usage = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        fixed = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        messages = [*HELLO, {"role": "assistant", "content": given}]
        status, body = chat(server, {"messages": messages, **fixed, **usage, **CONTINUE})
        assert status == 200, body
        if streamed:
            said = "".join(choice["delta"].get("content") or "" for event in body for choice in event["choices"])
            return said, body[-1]["usage"]["prompt_tokens"]
        said = body["choices"][0]["message"]["content"]
        if server.kind == "llamacpp":  # says again what it was given, but only in an answer that is not streamed
            assert said.startswith(given)
            said = said.removeprefix(given)
        return said, body["usage"]["prompt_tokens"]

    exact = 0
    for word in WORDS:
        whole, before = go_on(word, 6)
        first, _ = go_on(word, 3)
        second, after = go_on(word + first, 3)
        if after == before + 3:
            assert first + second == whole
            exact += 1
    assert exact >= 2


def test_the_gateway_passes_a_continuation_on_unchanged(vllm_target: Target) -> None:
    with vllm_target.client() as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "tide"}, {"role": "assistant", "content": "so"}],
            max_tokens=3,
            extra_body=CONTINUE,
        )
    _, direct = chat(vllm_target.engine, {"messages": [{"role": "user", "content": "tide"}, STARTED[1]], **CONTINUE})
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == direct["usage"]["prompt_tokens"]


def test_only_vllm_continues_the_message_of_a_user(simulated: EngineServer, slow_vllm: EngineServer) -> None:
    assert (chat(simulated, CONTINUE)[0], chat(slow_vllm, CONTINUE)[0]) == (400, 200)


def test_a_route_that_is_not_there_is_a_404_in_two_forms(simulated: EngineServer, slow_vllm: EngineServer) -> None:
    ours, theirs = (post(engine, {}, path="/v1/nothing") for engine in (simulated, slow_vllm))
    assert (ours[0], list(ours[1])) == (404, ["error"])
    assert theirs == (404, {"detail": "Not Found"})


def test_an_error_inside_a_stream_has_the_same_form_and_place(simulated: EngineServer, slow_vllm: EngineServer) -> None:
    """vLLM's, of a burst beyond its own limit, may come as a status too; the fields are the same."""
    assert post(simulated, {"kind": "stream_error", "times": 1, "after_tokens": 2}, path="/sim/fault")[0] == 200
    status, events = chat(simulated, {"stream": True, "ignore_eos": True, "max_tokens": 5})
    assert status == 200
    assert [*events[-1]] == ["error"]
    fields = events[-1]["error"].keys()
    streamed = {"stream": True, "ignore_eos": True, "max_tokens": 24}  # so long that all are there at once
    with ThreadPoolExecutor(2 * VLLM_MOST) as many:
        answers = list(many.map(lambda _: chat(slow_vllm, streamed), range(2 * VLLM_MOST)))
    refused = [body[-1] if status == 200 else body for status, body in answers if status != 200 or "error" in body[-1]]
    assert refused
    assert all([*body] == ["error"] and body["error"].keys() == fields for body in refused)


def test_a_full_cache_stops_the_lower_class_loses_nothing_and_lets_the_higher_run(
    slow_vllm: EngineServer, logs: Path
) -> None:
    """Five prompts of class 2 fit, their answers do not; then one of class 0 comes."""
    pool = {"kv_tokens": VLLM_BLOCKS * VLLM_BLOCK, "max_sequences": VLLM_SLOTS, "order": "priority"}
    with engine_process(model=MODEL, max_model_len=512, noise=0, profile="slow", **pool) as url:
        small = EngineServer("tidegate", url, pid=0, log=logs / "none")
        for engine, words in ((small, " 123" * 140), (slow_vllm, "word and more " * 45)):
            began = engine.total("vllm:num_preemptions_total")

            def one(number: int, engine: EngineServer = engine, words: str = words) -> tuple[int, float]:
                prompt = [{"role": "user", "content": f"{number} {words if number else ''}"}]
                least = {"messages": prompt, "max_tokens": 80, "ignore_eos": True, "priority": 2 if number else 0}
                status, body = chat(engine, least)
                return (body["usage"]["completion_tokens"] if status == 200 else -status), time.monotonic()

            with ThreadPoolExecutor(6) as many:
                low = [many.submit(one, number) for number in range(1, 6)]
                while engine.total("vllm:kv_cache_usage_perc") < 0.8 and not any(each.done() for each in low):
                    time.sleep(0.01)
                high = many.submit(one, 0).result()
                answers = [each.result() for each in low]
            assert [tokens for tokens, _ in [high, *answers]] == [80] * 6
            assert engine.total("vllm:num_preemptions_total") > began, engine.kind
            assert max(ended for _, ended in answers) > high[1], "some of class 2 end after class 0"
