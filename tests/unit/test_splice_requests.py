"""What can go on faithfully is known before anything is sent, and what is sent to go on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.splice import Obstacle, Splice, obstacle_of, read_wish
from tidegate.splice.request import continued

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM: dict[str, Any] = {**HELLO, "stream": True}


@pytest.mark.parametrize(
    "more",
    [
        {}, {"n": 1}, {"logprobs": False}, {"logprobs": None}, {"tools": []}, {"response_format": {"type": "text"}},
        {"temperature": 0.7}, {"stop": "x"}, {"max_tokens": 3}, {"presence_penalty": 0}, {"repetition_penalty": 1.1},
        {"store": False}, {"tools": [{"type": "function"}]}, {"modalities": ["text"]}, {"ignore_eos": True},
        {"tools": [{"type": "function"}], "tool_choice": "auto"}, {"seed": None}, {"continue_final_message": False},
    ],
    ids=str,
)  # fmt: skip
def test_plain_answers_can_go_on(more: dict[str, Any]) -> None:
    assert obstacle_of(json.dumps({**STREAM, **more}).encode(), chat=True) is None


@pytest.mark.parametrize(
    ("more", "obstacle"),
    [
        ({"n": 2}, Obstacle.CHOICES),
        ({"best_of": 2}, Obstacle.CHOICES),
        ({"use_beam_search": True}, Obstacle.CHOICES),
        ({"logprobs": True}, Obstacle.LOGPROBS),
        ({"top_logprobs": 0}, Obstacle.LOGPROBS),
        ({"response_format": {"type": "json_object"}}, Obstacle.STRUCTURED),
        ({"guided_regex": "a+"}, Obstacle.STRUCTURED),
        ({"structured_outputs": {"json": {}}}, Obstacle.STRUCTURED),
        ({"modalities": ["text", "audio"]}, Obstacle.STRUCTURED),
        ({"seed": 0}, Obstacle.SEED),
        ({"frequency_penalty": 0.5}, Obstacle.PENALTY),
        ({"store": True}, Obstacle.STORE),
        ({"tool_choice": "required", "tools": [{}]}, Obstacle.TOOLS),
        ({"function_call": {"name": "f"}, "functions": [{}]}, Obstacle.TOOLS),
        ({"stream": False, "tools": [{}]}, Obstacle.TOOLS),
        ({"truncate_prompt_tokens": 10}, Obstacle.PROMPT),
        ({"messages": []}, Obstacle.PROMPT),
        ({"continue_final_message": True}, Obstacle.CONTINUED),
        ({"messages": [*HELLO["messages"], {"role": "assistant", "content": "so"}]}, Obstacle.CONTINUED),
        ({"messages": "hi"}, Obstacle.ROUTE),
        ({"stop": 3}, Obstacle.ROUTE),
    ],
    ids=str,
)
def test_what_cannot_go_on_faithfully_is_known_in_advance(more: dict[str, Any], obstacle: Obstacle) -> None:
    assert obstacle_of(json.dumps({**STREAM, **more}).encode(), chat=True) is obstacle


@pytest.mark.parametrize(
    ("more", "obstacle"),
    [
        ({}, None),
        ({"prompt": ["a", "b"]}, Obstacle.PROMPT),
        ({"prompt": [1, 2]}, Obstacle.PROMPT),
        ({"prompt": ""}, Obstacle.PROMPT),
        ({"echo": True}, Obstacle.ECHO),
        ({"suffix": "x"}, Obstacle.ECHO),
        ({"logprobs": 0}, Obstacle.LOGPROBS),
    ],
    ids=str,
)
def test_completions_go_on_from_one_plain_prompt(more: dict[str, Any], obstacle: Obstacle | None) -> None:
    assert obstacle_of(json.dumps({"prompt": "say", **more}).encode(), chat=False) is obstacle


def test_an_engine_or_a_client_may_forbid_it() -> None:
    raw = json.dumps(STREAM).encode()
    assert obstacle_of(raw, chat=True, engine=False) is Obstacle.ENGINE
    assert obstacle_of(raw, chat=True, forbidden=True) is Obstacle.FORBIDDEN
    assert obstacle_of(b"no json", chat=True) is Obstacle.ROUTE


def test_the_messages_go_on_as_they_came_with_the_answer_behind_them() -> None:
    said = b'{"role":"user","content":"\\u4e2d \\ud83d\\ude42"}'
    raw = b'{"messages": [ %b ], "max_tokens": 10, "min_tokens": 2, "stream": true}' % said
    wish, _ = read_wish(raw, chat=True)
    body = continued(raw, wish, text='so "\n', tokens=3, told=True)
    assert said in body
    sent = json.loads(body)
    assert sent["messages"][-1] == {"role": "assistant", "content": 'so "\n'}
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
    assert (sent["max_tokens"], sent["min_tokens"]) == (7, 0)
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_a_prompt_goes_on_with_the_text() -> None:
    raw = b'{"prompt": "say \\"", "max_tokens": 100.0, "stream": true, "stream_options": {"include_usage": false}}'
    wish, _ = read_wish(raw, chat=False)
    sent = json.loads(continued(raw, wish, text="é", tokens=1, told=False))
    assert (sent["prompt"], sent["max_tokens"]) == ('say "é', 99)
    assert sent["stream_options"] == {"include_usage": True}


def test_nothing_said_is_asked_for_anew() -> None:
    raw = json.dumps(STREAM).encode()
    wish, _ = read_wish(raw, chat=True)
    sent = json.loads(continued(raw, wish, text="", tokens=0, told=False))
    assert sent["messages"] == HELLO["messages"]
    assert "continue_final_message" not in sent


def test_when_only_the_usage_is_missing_one_token_is_asked_for() -> None:
    wish, _ = read_wish(json.dumps(STREAM).encode(), chat=True)
    assert (
        json.loads(continued(json.dumps(STREAM).encode(), wish, text="a", tokens=None, told=False))["max_tokens"] == 1
    )


def event(**delta: Any) -> bytes:
    reason = delta.pop("reason", None)
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"id": "x", "created": 1, "model": "m", "choices": [choice]}).encode() + b"\n\n"


def splice(**more: Any) -> Splice:
    return Splice(read_wish(json.dumps({**STREAM, **more}).encode(), chat=True)[0])


@pytest.mark.parametrize(
    ("delta", "obstacle"),
    [
        ({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, Obstacle.TOOLS),
        ({"reasoning": "hm"}, Obstacle.REASONING),
        ({"reasoning_content": "hm"}, Obstacle.REASONING),
        ({"content": "a"}, None),
    ],
    ids=str,
)
def test_what_has_begun_may_stand_in_the_way(delta: dict[str, Any], obstacle: Obstacle | None) -> None:
    joined = splice()
    assert joined.passes(event(**delta))
    joined.keep(event(**delta))
    joined.cut()
    assert joined.obstacle is obstacle


def test_a_stop_that_straddles_the_seam_ends_the_answer_before_it() -> None:
    joined = splice(stop=["END\n"])
    joined.feed(event(role="assistant", content="") + event(content="so E"))
    joined.cut()
    assert b'"content":"ND' not in joined.feed(event(content="ND"))
    out = joined.feed(event(content="\n more") + event(content=" and more", reason="length") + b"data: [DONE]\n\n")
    assert b"more" not in out
    assert out.count(b'"finish_reason":"stop"') == 1
    assert out.count(b"[DONE]") == 1
    assert joined.text == "so E"


def test_what_only_looks_like_a_stop_at_the_seam_goes_out_whole() -> None:
    joined = splice(stop=["END\n", "E!"])
    joined.feed(event(content="so E"))
    joined.cut()
    out = [joined.feed(event(content=piece)) for piece in ("N", "D", "ED")]
    assert out[:2] == [b"", b""]
    assert joined.text == "so ENDED"
    assert b'"content":"NDED"' in out[2]


def test_what_is_held_back_at_the_seam_goes_out_with_the_end() -> None:
    joined = splice(stop=["END\n"])
    joined.feed(event(content="so E"))
    joined.cut()
    joined.feed(event(content="N"))
    out = joined.feed(event(content="D", reason="length"))
    assert joined.text == "so END"
    assert b'"content":"ND"' in out


def test_an_answer_that_had_all_its_tokens_ends_by_length() -> None:
    joined = splice(max_tokens=2)
    joined.feed(event(role="assistant", content="") + event(content="a") + event(content="b"))
    joined.cut()
    assert json.loads(joined.body(json.dumps({**STREAM, "max_tokens": 2}).encode()))["max_tokens"] == 1
    out = joined.feed(event(content="c", reason="stop") + b"data: [DONE]\n\n")
    assert joined.text == "ab"
    assert out.count(b'"finish_reason":"length"') == 1


def test_an_answer_that_vllm_gave_up_is_not_at_its_end() -> None:
    joined = splice()
    assert joined.feed(event(content="a") + event(content="", reason="abort")) == event(content="a")
    assert joined.failed
    assert not joined.complete


def test_reasoning_comes_back_in_a_whole_answer() -> None:
    joined = splice(stream=False)
    usage = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    joined.feed(event(reasoning="hm") + event(reasoning="!") + event(content="so", reason="stop") + usage)
    assert joined.complete
    whole = json.loads(joined.whole())
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "so", "reasoning": "hm!"}
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 2}


def test_an_answer_in_one_leg_has_the_usage_that_the_engine_told() -> None:
    joined = splice(stream=False)
    told = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}, "more": 1}
    joined.feed(event(content="so", reason="stop") + b"data: " + json.dumps({"choices": [], "usage": told}).encode())
    joined.feed(b"\n\n")
    assert json.loads(joined.whole())["usage"] == told


def test_what_a_cache_did_not_save_is_counted() -> None:
    joined = splice()
    joined.feed(event(content="a"))
    joined.cut()
    told = {"prompt_tokens": 40, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 32}}
    joined.feed(
        event(content="b", reason="stop") + b"data: " + json.dumps({"choices": [], "usage": told}).encode() + b"\n\n"
    )
    assert joined.recomputed == 7, "the last token of the text was written, but has not been read yet"
    assert joined.used() == (39, 2)


def test_kept_events_are_read_when_they_are_many() -> None:
    joined = splice()
    for _ in range(2000):
        piece = event(content="word " * 20)
        if joined.passes(piece):
            joined.keep(piece)
        else:
            joined.feed(piece)
    assert sum(map(len, joined._kept)) < 300_000
    assert joined.text == "word " * 40_000


def test_an_event_without_end_passes_but_cannot_go_on() -> None:
    joined = splice()
    piece = b"data: " + b"x" * 400_000
    assert b"".join(joined.feed(piece) for _ in range(3)) == piece * 3
    assert joined.obstacle is Obstacle.SIZE
