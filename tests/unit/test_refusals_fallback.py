"""The fallback answer passes for a completion with the official client, plain and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import _streaming
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

from tidegate.config import parse_settings
from tidegate.refusals import MESSAGES, Answer, Fallbacks

BASE = 'models: [{name: m, backends: [{url: "http://127.0.0.1:9"}]}]\n'
STOP = BASE + "gateway: {fallback_finish_reason: stop}\n"
OWN = BASE + 'policy: {bands: {p2: {message: {zh: "忙\\n\\"忙\\"", en: "Busy: \\\\ é"}}}}\n'
CALL: dict[str, Any] = {"band": 2, "language": "zh", "request_id": "r-1", "created": 1_700_000_000, "model": 'q"w'}


def events(body: bytes) -> list[dict[str, Any] | str]:
    found: list[dict[str, Any] | str] = []
    for event in _streaming.SSEDecoder().iter_bytes(iter([body])):
        found.append(event.data if event.data == "[DONE]" else event.json())
    return found


def test_a_plain_fallback_is_a_valid_completion() -> None:
    answer = Fallbacks(parse_settings(STOP)).plain(**CALL)
    completion = ChatCompletion.model_validate_json(answer.body, strict=True)
    assert completion.id == "chatcmpl-r-1"
    assert completion.model == 'q"w'
    assert completion.created == 1_700_000_000
    assert completion.choices[0].message.content == MESSAGES["zh"]
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 0
    assert completion.service_tier is None


@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_fallback_is_a_valid_stream_with_done(usage: bool) -> None:
    answer = Fallbacks(parse_settings(STOP)).streamed(**CALL, usage=usage, tier="flex")
    *found, done = events(answer.body)
    assert done == "[DONE]"
    chunks = [ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True) for event in found]
    assert len(chunks) == (3 if usage else 2)
    assert chunks[0].choices[0].delta.content == MESSAGES["zh"]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:2]] == [None, "stop"]
    assert {(chunk.id, chunk.model, chunk.service_tier) for chunk in chunks} == {("chatcmpl-r-1", 'q"w', "flex")}
    if usage:
        assert chunks[2].usage is not None
        assert not chunks[2].choices


def test_by_default_only_the_finish_reason_is_not_openais() -> None:
    fallbacks = Fallbacks(parse_settings(BASE))
    with pytest.raises(ValidationError) as caught:
        ChatCompletion.model_validate_json(fallbacks.plain(**CALL).body, strict=True)
    assert [error["loc"] for error in caught.value.errors()] == [("choices", 0, "finish_reason")]
    assert json.loads(fallbacks.plain(**CALL).body)["choices"][0]["finish_reason"] == "load_shedding_fallback"
    last = events(fallbacks.streamed(**CALL).body)[-2]
    assert isinstance(last, dict)
    assert last["choices"][0]["finish_reason"] == "load_shedding_fallback"


@pytest.mark.parametrize(
    ("settings", "band", "language", "text"),
    [
        (BASE, 2, "zh", MESSAGES["zh"]),
        (BASE, 1, "en", MESSAGES["en"]),
        (OWN, 2, "zh", '忙\n"忙"'),
        (OWN, 2, "en", "Busy: \\ é"),
        (OWN, 1, "zh", MESSAGES["zh"]),
    ],
)
def test_messages_are_the_bands_in_the_clients_language(settings: str, band: int, language: str, text: str) -> None:
    fallbacks = Fallbacks(parse_settings(settings))
    call = CALL | {"band": band, "language": language}
    assert json.loads(fallbacks.plain(**call).body)["choices"][0]["message"]["content"] == text
    first = events(fallbacks.streamed(**call).body)[0]
    assert isinstance(first, dict)
    assert first["choices"][0]["delta"]["content"] == text


@pytest.mark.parametrize("kind", ["plain", "streamed"])
def test_headers_tell_the_truth(kind: str) -> None:
    make: Callable[..., Answer] = getattr(Fallbacks(parse_settings(BASE)), kind)
    answer = make(**CALL, retry_after_s=4.0, jitter=0.0)
    sent = dict(answer.headers)
    assert len(sent) == len(answer.headers)
    assert answer.status == 200
    assert sent[b"x-tidegate-reason"] == b"shed"
    assert (sent[b"retry-after"], sent[b"retry-after-ms"]) == (b"4", b"4000")
    assert sent[b"x-request-id"] == b"r-1"
    assert sent[b"x-tidegate-band"] == b"p2"
    assert sent[b"x-tidegate-queue-ms"] == b"0"
    assert sent[b"content-length"] == str(len(answer.body)).encode()
    kinds = {"plain": b"application/json", "streamed": b"text/event-stream; charset=utf-8"}
    assert sent[b"content-type"] == kinds[kind]
    assert sent.get(b"x-accel-buffering") == (b"no" if kind == "streamed" else None)
