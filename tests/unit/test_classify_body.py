"""Reading bodies: what decides is read, what is wrong is named, nothing raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tidegate.classify import ParsedBody, Refused, Route, fallback_allowed, is_given, parse_body, route_of
from tidegate.classify.body import output_limit
from tidegate.core import Reason

MESSAGES = [{"role": "user", "content": "你好"}]


def chat(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **fields}, ensure_ascii=False).encode()


def parsed(raw: bytes, route: Route = Route.CHAT) -> ParsedBody:
    body = parse_body(raw, route)
    assert isinstance(body, ParsedBody), body
    return body


def test_reads_the_fields_that_decide() -> None:
    body = parsed(chat(stream=True, n=2, max_tokens=7, service_tier="flex", metadata={"a": "b"}, unknown={"x": [1]}))
    assert (body.model, body.stream, body.n, body.max_tokens, body.service_tier) == ("m", True, 2, 7, "flex")
    assert bytes(body.metadata) == b'{"a": "b"}'
    assert bytes(body.messages) == json.dumps(MESSAGES, ensure_ascii=False).encode()
    assert not body.tools


def test_absent_fields_and_nulls_differ() -> None:
    assert parsed(chat()).max_tokens is UNSET
    assert parsed(chat(max_tokens=None)).max_tokens is None


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 10}, 10),
        ({"max_tokens": 10.0}, 10),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": None, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 5}, 5),
        ({"max_output_tokens": 3}, 3),
        ({"max_tokens": 100, "n_predict": 4}, 4),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 10**30}, 10**30),
    ],
)
def test_output_limit(fields: dict[str, object], limit: int | None) -> None:
    assert output_limit(parsed(chat(**fields))) == limit


@pytest.mark.parametrize(
    ("raw", "param", "words"),
    [
        (b"", None, "empty body"),
        (b"  \n", None, "empty body"),
        (b"{", None, "invalid JSON"),
        (b"[]", None, "expected an object, got an array"),
        (b"3", None, "expected an object, got a whole number"),
        (b"null", None, "expected an object, got null"),
        (b'{"model":"m","messages":[NaN]}', None, "invalid JSON"),
        (b'{"model":"m","messages":[],"temperature":Infinity}', None, "invalid JSON"),
        (b'{"model":"m","messages":["\\ud800"]}', None, "invalid JSON"),
        (b'{"model":"m","messages":["\xff"]}', None, "UTF-8"),
        (b'{"model":"\xff","messages":[]}', None, "UTF-8"),
        ('{"model":"m"}'.encode("utf-16"), None, "UTF-8"),
        (b'\xef\xbb\xbf{"model":"m","messages":[]}', None, "invalid JSON"),
        (b'{"model":"m","messages":[],}', None, "trailing comma"),
        (b'{"model":"m","messages":[]} {}', None, "trailing"),
        (b'{"model":"m"}', "messages", "expected an array of messages, got none"),
        (b'{"model":5,"messages":[]}', "model", "expected a string, got a whole number"),
        (b'{"model":null,"messages":[]}', "model", "expected a string, got null"),
        (b'{"model":"m","messages":[],"stream":"yes"}', "stream", "expected true or false or null, got a string"),
        (b'{"model":"m","messages":[],"n":1.5}', "n", "expected a whole number or null, got a number"),
        (b'{"model":"m","messages":[],"max_tokens":"5"}', "max_tokens", "got a string"),
        (b'{"model":"m","messages":[],"max_tokens":true}', "max_tokens", "got true or false"),
        (b'{"model":"m","messages":[],"max_tokens":1e999}', "max_tokens", "out of range"),
        (b'{"model":"m","messages":[],"max_tokens":' + b"9" * 5000 + b"}", "max_tokens", "out of range"),
        (b'{"model":"m","messages":[],"service_tier":3}', "service_tier", "expected a string"),
        (b'{"model":"m","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}", None, "nested too deeply"),
        (b'{"x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}", None, "nested too deeply"),
    ],
)
def test_bad_bodies_say_field_expectation_and_what_came(raw: bytes, param: str | None, words: str) -> None:
    refused = parse_body(raw, Route.CHAT)
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.param, refused.status) == (Reason.BAD_REQUEST, param, None)
    assert words in refused.detail


def test_what_only_the_engine_understands_is_not_judged() -> None:
    raw = b'{"model":"m","messages":"odd","tools":7,"seed":"x","logit_bias":{"1":99999999999999999999999},"stop":{}}'
    assert parsed(raw).model == "m"
    assert parsed(b'{"prompt":[1,2,3]}', Route.COMPLETIONS).model is UNSET


def test_the_last_of_repeated_keys_counts_however_it_is_written() -> None:
    assert parsed(b'{"model":"a","messages":[],"mod\\u0065l":"b"}').model == "b"


@given(st.binary(max_size=200))
def test_random_bytes_never_raise(raw: bytes) -> None:
    assert isinstance(parse_body(raw, Route.OTHER), ParsedBody | Refused)


@given(st.data())
def test_mutated_bodies_never_raise(data: st.DataObject) -> None:
    raw = bytearray(
        chat(stream=True, max_tokens=5, stream_options={"include_usage": True}, priority=1, metadata={"a": 1})
    )
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    body = parse_body(bytes(raw), Route.CHAT)
    if isinstance(body, ParsedBody):
        assert (limit := output_limit(body)) is None or limit >= 0
        assert body.wants_usage in (True, False)
    else:
        assert body.detail


@pytest.mark.parametrize(
    ("options", "wants"),
    [
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ({"continuous_usage_stats": True}, False),
        ({"include_usage": "true"}, False),
        (None, False),
        ("true", False),
        ([True], False),
    ],
)
def test_wants_usage(options: object, wants: bool) -> None:
    assert parsed(chat(stream=True, stream_options=options)).wants_usage is wants
    assert parsed(chat()).wants_usage is False


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, True),
        ({"stream": True}, True),
        ({"n": 1}, True),
        ({"n": None}, True),
        ({"tools": [], "response_format": None, "logprobs": False}, True),
        ({"n": 2}, False),
        ({"tools": [{"type": "function"}]}, False),
        ({"functions": [{"name": "f"}]}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"logprobs": True}, False),
    ],
)
def test_only_plain_chat_may_get_the_fallback(fields: dict[str, object], allowed: bool) -> None:
    assert fallback_allowed(parsed(chat(**fields)), Route.CHAT) is allowed


@pytest.mark.parametrize("route", [Route.COMPLETIONS, Route.EMBEDDINGS, Route.RESPONSES, Route.OTHER])
def test_other_endpoints_get_the_error(route: Route) -> None:
    assert not fallback_allowed(parsed(chat(), route), route)


def test_is_given_ignores_empty_values() -> None:
    body = parsed(chat(tools=[], response_format={}, seed=0, user=""))
    assert not is_given(body.tools)
    assert not is_given(body.response_format)
    assert is_given(body.seed)
    assert not is_given(body.user)


def test_routes_are_found_by_their_path() -> None:
    assert route_of("/v1/chat/completions") is Route.CHAT
    assert route_of("/v1/responses") is Route.RESPONSES
    assert route_of("/v1/rerank") is Route.OTHER
    assert route_of("*") is Route.OTHER
