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
    ],
)
def test_each_doubtful_setting_gets_one_warning(extra: str, path: str, words: str) -> None:
    ((found, text),) = advice(parse_settings(MODELS + extra))
    assert found == path
    assert words in text
