"""What the gateway notices in an answer that passes, however it is cut into pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.classify import Route
from tidegate.gateway.watch import NOTHING, BytesWatch, StreamWatch, Used, inspect_whole, watch_for, with_tier

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
WORD = 'data: {"choices":[{"index":0,"delta":{"content":"潮"},"finish_reason":null}],"usage":null}\n\n'.encode()
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"d":{"cached_tokens":1}}}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"Context size has been exceeded.","code":500}}\n\n'
QUOTED = rb'data: {"choices":[{"index":0,"delta":{"content":"{\"error\": {\"message\""}}]}' + b"\n\n"


def watched(stream: bytes, step: int = 0, route: Route = Route.CHAT) -> StreamWatch:
    watch = watch_for(route)
    for start in range(0, len(stream), step or len(stream)):
        watch.piece(stream[start : start + (step or len(stream))])
    return watch


@pytest.mark.parametrize("step", [0, 1, 7, 40])
def test_a_good_stream_is_complete_and_tells_its_usage(step: int) -> None:
    watch = watched(ROLE + WORD + WORD + STOP + USAGE + DONE, step)
    assert (watch.complete, watch.failed, watch.used()) == (True, False, Used(9, 2))


@pytest.mark.parametrize("step", [0, 1, 7, 40])
def test_a_stream_that_stops_after_content_is_not_complete(step: int) -> None:
    watch = watched(ROLE + WORD + WORD, step)
    assert (watch.complete, watch.failed) == (False, False)


def test_without_usage_the_events_are_counted() -> None:
    assert watched(ROLE + WORD * 7 + STOP + DONE).used() == Used(None, 8)
    assert watched(ROLE + ERROR).used() == NOTHING


def test_a_finish_reason_is_an_end_where_an_engine_sends_no_done() -> None:
    assert watched(ROLE + WORD + STOP, 40).complete


@pytest.mark.parametrize("step", [0, 1, 7, 40])
@pytest.mark.parametrize("before", [b"", ROLE + WORD * 100, ROLE + b": ping\n\n"])
def test_an_error_event_is_seen_wherever_it_comes(before: bytes, step: int) -> None:
    watch = watched(before + ERROR, step)
    assert (watch.failed, watch.complete) == (True, True)


@pytest.mark.parametrize("step", [0, 1, 7])
def test_talk_about_errors_is_no_error(step: int) -> None:
    null = b'data: {"error":null,"choices":[]}\n\n'
    assert not watched(ROLE + QUOTED + null + b": error\n\n" + DONE, step).failed


def test_content_begins_with_the_first_piece_that_has_some() -> None:
    watch = StreamWatch()
    watch.piece(ROLE)
    assert not watch.content
    watch.piece(WORD)
    assert watch.content


@pytest.mark.parametrize("field", [b'"text": "a"', b'"reasoning_content":"a"', b'"tool_calls":[{"index":0}]'])
def test_other_kinds_of_content_count(field: bytes) -> None:
    assert watched(b'data: {"choices":[{' + field + b"}]}\n\n").content


HEAD, TAIL = b'data: {"choices":[{"index":0,"delta":{"content":"', b'"},"finish_reason":null}]}\n\n'
WORDS = [b"a", b"", b"tide", b" the error", rb"\\", rb"\"", "潮".encode(), b'"},"error":{"code":"500']
OTHERS = [ROLE, STOP, USAGE, ERROR, HEAD[:-1] + TAIL, HEAD, TAIL, b": ping\n\n", b"event: error\n", b'"', b"x"]


@given(st.lists(st.sampled_from(OTHERS) | st.sampled_from(WORDS).map(lambda word: HEAD + word + TAIL), max_size=12))
def test_pieces_that_are_passed_over_tell_what_they_would_when_cut_anyhow(pieces: list[bytes]) -> None:
    """Cut into bytes, no piece is like another, so each is looked at in full."""
    whole, bytewise = StreamWatch(), watched(b"".join(pieces), 1)
    for piece in pieces:
        whole.piece(piece)
    assert (whole.content, whole.failed) == (bytewise.content, bytewise.failed)
    assert whole.used().input_tokens == bytewise.used().input_tokens


FINISHED = HEAD + b'"},"finish_reason":"stop","index":1,"delta":{"content":"' + TAIL
HIDDEN = HEAD + b"\ndata: [DONE]\n\ndata: " + TAIL


ENDS = [(STOP,), (DONE,), (USAGE,), (FINISHED,), (HIDDEN,), (ERROR,), (b"x", HEAD + TAIL, ERROR)]


@pytest.mark.parametrize("end", ENDS)
def test_what_comes_among_usual_pieces_is_seen(end: tuple[bytes, ...]) -> None:
    watch = StreamWatch()
    for piece in (ROLE, *(HEAD + word + TAIL for word in (b"a", b"b", b"c", b"d")), *end):
        watch.piece(piece)
    assert watch.complete is (end != (USAGE,))
    assert watch.failed is (end[-1] is ERROR)
    assert watch.used().input_tokens == (9 if end == (USAGE,) else None)


def test_pieces_of_one_form_are_counted() -> None:
    watch = StreamWatch()
    for number in range(100):
        watch.piece(HEAD + b"%d" % number + TAIL)
    assert watch.used() == Used(None, 98)


def test_an_endless_line_is_not_kept() -> None:
    watch = StreamWatch()
    for _ in range(100):
        watch.piece(b"x" * 1000)
    watch.piece(b"\n\n" + DONE)
    assert watch.complete


def test_a_usage_that_cannot_be_read_is_none() -> None:
    assert watched(b'data: {"usage":{"prompt_tokens":"many"}}\n\n').used() == NOTHING


@pytest.mark.parametrize("tokens", [-1, -(2**63), 2**32 + 1, 2**62, 2**63, 2**64])
def test_a_number_that_no_answer_can_have_used_is_not_told(tokens: int) -> None:
    usage = b'"usage":{"prompt_tokens":5,"completion_tokens":%d}}' % tokens
    assert watched(ROLE + WORD + STOP + b'data: {"choices":[],' + usage + b"\n\n" + DONE).used() == Used(5, None)
    assert inspect_whole(b"{" + usage) == (False, Used(5, None))
    assert inspect_whole(b'{"usage":{"input_tokens":%d,"output_tokens":7}}' % tokens) == (False, Used(None, 7))


def test_a_whole_answer_tells_usage_and_failure() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    assert inspect_whole(json.dumps({"object": "chat.completion", "usage": usage}).encode()) == (False, Used(3, 4))
    assert inspect_whole(b'{"error":{"message":"no"}}') == (True, NOTHING)
    assert inspect_whole(b'{"object":"error","message":"no"}') == (True, NOTHING)
    assert inspect_whole(b'{"error":null}') == (False, NOTHING)
    assert inspect_whole(b"<html>") == (False, NOTHING)


@pytest.mark.parametrize("text", ["", "error", 'an "error"', '"error"', "\\", 'said: "content":"error"', "x" * 9000])
@pytest.mark.parametrize("compact", [True, False])
def test_an_error_is_found_on_either_side_of_any_text(text: str, compact: bool) -> None:
    choices = [{"message": {"content": text}, "logprobs": None}, {"message": {"content": "error"}}]
    good = {"choices": choices, "usage": {"prompt_tokens": 3}}
    separators = (",", ":") if compact else None
    error = {"error": {"message": text, "content": text}}
    for body, failed in ((good, False), (error | good, True), (good | error, True), ({"object": "error"} | good, True)):
        assert inspect_whole(json.dumps(body, separators=separators).encode()) == (failed, Used(3))


def test_the_tier_is_written_and_nothing_else_changes() -> None:
    body = '{"id": "x", "choices": [ {"n": 1.0, "t": "潮\\u6f6e"} ]}'.encode()
    patched = with_tier(body, "flex")
    assert json.loads(patched) == json.loads(body) | {"service_tier": "flex"}
    assert '[ {"n": 1.0, "t": "潮\\u6f6e"} ]'.encode() in patched
    assert with_tier(patched, "default").count(b"service_tier") == 1
    assert with_tier(b"not json", "flex") == b"not json"


CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"error":null,"usage":null}}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"tide"}\n\n'
USED = b'"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":0},"output_tokens":3}}}\n\n'
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","response":{"o":"' + b"x" * 9000 + b'",' + USED
)
BEGUN = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}\n\n'
)
TEXT = b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"tide"}}\n\n'
ENDING = b'data: {"type":"message_delta","usage":{"output_tokens":3}}\n\n'
STOPPED = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
SAYS_END = rb'data: {"type":"response.output_text.delta","delta":"{\"type\":\"response.completed\"}"}' + b"\n\n"


@pytest.mark.parametrize("step", [0, 1, 7, 40])
@pytest.mark.parametrize(
    ("route", "begun", "end"),
    [
        (Route.RESPONSES, CREATED + DELTA + SAYS_END, COMPLETED),
        (Route.OTHER, BEGUN + TEXT, ENDING + STOPPED),
    ],
)
def test_streams_with_typed_events_end_with_their_last_one(route: Route, begun: bytes, end: bytes, step: int) -> None:
    cut = watched(begun, step, route)
    assert (cut.content, cut.complete, cut.failed) == (True, False, False)
    good = watched(begun + end, step, route)
    assert (good.complete, good.failed, good.used()) == (True, False, Used(7, 3))


def test_nothing_is_content_before_there_is_some() -> None:
    assert not watched(CREATED, 0, Route.RESPONSES).content
    assert not watched(BEGUN, 0, Route.OTHER).content
    assert not watched(b": ping\n\n", 0, Route.OTHER).content
    failed = watched(CREATED + b'data: {"type":"response.failed","response":{}}\n\n', 0, Route.RESPONSES)
    assert (failed.failed, failed.complete, failed.content) == (True, True, False)
    error = watched(b'event: error\ndata: {"type":"error","error":{"message":"busy"}}\n\n', 0, Route.OTHER)
    assert (error.failed, error.content) == (True, False)


def test_a_stream_of_an_unknown_kind_may_end_wherever_it_does() -> None:
    watch = watched(b'data: {"anything":1}\n\n', 0, Route.OTHER)
    assert (watch.content, watch.complete, watch.failed) == (True, True, False)
    sound = BytesWatch()
    sound.piece(b'"error":{"usage":{}}\n')
    assert (sound.content, sound.complete, sound.failed, sound.used()) == (True, True, False, NOTHING)


def test_a_whole_answer_tells_its_use_in_the_words_of_either_interface() -> None:
    assert inspect_whole(b'{"error":null,"usage":{"input_tokens":7,"output_tokens":3}}') == (False, Used(7, 3))


def test_an_end_counts_for_three_pieces_and_open_choices_are_none() -> None:
    still = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
    end = b'data: {"choices":[{"index":0,"finish_reason":null},{"index":1,"finish_reason": "stop"}]}\n\n'
    text = rb'"\"finish_reason\":\"stop\" [DONE"'
    told = b'data: {"choices":[{"index":0,"delta":{"content":%b},"finish_reason":null}]}\n\n' % text
    watch = StreamWatch()
    pieces = [still, told, still, told, end[:-30], end[-30:], still, still, still, b"data: [DO", b"NE]\n\n"]
    seen = []
    for piece in pieces:
        watch.piece(piece)
        seen.append(watch.complete)
    assert seen == [False] * 5 + [True] * 3 + [False] * 2 + [True]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            b'{"id":"x","usage":{"prompt_tokens":3,"completion_tokens":4},"system_fingerprint":null}\n',
            (False, Used(3, 4)),
        ),
        (b'{"usage":{"prompt_tokens":3},"choices":[{"usage":{"prompt_tokens":9}}]}', (False, Used(3))),
        (b'{"usage":{"prompt_tokens":3},"timings":{"usage":{"prompt_tokens":9}}}', (False, Used(3))),
        (b'{"usage":{"prompt_tokens":3},"usage":{"prompt_tokens":5}}', (False, Used(5))),
        (b'{"usage":{"prompt_tokens":3},"object":"usage"}', (False, Used(3))),
        (b'{"usage":{"prompt_tokens":3},"text":"the \\"usage\\": {"}', (False, Used(3))),
        (b'{"usage":{"prompt_tokens":3},"the \\"usage":{"prompt_tokens":9}}', (False, Used(3))),
        (b'{"text":"\\u00e9","usage":{"prompt_tokens":3}}', (False, Used(3))),
        (b'{"usage":{"prompt_tokens":3},"\\u0065rror":{"message":"no"}}', (True, Used(3))),
        (b'{"usage":{"prompt_tokens":3},"us\\u0061ge":{"prompt_tokens":5}}', (False, Used(5))),
        (b'{"text":"\\"error\\"","usage":{"prompt_tokens":3}}', (False, Used(3))),
        (b'{"error":{"message":"no"},"usage":{"prompt_tokens":3}}', (True, Used(3))),
        (b'{"usage":{"prompt_tokens":"three"}}', (False, NOTHING)),
        (b'{"usage":null}', (False, NOTHING)),
        (b'{"usage":{"prompt_tokens":3}', (False, NOTHING)),
        (b'"usage"', (False, NOTHING)),
    ],
)
def test_the_usage_of_a_whole_answer_is_that_of_its_top_level(body: bytes, found: tuple[bool, Used]) -> None:
    assert inspect_whole(body) == found
