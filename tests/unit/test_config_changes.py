"""Changes while the gateway runs: the file's form out and in again, judged whole."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from tidegate.config import (
    ConfigError,
    Settings,
    backends_document,
    differences,
    document,
    needs_restart,
    parse_settings,
    patch_policy,
    preset_names,
    replace_backends,
    replace_policy,
)

TEXT = """
gateway: {listen: "127.0.0.1:8400"}
models:
  - name: m
    backends:
      - {name: a, url: "http://a:1", engine: vllm, seats: 8, api_key: "hunter2"}
      - {name: b, url: "http://b:1", engine: vllm, seats: auto, metrics_url: off}
  - {name: n, backends: [{name: c, url: "http://c:1", seats: 8}]}
modes: {night: {policy: {bands: {p2: {ceiling: 0.5}}}}}
"""


def settings(preset: str = "flash-sale") -> Settings:
    return parse_settings(f"{TEXT}preset: {preset}\n")


def through_json(value: object) -> Any:
    return json.loads(json.dumps(value))


def problems(call: Any, *arguments: object) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return [(problem.path, problem.expected) for problem in caught.value.errors]


@pytest.mark.parametrize("preset", preset_names())
def test_a_policy_comes_back_as_it_was_written(preset: str) -> None:
    before = settings(preset)
    written = through_json(document(before.policy))
    assert replace_policy(before, written).policy == before.policy
    assert (written["bands"]["p0"]["ttl"], written["bands"]["p0"]["reserve"]) == ("10s", "auto")
    assert written["overtake_cap"] == 0.15


def test_what_no_decimal_is_exact_for_is_written_as_a_fraction() -> None:
    before = parse_settings(TEXT + "policy: {bands: {p2: {ceiling: 1/3, ttl: 0.0001}}}")
    written = through_json(document(before.policy))
    assert (written["bands"]["p2"]["ceiling"], written["bands"]["p2"]["ttl"]) == ("1/3", "0.0001s")
    assert replace_policy(before, written).policy.bands["p2"].ceiling == Fraction(1, 3)


def test_a_patch_changes_only_what_it_names() -> None:
    before = settings()
    after = patch_policy(before, {"bands": {"p2": {"ceiling": 0.5, "promote_after": None}}})
    assert after.policy.bands["p2"].ceiling == Fraction(1, 2)
    assert after.policy.bands["p2"].promote_after is None
    assert differences(before, after) == [
        ("policy.bands.p2.promote_after", "30min", None),
        ("policy.bands.p2.ceiling", 1, 0.5),
    ]


@pytest.mark.parametrize(
    ("patch", "path", "expected"),
    [
        ({"bands": {"p2": {"ceiling": 5}}}, "policy.bands.p2.ceiling", "expected a part from 0 to 1"),
        ({"bands": {"p2": {"ttl": None}}}, "policy.bands.p2.ttl", "expected a duration"),
        ({"bands": {"p2": {"cieling": 1}}}, "policy.bands.p2.cieling", "unknown setting"),
        ({"bands": {"p0": {"reserve": 9}}}, "policy.bands.p0.reserve", "expected at most 7"),
        ({"overtake_cap": 0}, "policy.overtake_cap", "expected at least the sum of the floors"),
        ({"max_flows": True}, "policy.max_flows", "expected a whole number"),
        ({"max_flows": [1]}, "policy.max_flows", "expected a whole number"),
        ([1], "policy", "expected a mapping"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused_with_the_setting_named(patch: Any, path: str, expected: str) -> None:
    ((found, words),) = problems(patch_policy, settings(), patch)
    assert found == path
    assert words.startswith(expected)


def test_an_empty_section_of_a_patch_changes_nothing() -> None:
    assert patch_policy(settings(), {"bands": {"p2": None}}).policy == settings().policy


def test_another_set_of_bands_needs_a_restart() -> None:
    after = patch_policy(settings(), {"bands": {"p3": {"floor": 0}}})
    assert needs_restart(settings(), after) == ["policy.bands"]


def test_a_whole_policy_must_be_whole() -> None:
    written = document(settings().policy)
    del written["unit"], written["bands"]["p1"]["ttl"]
    assert problems(replace_policy, settings(), written) == [
        ("policy.unit", "expected the whole policy, this is missing"),
        ("policy.bands.p1.ttl", "expected the whole policy, this is missing"),
    ]
    assert problems(replace_policy, settings(), 7) == [("policy", "expected a mapping")]


def test_backends_are_written_without_credentials_and_come_back() -> None:
    before = settings()
    written = through_json(backends_document(before))
    assert "hunter2" not in json.dumps(written)
    assert [row["metrics_url"] for row in written["models"][0]["backends"]] == ["http://a:1/metrics", "off"]
    assert replace_backends(before, written) == before


def test_backends_are_added_changed_and_taken_away() -> None:
    before = settings()
    rows = [{"name": "a", "url": "http://a:1", "seats": 4}, {"url": "http://new.example:9", "engine": "sglang"}]
    after = replace_backends(before, {"models": [{"name": "m", "backends": rows}]})
    first, second = after.models[0].backends
    assert (first.seats, second.name, second.metrics_url) == (4, "new.example:9", "http://new.example:9/metrics")
    assert after.models[1] == before.models[1]
    found = {path.removeprefix("models.m.backends."): (old, new) for path, old, new in differences(before, after)}
    assert found["a.seats"] == (8, 4)
    assert (found["b"][0]["url"], found["b"][1]) == ("http://b:1", None)
    assert (found["new.example:9"][0], found["new.example:9"][1]["engine"]) == (None, "sglang")
    assert "a" not in found
    assert "hunter2" not in json.dumps(found)


def test_backends_in_another_order_differ_as_a_whole() -> None:
    before = settings()
    rows = through_json(backends_document(before))["models"][0]["backends"]
    after = replace_backends(before, {"models": [{"name": "m", "backends": rows[::-1]}]})
    ((path, old, new),) = differences(before, after)
    assert (path, old) == ("models.m.backends", new[::-1])


def test_a_credential_stays_with_its_url() -> None:
    def key(url: str) -> str | None:
        row = {"name": "a", "url": url}
        found = replace_backends(settings(), {"models": [{"name": "m", "backends": [row]}]}).models[0].backends[0]
        return found.api_key.get_secret_value() if found.api_key else None

    assert key("http://a:1") == "hunter2"
    assert key("http://elsewhere:1") is None


def test_the_environment_is_not_read_for_a_request() -> None:
    row = {"url": "http://a:1", "api_key": "${HOME}"}
    backend = replace_backends(settings(), {"models": [{"name": "m", "backends": [row]}]}).models[0].backends[0]
    assert backend.api_key is not None
    assert backend.api_key.get_secret_value() == "${HOME}"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], ""),
        ({"models": {}}, ""),
        ({"models": [], "more": 1}, ""),
        ({"models": [7]}, "models[0]"),
        ({"models": [{"name": ["m"], "backends": []}]}, "models[0].name"),
        ({"models": [{"name": "k", "backends": []}]}, "models[0].name"),
        ({"models": [{"name": "m", "backends": []}]}, "models[0].backends"),
        ({"models": [{"name": "m", "backends": 5}]}, "models[0].backends"),
        ({"models": [{"name": "m", "backends": [{"url": "x"}]}]}, "models[0].backends[0].url"),
        ({"models": [{"name": "m", "backends": [{"url": "http://c:1", "name": "c"}]}]}, "models[1].backends[0].name"),
        (
            {"models": [{"name": "m", "backends": [{"url": "http://x", "tls": {"verify": False}}]}]},
            "models[0].backends[0].tls",
        ),
    ],
)
def test_wrong_backends_are_refused_with_the_place_named(value: object, path: str) -> None:
    assert [found for found, _ in problems(replace_backends, settings(), value)] == [path]


def test_what_needs_a_restart_is_named() -> None:
    before = settings()
    after = parse_settings(TEXT.replace("8400", "8500") + "control: {audit_file: x}\n")
    assert needs_restart(before, after) == ["gateway.listen", "control.audit_file"]
    assert differences(before, after) == [
        ("gateway.listen", "127.0.0.1:8400", "127.0.0.1:8500"),
        ("control.audit_file", None, "x"),
    ]
    assert needs_restart(before, before) == []
