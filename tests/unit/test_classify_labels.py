"""Names, dependencies, fairness ids, times and languages from headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.classify import Classified, Classifier, Facts, Headers, ParsedBody, Refused, Route, Tenant, language
from tidegate.classify.labels import (
    dependencies,
    fairness_id,
    parse_ttl,
    request_name,
    time_limits,
)
from tidegate.config import parse_settings
from tidegate.core import Reason

TRUSTED = Tenant("front", 1, 0, trusted=True)
PLAIN = Tenant("web", 1, 0)
CLASSIFIER = Classifier(parse_settings("models: [{name: m, backends: [{url: 'http://127.0.0.1:9'}]}]"))


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"a", "a"),
        (b"req_1.2:3-4", "req_1.2:3-4"),
        (b"x" * 128, "x" * 128),
        (b"x" * 129, "fresh"),
        (b"", "fresh"),
        (b"a b", "fresh"),
        (b"a/b", "fresh"),
        (b"a\n", "fresh"),
        (b"\xe4", "fresh"),
        (None, "fresh"),
    ],
)
def test_request_names(value: bytes | None, name: str) -> None:
    headers = {} if value is None else {b"x-request-id": value}
    assert (request_name(headers) or "fresh") == name


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, ()),
        (b"a", ("a",)),
        (b"a, b ,c", ("a", "b", "c")),
        (b"a,b,a", ("a", "b")),
        (b"other/a, batch_12", ("other/a", "batch_12")),
    ],
)
def test_dependencies(value: bytes | None, names: tuple[str, ...]) -> None:
    assert dependencies({} if value is None else {b"x-tidegate-depends-on": value}) == names


@pytest.mark.parametrize("value", [b"", b"a,,b", b"a b", b"a/b/c", b"/a", b"x" * 129, b",".join([b"a"] * 65)])
def test_bad_dependencies_are_refused(value: bytes) -> None:
    refused = dependencies({b"x-tidegate-depends-on": value})
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.param) == (Reason.BAD_REQUEST, "x-tidegate-depends-on")


@pytest.mark.parametrize(
    ("tenant", "headers", "flow"),
    [
        (PLAIN, {}, "web"),
        (PLAIN, {b"x-tidegate-fairness-id": b"u1"}, "web"),
        (TRUSTED, {}, "front"),
        (TRUSTED, {b"x-tidegate-fairness-id": b"u1"}, "u1"),
        (TRUSTED, {b"x-llm-d-inference-fairness-id": b"u2"}, "u2"),
        (TRUSTED, {b"x-gateway-inference-fairness-id": b" u3 "}, "u3"),
        (TRUSTED, {b"x-tidegate-fairness-id": b"", b"x-gateway-inference-fairness-id": b"u3"}, "u3"),
        (TRUSTED, {b"x-tidegate-fairness-id": b"  "}, "front"),
        (TRUSTED, {b"x-tidegate-fairness-id": b"x" * 500}, "x" * 128),
    ],
)
def test_only_a_trusted_tenant_names_its_flows(tenant: Tenant, headers: Headers, flow: str) -> None:
    assert fairness_id(headers, tenant) == flow


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"250ms", 0.25),
        (b"15s", 15),
        (b"15", 15),
        (b"1.5", 1.5),
        (b"30min", 1800),
        (b"24h", 86400),
        (b"7d", 604800),
        (b" 2s ", 2),
        (b"600.0", 600),
        (b"0", 0),
        (b"-3", -3),
        (b"-250ms", -0.25),
        (b"", None),
        (b"soon", None),
        (b"nan", None),
        (b"inf", None),
        (b"1e3", None),
        (b"5 parsecs", None),
        (b"9999999999999", None),
        (b"--1", None),
        (b"\xb2s", None),
        ("٣s".encode(), None),
    ],
)
def test_times(value: bytes, seconds: float | None) -> None:
    assert parse_ttl(value) == seconds


@pytest.mark.parametrize(
    ("headers", "limits"),
    [
        ({}, (None, None)),
        ({b"x-tidegate-ttl": b"5s"}, (5, None)),
        ({b"x-llm-d-inference-ttl": b"5"}, (5, None)),
        ({b"x-tidegate-ttl": b"9s", b"x-llm-d-inference-ttl": b"5"}, (5, None)),
        ({b"x-stainless-read-timeout": b"600"}, (600, 600)),
        ({b"x-stainless-read-timeout": b"600", b"x-tidegate-ttl": b"5"}, (5, 600)),
        ({b"x-stainless-read-timeout": b"3", b"x-tidegate-ttl": b"5"}, (3, 3)),
        ({b"x-stainless-read-timeout": b"NOT_GIVEN"}, (None, None)),
    ],
)
def test_time_limits(headers: Headers, limits: tuple[float | None, float | None]) -> None:
    assert time_limits(headers) == limits


@pytest.mark.parametrize("name", [b"x-tidegate-ttl", b"x-llm-d-inference-ttl"])
def test_a_silly_time_is_refused_with_what_is_allowed(name: bytes) -> None:
    refused = time_limits({name: b"later"})
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.param) == (Reason.BAD_REQUEST, name.decode())
    assert "250ms, 15s, 30min or 24h" in refused.detail


@pytest.mark.parametrize("value", [b"0", b"0ms", b"-1s"])
def test_a_time_already_past_is_a_timeout(value: bytes) -> None:
    refused = time_limits({b"x-tidegate-ttl": value})
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.EXPIRED


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, "en"),
        (b"", "en"),
        (b"zh", "zh"),
        (b"zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (b"en-US,en;q=0.9,zh;q=0.5", "en"),
        (b"ZH-Hans", "zh"),
        (b"de, zh;q=0.1", "zh"),
        (b"en;q=0.1, zh;q=0.2", "zh"),
        (b"zh, en", "zh"),
        (b"en, zh", "en"),
        (b"zh;q=0", "en"),
        (b"zh;q=x", "en"),
        (b"fr", "en"),
        (b"xzh", "en"),
    ],
)
def test_languages(value: bytes | None, wanted: str) -> None:
    assert language({} if value is None else {b"accept-language": value}) == wanted


@given(st.binary(max_size=60))
def test_random_values_never_raise(value: bytes) -> None:
    assert language({b"accept-language": value}) in ("zh", "en")
    assert language({b"accept-language": b"zh;q=" + value}) in ("zh", "en")
    assert parse_ttl(value) is None or isinstance(parse_ttl(value), float)
    assert isinstance(dependencies({b"x-tidegate-depends-on": value}), tuple | Refused)
    assert isinstance(fairness_id({b"x-tidegate-fairness-id": value}, TRUSTED), str)
    assert isinstance(request_name({b"x-request-id": value}), str)


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        (b"x-request-id", b"mine", "request_id", "mine"),
        (b"x-tidegate-fairness-id", b"team", "flow", "team"),
        (b"x-llm-d-inference-fairness-id", b"team", "flow", "team"),
        (b"x-gateway-inference-fairness-id", b"team", "flow", "team"),
        (b"x-tidegate-ttl", b"5s", "ttl_s", 5.0),
        (b"x-llm-d-inference-ttl", b"5s", "ttl_s", 5.0),
        (b"x-stainless-read-timeout", b"9", "deadline_s", 9.0),
        (b"x-tidegate-depends-on", b"a", "depends_on", ("a",)),
        (b"accept-language", b"zh-CN", "language", "zh"),
        (b"idempotency-key", b"k", "idempotency_key", "k"),
    ],
)
def test_each_label_is_read_where_it_stands_alone(name: bytes, value: bytes, field: str, expected: object) -> None:
    tenant, body = Tenant("acme", 1, 0, trusted=True), ParsedBody("m")
    headers = {b"host": b"h"}
    plain = CLASSIFIER.classify(Facts(Route.OTHER, "/v1/x", headers, b"", body, "fresh", tenant))
    said = CLASSIFIER.classify(Facts(Route.OTHER, "/v1/x", headers | {name: value}, b"", body, "fresh", tenant))
    assert isinstance(plain, Classified)
    assert isinstance(said, Classified)
    assert (plain.request_id, plain.flow, plain.language) == ("fresh", "acme", "en")
    assert getattr(said, field) == expected
    assert getattr(plain, field) != expected
