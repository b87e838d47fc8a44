"""The table of engine kinds, and how an error at the start of a stream is recognised."""

from __future__ import annotations

import time

import pytest

from tidegate.backends import ENGINES, PrioritySign, Reuse, stream_error


def test_each_engine_of_the_configuration_file_has_a_row() -> None:
    assert set(ENGINES) == {"vllm", "sglang", "llamacpp", "openai", "tidegate"}


@pytest.mark.parametrize(
    ("engine", "worse"), [("vllm", 2), ("tidegate", 2), ("sglang", -2), ("llamacpp", None), ("openai", None)]
)
def test_priority_has_the_engines_sign(engine: str, worse: int | None) -> None:
    kind = ENGINES[engine]
    assert kind.priority_of(2) == worse
    assert kind.priority_of(0) == (None if kind.priority is PrioritySign.NONE else 0)


def test_only_llamacpp_closes_after_a_stream() -> None:
    assert {name for name, kind in ENGINES.items() if kind.reuse is Reuse.AFTER_PLAIN} == {"llamacpp"}


@pytest.mark.parametrize(
    "start",
    [
        b'data: {"error":{"message":"busy","code":503}}\n\n',
        b'data:{"error":{"message":"busy"}}\n\n',
        b'data: { "error" : {"message":"busy"}}\r\n\r\n',
        b'data: {"error": "busy"}\n\n',
        b'\r\n\r\n: ping\r\n\r\ndata: {"error":{"code":500',
        b': comment\nid: 1\nretry: 100\ndata: {"error":{',
        b'\xef\xbb\xbfdata: {"error":{',
        b'data: {"object":"error","message":"busy"}\n\n',
        b'error: {"code":500,"message":"Context size has been exceeded."}\n\n',
        b'event: error\ndata: {"type":"error"}\n\n',
        b"event:error\r\n",
    ],
)
def test_an_error_event_is_recognised(start: bytes) -> None:
    assert stream_error(start)
    assert stream_error(start + b'data: [DONE]\n\n{"error":1}')


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"data",
        b'data: {"err',
        b'data: {"error":',
        b'data: {"error":null,"id":"a"}\n\n',
        b'data: {"id":"a","choices":[{"delta":{"content":"{\\"error\\":{}}"}}]}\n\n',
        b'data: {"id":"a","error":null}\n\n',
        b'data: {"errors":{"a":1}}\n\n',
        b'data: {"object":"chat.completion.chunk"}\n\n',
        b'data: {"id":"a"}\n\ndata: {"error":{"code":500}}\n\n',
        b': data: {"error":{"code":500}}\n\ndata: {"id":"a"}\n\n',
        b"event: message\ndata: {}\n\n",
        b"event: errors\n",
        b"data: [DONE]\n\n",
        b'{"error":{"message":"not an event stream"}}',
    ],
)
def test_an_answer_is_not_taken_for_an_error(start: bytes) -> None:
    assert not stream_error(start)


@pytest.mark.parametrize("filler", [b": ping\n\n", b"\n", b":\r\n", b"id: 1\n", b"data: {"])
def test_a_hostile_start_costs_linear_time(filler: bytes) -> None:
    start = filler * 100_000
    began = time.process_time()
    assert not stream_error(start)
    assert time.process_time() - began < 1.0
