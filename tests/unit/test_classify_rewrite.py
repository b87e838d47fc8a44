"""Patching bodies: the patch is made, and everything else stays byte for byte."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.classify import CAP_FIELD, ClientPriority, ParsedBody, Route, Usage, parse_body, upstream_body

CHAT = b'{ "model" : "m", "messages": [ {"role":"user", "content":"\\u4f60 \xe5\xa5\xbd"} ],"x":1e0 }'


def parsed(raw: bytes) -> ParsedBody:
    body = parse_body(raw, Route.OTHER)
    assert isinstance(body, ParsedBody), body
    return body


def patched(raw: bytes, **patch: Any) -> bytes:
    return upstream_body(raw, parsed(raw), **patch)


def test_an_unchanged_body_is_the_same_object() -> None:
    assert patched(CHAT) is CHAT
    assert patched(CHAT, model="m", drop=("service_tier",), usage=Usage.ENSURED) is CHAT
    capped = b'{"model":"m","max_tokens":5}'
    assert patched(capped, max_output_tokens=5) is capped
    assert patched(b'{"priority":3}', priority=ClientPriority.KEEP) == b'{"priority":3}'


def test_added_fields_are_spliced_in_and_the_rest_is_byte_identical() -> None:
    assert patched(CHAT, priority=-2, max_output_tokens=512) == CHAT[:-1] + b',"priority":-2,"max_tokens":512}'
    assert patched(b"{ }\r\n", priority=1) == b'{ "priority":1}'
    assert patched(b'{"a":1}  ', priority=1) == b'{"a":1,"priority":1}'


@pytest.mark.parametrize(
    ("raw", "patch", "wanted"),
    [
        (b'{"model":"a","x":[1, 2]}', {"model": "b"}, b'{"model":"b","x":[1, 2]}'),
        (b'{"x": 1}', {"model": "b"}, b'{"x": 1,"model":"b"}'),
        (b'{"model":"","x":1}', {"model": "b"}, b'{"model":"b","x":1}'),
        (b'{"priority":-100,"x":1}', {}, b'{"x":1}'),
        (b'{"priority":-100,"priority":-5}', {}, b"{}"),
        (b'{"pri\\u006frity":-100}', {}, b"{}"),
        (b'{"priority":null}', {}, b"{}"),
        (b'{"priority":-100,"x":1}', {"priority": 4}, b'{"priority":4,"x":1}'),
        (b'{"service_tier":"flex","x":1}', {"drop": ("service_tier",)}, b'{"x":1}'),
        (b'{"max_tokens":900}', {"max_output_tokens": 512}, b'{"max_tokens":512}'),
        (b'{"max_tokens":900.5}', {"max_output_tokens": 512}, b'{"max_tokens":512}'),
        (b'{"max_tokens":-1}', {"max_output_tokens": 512}, b'{"max_tokens":512}'),
        (b'{"max_tokens":null}', {"max_output_tokens": 512}, b'{"max_tokens":512}'),
        (b'{"max_tokens":null}', {}, b'{"max_tokens":null}'),
        (b'{"max_completion_tokens":900}', {"max_output_tokens": 512}, b'{"max_completion_tokens":512}'),
        (b'{"max_completion_tokens":9}', {"max_output_tokens": 512}, b'{"max_completion_tokens":9}'),
        (b'{"max_output_tokens":900}', {"max_output_tokens": 512}, b'{"max_output_tokens":512}'),
        (
            b'{"max_tokens":9,"max_completion_tokens":900}',
            {"max_output_tokens": 512},
            b'{"max_tokens":9,"max_completion_tokens":512}',
        ),
        (b'{"max_tokens":9,"n_predict":-1}', {"max_output_tokens": 512}, b'{"max_tokens":9,"n_predict":512}'),
        (b'{"x":1}', {"max_output_tokens": 512, "cap_field": None}, b'{"x":1}'),
        (b'{"x":1}', {"max_output_tokens": 5, "cap_field": "max_output_tokens"}, b'{"x":1,"max_output_tokens":5}'),
        (
            b'{"stream":true}',
            {"usage": Usage.ENSURED},
            b'{"stream":true,"stream_options":{"include_usage":true}}',
        ),
        (
            b'{"stream":true,"stream_options":{"a": 1,"include_usage":false}}',
            {"usage": Usage.ENSURED},
            b'{"stream":true,"stream_options":{"a":1,"include_usage":true}}',
        ),
        (
            b'{"stream":true,"stream_options":null}',
            {"usage": Usage.ENSURED},
            b'{"stream":true,"stream_options":{"include_usage":true}}',
        ),
        (b'{"stream":true,"stream_options":[1]}', {"usage": Usage.ENSURED}, b'{"stream":true,"stream_options":[1]}'),
        (b'{"stream":false}', {"usage": Usage.ENSURED}, b'{"stream":false}'),
    ],
)
def test_patches(raw: bytes, patch: dict[str, Any], wanted: bytes) -> None:
    assert patched(raw, **patch) == wanted


def test_routes_without_output_tokens_have_no_cap_field() -> None:
    assert CAP_FIELD.get(Route.EMBEDDINGS) is None
    assert CAP_FIELD.get(Route.OTHER) is None
    assert CAP_FIELD[Route.RESPONSES] == "max_output_tokens"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=6,
)
LIMITS = st.none() | st.integers(-5, 2000) | st.floats(0, 2000)
KNOWN = st.fixed_dictionaries(
    {},
    optional={
        "model": st.text(max_size=5),
        "priority": JSON,
        "max_tokens": LIMITS,
        "max_completion_tokens": LIMITS,
        "max_output_tokens": LIMITS,
        "stream": st.none() | st.booleans(),
        "stream_options": JSON,
        "service_tier": st.none() | st.sampled_from(["flex", "auto"]),
        "messages": JSON,
        "metadata": JSON,
    },
)
BODIES = st.builds(lambda known, other: other | known, KNOWN, st.dictionaries(st.text(max_size=8), JSON, max_size=4))
PRIORITIES = st.integers(-100, 100) | st.sampled_from(ClientPriority)
CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


@given(
    fields=BODIES,
    ascii_only=st.booleans(),
    indent=st.none() | st.integers(0, 3),
    priority=PRIORITIES,
    cap=st.none() | st.integers(1, 1000),
    model=st.none() | st.text(max_size=5),
    usage=st.sampled_from(Usage),
)
@example(fields={"n_predict": 5}, ascii_only=True, indent=None, priority=1, cap=3, model=None, usage=Usage.AS_ASKED)
def test_everything_that_is_not_patched_stays(
    fields: dict[str, Any],
    ascii_only: bool,
    indent: int | None,
    priority: int | ClientPriority,
    cap: int | None,
    model: str | None,
    usage: Usage,
) -> None:
    raw = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    body = parse_body(raw, Route.OTHER)
    if not isinstance(body, ParsedBody):
        return
    sent = json.loads(upstream_body(raw, body, priority=priority, max_output_tokens=cap, model=model, usage=usage))
    free = {"priority", "model", "stream_options", *CAPS}
    assert {k: v for k, v in sent.items() if k not in free} == {k: v for k, v in fields.items() if k not in free}
    if isinstance(priority, int):
        assert sent["priority"] == priority
    elif priority is ClientPriority.KEEP:
        assert sent.get("priority") == fields.get("priority")
    else:
        assert "priority" not in sent
    assert sent.get("model") == (model if model is not None else fields.get("model"))
    if cap is not None:
        given_limits = [sent[name] for name in CAPS if sent.get(name) is not None]
        assert given_limits
        assert all(0 <= limit <= cap for limit in given_limits)
    else:
        assert {name: sent.get(name) for name in CAPS} == {name: fields.get(name) for name in CAPS}


def test_values_that_are_not_patched_keep_their_bytes() -> None:
    raw = (
        b'{"messages":[ {"content" : "\\u4f60"} ] , "t":1.50, "max_tokens":9000, "big":123456789012345678901234567890}'
    )
    wanted = b'{"messages":[ {"content" : "\\u4f60"} ],"t":1.50,"max_tokens":5,"big":123456789012345678901234567890}'
    assert patched(raw, max_output_tokens=5) == wanted


def test_nesting_near_the_limit_does_not_break_the_rewrite_of_a_deeper_stack() -> None:
    def parse_deep(depth: int) -> tuple[bytes, ParsedBody] | None:
        raw = b'{"model":"a","priority":9,"x":' + b"[" * depth + b"]" * depth + b"}"
        body = parse_body(raw, Route.OTHER)
        return (raw, body) if isinstance(body, ParsedBody) else None

    def deeper(frames: int, raw: bytes, body: ParsedBody) -> bytes:
        return deeper(frames - 1, raw, body) if frames else upstream_body(raw, body, model="b")

    deepest = next(found for depth in range(sys.getrecursionlimit(), 0, -1) if (found := parse_deep(depth)))
    raw, body = deepest
    sent = deeper(20, raw, body)
    assert sent.startswith((raw[:-1], b'{"model":"b"'))
    assert b'"model":"b"' in sent
