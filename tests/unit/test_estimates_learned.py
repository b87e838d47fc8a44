"""Estimates: a fair first guess, learned factors and quantiles, bounded and deterministic."""

from __future__ import annotations

import base64
import json
import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.classify import LearnedPredictor, ParsedBody, Quantiles, Route, parse_body
from tidegate.classify.estimates import DEFAULT_OUTPUT_TOKENS, _bucket, _Outputs, first_count
from tidegate.core import WorkEstimate


class Asking(NamedTuple):
    tenant: str
    pool: str
    band: int
    route: Route
    raw: bytes
    body: ParsedBody
    limit: int | None


def predict(predictor: LearnedPredictor, asked: Asking) -> Quantiles:
    return predictor.predict(
        asked.tenant, asked.pool, asked.band, route=asked.route, raw=asked.raw, body=asked.body, limit=asked.limit
    )


def request(
    raw: bytes = b'{"model":"m"}',
    *,
    tenant: str = "t",
    pool: str = "m",
    band: int = 1,
    limit: int | None = None,
    route: Route = Route.CHAT,
) -> Asking:
    body = parse_body(raw, Route.OTHER)
    assert isinstance(body, ParsedBody)
    return Asking(tenant, pool, band, route, raw, body, limit)


def learn(predictor: LearnedPredictor, asked: Asking, inputs: int | None, outputs: int | None) -> Quantiles:
    predicted = predict(predictor, asked)
    predictor.learn(predicted, input_tokens=inputs, output_tokens=outputs)
    return predicted


@pytest.mark.parametrize("size", [200, 3000, 100_000])
@pytest.mark.parametrize(
    ("text", "per_char"),
    [("plain words and words ", 0.25), ("中文文本很多", 1.0), ("half 中文 and ", (11 * 0.25 + 2) / 12)],
)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_first_count_knows_scripts(size: int, text: str, per_char: float, ascii_only: bool) -> None:
    prompt = (text * size)[:size]
    raw = json.dumps(prompt, ensure_ascii=ascii_only).encode()
    assert first_count(raw) == pytest.approx(size * per_char, rel=0.12)


def test_an_image_is_not_counted_as_text() -> None:
    image = base64.b64encode(random.Random(1).randbytes(600_000))
    raw = b'{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,' + image + b'"}}]}'
    assert first_count(raw) < 5000
    assert first_count(b'"' + b"some words " * 50_000 + b'"') > 100_000


def test_a_prompt_of_token_numbers_is_counted_as_text() -> None:
    raw = json.dumps(list(range(10_000, 20_000)), separators=(",", ":")).encode()
    assert first_count(raw) == pytest.approx(10_000 * 6 / 4, rel=0.05)


@given(st.binary(max_size=300), st.integers(1, 60))
def test_first_count_never_raises(raw: bytes, times: int) -> None:
    assert 0 <= first_count(raw * times) <= len(raw) * times


def test_the_first_guess_is_the_default_distribution_capped_by_the_limit() -> None:
    predictor = LearnedPredictor()
    free = predict(predictor, request())
    assert (free.output_p50, free.output_p90, free.output_p99) == DEFAULT_OUTPUT_TOKENS
    capped = predict(predictor, request(limit=250))
    assert (capped.output_p50, capped.output_p90, capped.output_p99) == (200, 250, 250)
    assert predict(predictor, request(b'{"n":3}', limit=100)).output_p50 == 300
    assert predict(predictor, request(limit=0)).output_p50 == 0
    assert predict(predictor, request(route=Route.EMBEDDINGS)).work.output_tokens == 0
    assert free.work == WorkEstimate(free.input_tokens, 200)


@pytest.mark.parametrize("count", [b"-5", b"0", b"null", b"999999999"])
def test_silly_choice_counts_stay_in_bounds(count: bytes) -> None:
    assert 1 <= predict(LearnedPredictor(), request(b'{"n":' + count + b"}", limit=10)).output_p50 <= 1280


def test_the_input_factor_is_learned_per_tenant_and_model() -> None:
    predictor = LearnedPredictor()
    asked = request(b'"'.join([b'{"x":', b"words " * 300, b"}"]))
    first = predict(predictor, asked).input_tokens
    for _ in range(200):
        learn(predictor, asked, int(first * 1.5), None)
    assert predict(predictor, asked).input_tokens == pytest.approx(first * 1.5, rel=0.05)
    other = request(asked.raw, tenant="other")
    assert predict(predictor, other).input_tokens == first
    assert predict(predictor, request(asked.raw, pool="other")).input_tokens == first


def test_one_wild_report_does_not_carry_the_factor_away() -> None:
    predictor = LearnedPredictor()
    asked = request(b'{"x":"' + b"words " * 30 + b'"}')
    first = predict(predictor, asked).input_tokens
    learn(predictor, asked, 10**9, None)
    assert predict(predictor, asked).input_tokens <= first * 5.1
    for _ in range(50):
        learn(predictor, asked, 0, None)
    assert predict(predictor, asked).input_tokens >= 1


def test_output_quantiles_follow_the_distribution() -> None:
    predictor = LearnedPredictor()
    rng = random.Random(3)
    samples = [int(rng.lognormvariate(5.0, 0.8)) for _ in range(600)]
    for tokens in samples:
        learn(predictor, request(), None, tokens)
    recent = sorted(samples[-300:])
    predicted = predict(predictor, request())
    assert predicted.output_p50 == pytest.approx(recent[150], rel=0.25)
    assert predicted.output_p90 == pytest.approx(recent[270], rel=0.35)
    assert predicted.output_p50 < predicted.output_p90 <= predicted.output_p99


def test_quantiles_move_on_with_the_traffic() -> None:
    predictor = LearnedPredictor()
    for tokens in [1000] * 500 + [20] * 300:
        learn(predictor, request(), None, tokens)
    assert predict(predictor, request()).output_p50 == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 100, 5000, 10**9])
def test_a_constant_length_is_predicted_within_a_bucket(tokens: int) -> None:
    predictor = LearnedPredictor()
    learn(predictor, request(), None, tokens)
    predicted = predict(predictor, request()).output_p50
    assert predicted == pytest.approx(min(tokens, 2**24), rel=0.1, abs=1)


def test_a_newcomer_takes_what_the_model_and_band_are_known_for() -> None:
    predictor = LearnedPredictor()
    learn(predictor, request(tenant="a", band=2), None, 3000)
    assert predict(predictor, request(tenant="new", band=2)).output_p50 == pytest.approx(3000, rel=0.1)
    assert predict(predictor, request(tenant="new", band=1)).output_p50 == DEFAULT_OUTPUT_TOKENS[0]


def test_each_choice_counts_as_a_sample() -> None:
    predictor = LearnedPredictor()
    learn(predictor, request(b'{"n":4}'), None, 400)
    assert predict(predictor, request()).output_p50 == pytest.approx(100, rel=0.1)


def test_weights_stay_finite_over_long_runs() -> None:
    outputs = _Outputs()
    for _ in range(75_000):  # 0.99 ** -75,000 is more than a float can hold
        outputs.add(_bucket(50))
    for _ in range(800):
        outputs.add(_bucket(5000))
    assert outputs.quantiles == pytest.approx((5000, 5000, 5000), rel=0.1)


def test_a_prediction_of_somebody_else_teaches_nothing() -> None:
    predictor, asked = LearnedPredictor(), request(limit=100)
    before = predict(predictor, asked)
    predictor.learn(Quantiles(10, 5, 5, 5), input_tokens=10, output_tokens=1)
    predictor.learn(before, input_tokens=None, output_tokens=None)
    after = predict(predictor, asked)
    assert (after.input_tokens, after.output_p50) == (before.input_tokens, before.output_p50)


def test_tables_are_bounded_and_the_longest_idle_row_goes() -> None:
    predictor = LearnedPredictor(max_rows=3)
    for tenant in "abc":
        learn(predictor, request(tenant=tenant), 500_000, None)
    learn(predictor, request(tenant="a"), 500_000, None)
    learn(predictor, request(tenant="d"), 500_000, None)
    fresh = predict(LearnedPredictor(), request()).input_tokens
    grown = {tenant: predict(predictor, request(tenant=tenant)).input_tokens > fresh for tenant in "abcd"}
    assert grown == {"a": True, "b": False, "c": True, "d": True}


def test_the_same_calls_give_the_same_estimates() -> None:
    def run() -> list[tuple[int, int, int, int]]:
        predictor, rng, seen = LearnedPredictor(max_rows=8), random.Random(7), []
        for _ in range(300):
            asked = request(tenant=str(rng.randrange(20)), band=rng.randrange(3))
            got = learn(predictor, asked, rng.randrange(1, 100), rng.randrange(2000))
            seen.append((got.input_tokens, got.output_p50, got.output_p90, got.output_p99))
        return seen

    assert run() == run()
