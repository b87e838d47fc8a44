"""The band of a request: rule, header, tier, tenant; then the clamp."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.classify import Classified, Classifier, Facts, Headers, ParsedBody, Refused, Route, parse_body
from tidegate.config import key_digest, parse_settings
from tidegate.core import Reason

SETTINGS = f"""
models:
  - {{name: big, aliases: [b, gpt], backends: [{{url: "http://127.0.0.1:9"}}]}}
  - {{name: small, backends: [{{url: "http://127.0.0.1:8"}}]}}
anonymous: {{band: p1, max_band: p0}}
tenants:
  - {{name: shop, keys: ["{key_digest("shop")}"], band: p0}}
  - {{name: web, keys: ["{key_digest("web")}"], band: p1, max_band: p0}}
  - {{name: lab, keys: ["{key_digest("lab")}"], band: p2, max_band: p1}}
  - {{name: front, keys: ["{key_digest("front")}"], band: p1, max_band: p0, trusted: true}}
  - {{name: exact, keys: ["{key_digest("exact")}"], band: p2, max_band: p1, strict_bands: true}}
rules:
  - {{when: {{header: {{x-scene: [pay, "order-*"]}}}}, band: p0}}
  - {{when: {{metadata: {{session: presale, vip: "true"}}}}, band: p0}}
  - {{when: {{path: /v1/completions, tenant: web}}, band: p2}}
  - {{when: {{model: small, tenant: [web, lab]}}, band: p2}}
objectives: {{gold: p0, batch-eval: p2}}
"""
CLASSIFIER = Classifier(parse_settings(SETTINGS))


def classify(
    tenant: str = "", headers: Headers | None = None, route: Route = Route.CHAT, **fields: Any
) -> Classified | Refused:
    raw = json.dumps({"model": "big", "messages": []} | fields).encode()
    body = parse_body(raw, route)
    assert isinstance(body, ParsedBody)
    key = {b"api-key": tenant.encode()} if tenant else {}
    sent = {b"host": b"localhost"} | key | (headers or {})
    return CLASSIFIER.classify(Facts(route, route.value, sent, raw, body, "fresh-1"))


def done(*args: Any, **fields: Any) -> Classified:
    result = classify(*args, **fields)
    assert isinstance(result, Classified), result
    return result


def refused(*args: Any, **fields: Any) -> Refused:
    result = classify(*args, **fields)
    assert isinstance(result, Refused), result
    return result


@pytest.mark.parametrize(
    ("tenant", "headers", "fields", "band", "clamped"),
    [
        ("", {}, {}, 1, False),
        ("shop", {}, {}, 0, False),
        ("lab", {}, {}, 2, False),
        # header
        ("web", {b"x-tidegate-band": b"p0"}, {}, 0, False),
        ("web", {b"x-tidegate-band": b" P2 "}, {}, 2, False),
        ("lab", {b"x-tidegate-band": b"p0"}, {}, 1, True),
        ("lab", {b"x-tidegate-band": b"p1"}, {}, 1, False),
        ("shop", {b"x-tidegate-band": b"p2"}, {}, 2, False),
        # twins
        ("web", {b"x-llm-d-inference-objective": b"gold"}, {}, 0, False),
        ("web", {b"x-gateway-inference-objective": b"Batch-Eval"}, {}, 2, False),
        ("web", {b"x-gateway-inference-objective": b"p2"}, {}, 2, False),
        ("web", {b"x-smg-priority": b"interactive"}, {}, 0, False),
        ("web", {b"x-smg-priority": b"Bulk"}, {}, 2, False),
        ("web", {b"x-smg-priority": b"default"}, {}, 1, False),
        ("web", {b"x-request-priority": b"high"}, {}, 0, False),
        ("web", {b"x-request-priority": b"medium"}, {}, 1, False),
        ("lab", {b"x-request-priority": b"high"}, {}, 1, True),
        ("web", {b"x-tidegate-band": b"p2", b"x-smg-priority": b"system"}, {}, 2, False),
        # tier
        ("web", {}, {"service_tier": "priority"}, 0, False),
        ("web", {}, {"service_tier": "fast"}, 0, False),
        ("web", {}, {"service_tier": "flex"}, 2, False),
        ("lab", {}, {"service_tier": "default"}, 2, False),
        ("lab", {}, {"service_tier": "auto"}, 2, False),
        ("lab", {}, {"service_tier": "scale"}, 2, False),
        ("lab", {}, {"service_tier": "priority"}, 1, True),
        ("lab", {}, {"service_tier": None}, 2, False),
        ("web", {b"x-tidegate-band": b"p1"}, {"service_tier": "flex"}, 1, False),
        # the engine's own field gives nothing
        ("lab", {b"x-vllm-priority": b"-100"}, {"priority": -100}, 2, False),
        # rules come before all
        ("web", {b"x-scene": b"pay", b"x-tidegate-band": b"p2"}, {"service_tier": "flex"}, 0, False),
        ("web", {b"x-scene": b"order-7"}, {}, 0, False),
        ("web", {b"x-scene": b"paying"}, {}, 1, False),
        ("lab", {b"x-scene": b"pay"}, {}, 1, True),
        ("", {}, {"metadata": {"session": "presale", "vip": "true"}}, 0, False),
        ("", {}, {"metadata": {"session": "presale", "vip": True}}, 0, False),
        ("", {}, {"metadata": {"session": "presale"}}, 1, False),
        ("", {}, {"metadata": {"session": ["presale"], "vip": {}}}, 1, False),
        ("", {}, {"metadata": "presale"}, 1, False),
        ("", {}, {"metadata": None}, 1, False),
        ("web", {}, {"model": "small"}, 2, False),
        ("", {}, {"model": "small"}, 1, False),
    ],
)
def test_bands(tenant: str, headers: Headers, fields: dict[str, Any], band: int, clamped: bool) -> None:
    result = done(tenant, headers, **fields)
    assert (result.band, result.band_name, result.clamped) == (band, f"p{band}", clamped)


def test_rules_match_paths_and_tenants() -> None:
    assert done("web", route=Route.COMPLETIONS).band == 2
    assert done("", route=Route.COMPLETIONS).band == 1


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({b"x-tidegate-band": b"p0"}, {}),
        ({b"x-smg-priority": b"system"}, {}),
        ({b"x-scene": b"pay"}, {}),
        ({}, {"service_tier": "priority"}),
    ],
)
def test_strict_bands_refuse_instead_of_clamping(headers: Headers, fields: dict[str, Any]) -> None:
    answer = refused("exact", headers, **fields)
    assert answer.reason is Reason.FORBIDDEN_BAND
    assert "p1" in answer.detail
    assert "p0" in answer.detail
    assert done("exact", {b"x-tidegate-band": b"p1"}).band == 1


@pytest.mark.parametrize(
    ("headers", "fields", "param", "allowed"),
    [
        ({b"x-tidegate-band": b"p9"}, {}, "x-tidegate-band", "p0, p1, p2"),
        ({b"x-tidegate-band": b""}, {}, "x-tidegate-band", "p0, p1, p2"),
        ({b"x-tidegate-band": b"\xff"}, {}, "x-tidegate-band", "p0, p1, p2"),
        ({b"x-llm-d-inference-objective": b"silver"}, {}, "x-llm-d-inference-objective", "gold, batch-eval"),
        ({b"x-smg-priority": b"urgent!"}, {}, "x-smg-priority", "system, interactive"),
        ({b"x-request-priority": b"7"}, {}, "x-request-priority", "high"),
        ({}, {"service_tier": "platinum"}, "service_tier", "priority, fast, default, auto, scale, flex"),
    ],
)
def test_unknown_words_are_refused_with_what_is_allowed(
    headers: Headers, fields: dict[str, Any], param: str, allowed: str
) -> None:
    answer = refused("web", headers, **fields)
    assert (answer.reason, answer.param) == (Reason.BAD_REQUEST, param)
    assert allowed in answer.detail


@pytest.mark.parametrize(
    ("tenant", "tier", "used"),
    [
        ("web", "priority", "priority"),
        ("lab", "priority", "default"),
        ("lab", "auto", "flex"),
        ("web", "flex", "flex"),
        ("shop", "default", "priority"),
        ("shop", None, None),
    ],
)
def test_the_tier_really_used_is_told_when_one_was_asked(tenant: str, tier: str | None, used: str | None) -> None:
    assert done(tenant, service_tier=tier).tier == used


@pytest.mark.parametrize(
    ("model", "pool", "upstream"),
    [("big", "big", None), ("b", "big", "big"), ("gpt", "big", "big"), ("small", "small", None)],
)
def test_models_and_aliases_give_the_pool(model: str, pool: str, upstream: str | None) -> None:
    result = done("shop", model=model)
    assert (result.model, result.pool, result.upstream_model) == (model, pool, upstream)


@pytest.mark.parametrize(("model", "reason"), [("nope", Reason.UNKNOWN_MODEL), ("", Reason.BAD_REQUEST)])
def test_unknown_models_are_refused_with_those_that_exist(model: str, reason: Reason) -> None:
    answer = refused("shop", model=model)
    assert (answer.reason, answer.param) == (reason, "model")
    assert "big, small" in answer.detail


def test_many_models_are_not_all_listed() -> None:
    rows = ", ".join(f'{{name: m{i}, backends: [{{url: "http://127.0.0.1:{i + 1}"}}]}}' for i in range(30))
    many = Classifier(parse_settings(f"models: [{rows}]"))
    body = parse_body(b'{"model":"x"}', Route.OTHER)
    assert isinstance(body, ParsedBody)
    answer = many.classify(Facts(Route.OTHER, "/", {b"host": b"localhost"}, b"", body, "f"))
    assert isinstance(answer, Refused)
    assert "m19 and 10 more" in answer.detail


def test_a_wildcard_takes_any_model_as_it_is() -> None:
    wild = Classifier(parse_settings('models: [{name: "*", backends: [{url: "http://127.0.0.1:9"}]}]'))
    for raw, name in ((b'{"model":"any"}', "any"), (b"{}", "")):
        body = parse_body(raw, Route.OTHER)
        assert isinstance(body, ParsedBody)
        result = wild.classify(Facts(Route.OTHER, "/", {b"host": b"localhost"}, raw, body, "f"))
        assert isinstance(result, Classified)
        assert (result.model, result.pool, result.upstream_model) == (name, "default", None)


def test_with_one_model_its_name_may_be_left_out() -> None:
    one = Classifier(parse_settings('models: [{name: solo, backends: [{url: "http://127.0.0.1:9"}]}]'))
    body = parse_body(b"{}", Route.OTHER)
    assert isinstance(body, ParsedBody)
    result = one.classify(Facts(Route.OTHER, "/", {b"host": b"localhost"}, b"{}", body, "f"))
    assert isinstance(result, Classified)
    assert (result.pool, result.upstream_model) == ("solo", "solo")


@pytest.mark.parametrize(("value", "key"), [(None, ""), (b"again-7", "again-7"), (b"k" * 300, "k" * 255)])
def test_a_repetition_is_known_by_its_key(value: bytes | None, key: str) -> None:
    headers = {} if value is None else {b"idempotency-key": value}
    assert done("shop", headers).idempotency_key == key


def test_strangers_learn_no_names() -> None:
    answer = refused("wrong", {b"x-tidegate-band": b"p9"}, model="nope")
    assert answer.reason is Reason.UNAUTHORIZED
    assert "big" not in answer.detail


def test_long_prompts_run_one_band_lower_and_are_refused_in_strict_bands() -> None:
    words = "word " * 12_000
    long = done("shop", messages=[{"role": "user", "content": words}])
    assert (long.band, long.demoted, long.clamped, long.max_output_tokens) == (1, True, False, None)
    short = done("shop")
    assert (short.band, short.demoted, short.max_output_tokens) == (0, False, 512)
    strict = Classifier(parse_settings(SETTINGS.replace("name: shop,", "name: shop, strict_bands: true,")))
    raw = json.dumps({"model": "big", "messages": words}).encode()
    body = parse_body(raw, Route.CHAT)
    assert isinstance(body, ParsedBody)
    facts = Facts(Route.CHAT, "/", {b"host": b"localhost", b"api-key": b"shop"}, raw, body, "f")
    answer = strict.classify(facts)
    assert isinstance(answer, Refused)
    assert answer.reason is Reason.TOO_LARGE
    assert "8192" in answer.detail


def test_the_work_is_capped_by_the_least_limit() -> None:
    assert done("shop", max_tokens=40).work.output_tokens == 40
    assert done("lab", max_tokens=100_000).work.output_tokens < 100_000
    assert done("shop", n=3, max_tokens=10).work.output_tokens == 30


def test_an_identified_tenant_is_not_looked_up_again() -> None:
    headers = {b"host": b"localhost", b"api-key": b"lab"}
    tenant = CLASSIFIER.identify(headers)
    assert not isinstance(tenant, Refused)
    raw = b'{"model":"big"}'
    body = parse_body(raw, Route.OTHER)
    assert isinstance(body, ParsedBody)
    result = CLASSIFIER.classify(Facts(Route.OTHER, "/", {}, raw, body, "f", tenant))
    assert isinstance(result, Classified)
    assert result.tenant.name == "lab"


def test_learning_moves_the_next_estimate() -> None:
    classifier = Classifier(parse_settings(SETTINGS))
    raw = b'{"model":"big","messages":"' + b"word " * 200 + b'"}'
    body = parse_body(raw, Route.CHAT)
    assert isinstance(body, ParsedBody)
    facts = Facts(Route.CHAT, "/", {b"host": b"localhost", b"api-key": b"lab"}, raw, body, "f")
    first = classifier.classify(facts)
    assert isinstance(first, Classified)
    classifier.learn(first, input_tokens=first.work.input_tokens * 2, output_tokens=7)
    second = classifier.classify(facts)
    assert isinstance(second, Classified)
    assert second.work.input_tokens > first.work.input_tokens
    assert second.work.output_tokens == pytest.approx(7, abs=1)
