"""What is allowed and probably not meant is said."""

from __future__ import annotations

import pytest

from tidegate.config import advice, parse_settings

MODELS = "models: [{name: m, backends: [{url: http://a, seats: 10}]}]\n"


def test_the_default_policy_needs_no_advice() -> None:
    assert advice(parse_settings(MODELS)) == []


@pytest.mark.parametrize(
    ("extra", "path", "words"),
    [
        ("gateway: {listen: '0.0.0.0:1'}", "tenants", "nobody can call"),
        ("policy: {bands: {p2: {promote_after: 24h}}}", "policy.bands.p2.promote_after", "no ticket gets so old"),
        ("policy: {bands: {p0: {promote_after: 1s}}}", "policy.bands.p0.promote_after", "no band is higher"),
        ("policy: {bands: {p0: {message: {en: Wait.}}}}", "policy.bands.p0.message", "is never sent"),
        ("policy: {bands: {p0: {when_saturated: shed}}}", "policy.bands.p0.when_saturated", "there is no kv_watermark"),
        ("policy: {bands: {p1: {when_saturated: shed}}}", "policy.bands.p1.when_saturated", "no backend shows its KV"),
    ],
)
def test_each_doubtful_setting_gets_one_warning(extra: str, path: str, words: str) -> None:
    ((found, text),) = advice(parse_settings(MODELS + extra))
    assert found == path
    assert words in text


@pytest.mark.parametrize(
    ("row", "path", "words"),
    [
        ("url: http://a, seats: auto", "models[0].backends[0].seats", "sees no metrics"),
        (
            "url: http://a, seats: auto, engine: vllm, metrics_url: off",
            "models[0].backends[0].seats",
            "sees no metrics",
        ),
        ("url: https://a, tls: {verify: false}", "models[0].backends[0].tls.verify", "can read and change"),
    ],
)
def test_each_doubtful_backend_gets_one_warning(row: str, path: str, words: str) -> None:
    ((found, text),) = advice(parse_settings(f"models: [{{name: m, backends: [{{{row}}}]}}]"))
    assert found == path
    assert words in text


@pytest.mark.parametrize(
    "row", ["engine: vllm", "engine: llamacpp, kv_tokens: 8192", "engine: vllm, metrics_url: off, kv_tokens: 8192"]
)
def test_a_band_that_sheds_at_a_watermark_needs_a_backend_whose_cache_is_known(row: str) -> None:
    text = f"models: [{{name: m, backends: [{{url: http://a, {row}}}]}}]\npreset: kv-guard"
    assert advice(parse_settings(text)) == []
