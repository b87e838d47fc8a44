"""Texts, pieces and faults of the simulated engine, without a socket."""

from __future__ import annotations

import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.simserver import EngineOptions, Fault, FaultKind, RetryForm, filler_text, tokens_of
from tidegate.simserver.answers import Envelope, TextChoice, sample_arguments
from tidegate.simserver.compose import cut_pieces, first_stop
from tidegate.simserver.faults import FaultSwitch, retry_headers
from tidegate.simserver.text import ESCAPED, VOCABULARY, Length, Writer, state_of, unit_keys

WRITER = Writer(seed=9, mean_tokens=50)


def written(prompt: str, length: Length) -> tuple[list[str], bool]:
    numbers, ended = WRITER.write(state_of(prompt), length)
    return [VOCABULARY[number] for number in numbers], ended


@given(st.text(max_size=300))
def test_tokens_lose_nothing(text: str) -> None:
    assert "".join(tokens_of(text)) == text


def test_vocabulary_holds_what_breaks_careless_code() -> None:
    text = "".join(VOCABULARY)
    assert len(set(VOCABULARY)) == 256
    assert {'"', "\\", "\n"} < set(VOCABULARY)
    assert {len(letter.encode()) for letter in text} == {1, 2, 3, 4}


@given(prompt=st.text(max_size=60), cut=st.integers(0, 400))
def test_any_part_of_an_answer_continues_to_the_same_end(prompt: str, cut: int) -> None:
    whole, ended = written(prompt, Length(400))
    cut = min(cut, len(whole))
    part = "".join(whole[:cut])
    rest, rest_ended = written(prompt + part, Length(400 - cut, minimum=0 if cut else 1))
    assert (whole[:cut] + rest, rest_ended or not rest) == (whole, ended or not rest)


@given(st.text(max_size=60))
def test_generated_text_falls_into_the_tokens_that_made_it(prompt: str) -> None:
    tokens, _ = written(prompt, Length(200, exact=200))
    assert tokens_of("".join(tokens)) == tokens


def test_answers_end_by_themselves_around_the_mean() -> None:
    lengths = [len(written(f"prompt {number}", Length(5000))[0]) for number in range(2000)]
    assert statistics.fmean(lengths) == pytest.approx(50, rel=0.1)


def test_length_rules() -> None:
    assert written("p", Length(7, exact=7))[1] is True
    assert written("p", Length(7, exact=9)) == (written("p", Length(7, exact=7))[0], False)
    tokens, ended = written("p", Length(300, minimum=300))
    assert (len(tokens), ended) == (300, False)


def test_choices_and_seeds_differ() -> None:
    first = WRITER.write(state_of("p"), Length(20, exact=20))
    assert first != WRITER.write(state_of("p", 1), Length(20, exact=20))
    assert first != Writer(seed=10, mean_tokens=50).write(state_of("p"), Length(20, exact=20))


@pytest.mark.parametrize("tokens", [1, 15, 2730])
def test_filler_has_exactly_the_tokens_asked_for(tokens: int) -> None:
    assert len(tokens_of(filler_text(tokens, seed=tokens))) == tokens


def test_unit_keys_agree_as_far_as_the_texts_do() -> None:
    text = tokens_of(filler_text(100))
    other = [*text[:50], "!", *text[51:]]
    keys, others = unit_keys(text), unit_keys(other)
    assert len(keys) == 6
    assert keys[:3] == others[:3]
    assert not set(keys[3:]) & set(others[3:])


def test_stop_text_across_tokens_cuts_the_pieces() -> None:
    tokens = [" one", " two", " three", " four"]
    assert first_stop(tokens, None) is None
    assert first_stop(tokens, "absent") is None
    assert first_stop(tokens, ["four", "o t"]) == (3, 7)
    assert cut_pieces([token.encode() for token in tokens[:3]], tokens[:3], 7) == [b" one", b"", b" tw"]


def test_pieces_make_one_valid_json_text() -> None:
    envelope = Envelope("chatcmpl-1", 'a "model"', 1, True)
    choice = TextChoice(envelope, 0, list(ESCAPED), tokens=256, reason="stop")
    body = json.loads(envelope.body([choice], {}))
    assert body["choices"][0]["message"]["content"] == "".join(VOCABULARY)
    events = b"".join(choice.event(position) for position in range(256)).decode().split("\n\n")
    said = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events if event]
    assert "".join(choice["delta"]["content"] for choice in said) == "".join(VOCABULARY)
    assert [choice["finish_reason"] for choice in said[-2:]] == [None, "stop"]


def test_sample_arguments_follow_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["red", "blue"]},
            "sizes": {"type": "array", "items": {"type": "integer"}},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
            "note": {"type": ["null", "string"]},
            "sure": {"type": "boolean"},
        },
    }
    assert json.loads(sample_arguments(schema)) == {
        "colour": "red",
        "sizes": [7],
        "where": {"lat": 0.5},
        "note": None,
        "sure": True,
    }
    assert sample_arguments(None) == "{}"


def test_fault_strikes_its_share_from_the_seed() -> None:
    def struck(seed: int) -> list[bool]:
        switch = FaultSwitch(Fault(kind=FaultKind.CUT, share=0.3), seed)
        return [switch.strike() is not None for _ in range(1000)]

    assert struck(1) == struck(1)
    assert sum(struck(1)) == pytest.approx(300, abs=50)


def test_slow_is_no_fault_of_single_requests() -> None:
    switch = FaultSwitch(Fault(kind=FaultKind.SLOW, factor=4), 0)
    assert switch.strike() is None
    assert switch.step_factor == 4
    switch.set(Fault(kind=FaultKind.ERROR, times=1))
    assert switch.step_factor == 1
    assert [switch.strike() is not None for _ in range(2)] == [True, False]


def test_retry_header_in_three_forms() -> None:
    assert retry_headers(Fault(retry_after_s=3)) == [(b"retry-after", b"3")]
    assert retry_headers(Fault(retry_after_s=0.5, retry_form=RetryForm.MILLISECONDS)) == [(b"retry-after-ms", b"500")]
    ((name, value),) = retry_headers(Fault(retry_form=RetryForm.DATE))
    assert name == b"retry-after"
    assert value.endswith(b"GMT")


@pytest.mark.parametrize("options", [{"speed": 0}, {"noise": 1.0}, {"mean_output_tokens": 0}, {"max_model_len": 1}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        EngineOptions(**options)  # type: ignore[arg-type]
