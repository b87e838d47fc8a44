"""Settings of capacity, safety and control: what they become, and how they are refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tidegate.config import BackendSettings, Role, Settings, key_digest, parse_settings
from unit.test_config_errors import only, problems_of

TOKEN, KEY = key_digest("token"), key_digest("key")


def backend_of(row: str, more: str = "") -> BackendSettings:
    (backend,) = parse_settings(f"models: [{{name: m, backends: [{{{row}}}]}}]\n{more}").models[0].backends
    return backend


def settings_of(more: str) -> Settings:
    return parse_settings("models: [{name: m, backends: [{url: http://a:1}]}]\n" + more)


def test_a_backend_with_everything() -> None:
    backend = backend_of(
        "url: 'https://gpu.internal:8000', engine: llamacpp, seats: auto, stale_after: 2s, poll_every: 250ms, "
        "kv_tokens: 32768, budget: {tokens_per_minute: 300_000}, metrics_url: 'http://gpu.internal:9/m?x=1'"
    )
    assert (backend.name, backend.seats, backend.kv_tokens) == ("gpu.internal:8000", "auto", 32_768)
    assert (backend.stale_after, backend.poll_every) == (2.0, 0.25)
    assert backend.metrics_url == "http://gpu.internal:9/m?x=1"
    assert (backend.budget.tokens_per_minute, backend.budget.requests_per_minute) == (300_000, None)


@pytest.mark.parametrize(
    ("row", "metrics_url"),
    [
        ("url: 'http://a:1/', engine: vllm", "http://a:1/metrics"),
        ("url: 'http://a:1', engine: llamacpp", "http://a:1/metrics"),
        ("url: 'http://a:1', engine: vllm, metrics_url: off", ""),
        ("url: 'http://a:1', engine: vllm, metrics_url: ", "http://a:1/metrics"),
        ("url: 'http://a:1', engine: openai", ""),
        ("url: 'http://a:1'", ""),
    ],
)
def test_where_the_metrics_of_an_engine_are(row: str, metrics_url: str) -> None:
    assert backend_of(row).metrics_url == metrics_url


def test_the_core_gets_what_a_backend_can_do() -> None:
    settings = parse_settings(
        "models: [{name: m, backends: [{name: b, url: http://a:1, seats: auto, stale_after: 9, kv_tokens: 5, "
        "budget: {tokens_per_minute: 2, requests_per_minute: 3}}]}]"
    )
    (spec,) = settings.core_policy().pools[0].backends
    assert (spec.seats, spec.stale_after_s, spec.kv_tokens) == ("auto", 9.0, 5)
    assert (spec.tokens_per_minute, spec.requests_per_minute) == (2, 3)


def test_the_core_gets_what_a_band_is_stopped_by() -> None:
    text = "policy: {bands: {p1: {kv_watermark: 0.1, kv_resume: , when_saturated: shed, reserve: 3, tpot_slo: 70ms}}}"
    settings = settings_of(text)
    band = settings.core_policy().bands[1]
    assert settings.policy.bands["p1"].kv_watermark == Fraction(1, 10)
    assert (band.kv_watermark, band.kv_resume, band.when_saturated) == (0.1, 0.1, "shed")
    assert (band.reserve, band.tpot_slo_s) == (3, 0.07)


def test_the_gateways_limits_and_certificates() -> None:
    gateway = settings_of(
        "gateway: {silence_timeout: 5s, max_headers: 8KiB, header_timeout: 3s, body_timeout: 4s, "
        "write_stall_timeout: 6s, tls: {cert: a.pem, key: b.pem}}"
    ).gateway
    assert (gateway.silence_timeout, gateway.write_stall_timeout) == (5.0, 6.0)
    assert (gateway.max_headers, gateway.header_timeout, gateway.body_timeout) == (8192, 3.0, 4.0)
    assert gateway.tls is not None
    assert (gateway.tls.cert, gateway.tls.key) == ("a.pem", "b.pem")


def test_operators_open_the_control_port() -> None:
    control = settings_of(
        f"control: {{listen: '0.0.0.0:1', audit_file: audit.jsonl, operators: [{{name: duty, role: operator, "
        f"token: '{TOKEN}'}}, {{name: wall, token: '{KEY}'}}]}}"
    ).control
    assert [(row.name, row.role) for row in control.operators] == [("duty", Role.OPERATOR), ("wall", Role.VIEWER)]
    assert control.audit_file == "audit.jsonl"
    assert TOKEN not in repr(control)


@pytest.mark.parametrize(
    ("row", "path", "expected", "came"),
    [
        ("seats: atuo", "seats", "expected a whole number of at least 1, or `auto`", "'atuo'"),
        ("seats: 0", "seats", "expected a whole number of at least 1, or `auto`", "'0'"),
        ("budget: {tokens_per_minute: 0}", "budget.tokens_per_minute", "expected a whole number of at least 1", "'0'"),
        ("budget: {rpm: 1}", "budget.rpm", "unknown setting; models[0].backends[0].budget takes tokens_per_minute, "
         "requests_per_minute", ""),
        ("metrics_url: nowhere", "metrics_url", "expected a URL, like http://10.0.0.1:8000/metrics", "'nowhere'"),
        ("metrics_url: 'http://u:p@h/'", "metrics_url", "expected a URL without a user or password",
         "a value that is not shown"),
        ("metrics_url: 'http://h/#x'", "metrics_url", "expected a URL of printable ASCII without a fragment",
         "'http://h/#x'"),
        ("metrics_url: 'http://h/m'", "metrics_url",
         "expected no metrics_url: engine openai shows no metrics; say which engine it is", "'http://h/m'"),
        ("stale_after: 0", "stale_after", "expected a duration above 0", "'0'"),
        ("engine: vllm, stale_after: 500ms", "stale_after", "expected more than poll_every (0.5 s)", "'500ms'"),
        ("kv_tokens: none", "kv_tokens", "expected a whole number of at least 1", "'none'"),
    ],
)  # fmt: skip
def test_each_wrong_setting_of_a_backend_is_named(row: str, path: str, expected: str, came: str) -> None:
    problem = only(f"models:\n- name: m\n  backends:\n  - url: http://a:1\n    seats: 8\n- name: n\n  backends:\n  - "
                   f"{{url: http://b:1, {row}}}\n")  # fmt: skip
    assert (problem.line, problem.path) == (8, f"models[1].backends[0].{path}")
    assert problem.expected == expected.replace("models[0]", "models[1]")
    assert problem.came == came


@pytest.mark.parametrize(
    ("more", "line", "path", "expected", "came"),
    [
        ("policy:\n  bands:\n    p1: {kv_watermark: 2}", 4, "policy.bands.p1.kv_watermark",
         "expected a part from 0 to 1, like 0.05", "'2'"),
        ("policy:\n  bands:\n    p1: {kv_watermark: 0.5}", 4, "policy.bands.p1.kv_watermark",
         "expected parts with 0 <= kv_watermark <= kv_resume < 1, got 0.5 and 0.12", ""),
        ("policy:\n  bands:\n    p1: {when_saturated: sched}", 4, "policy.bands.p1.when_saturated",
         "expected one of queue, shed", "'sched'"),
        ("policy:\n  bands:\n    p1: {reserve: atuo}", 4, "policy.bands.p1.reserve",
         "expected a whole number of at least 0, or `auto`", "'atuo'"),
        ("policy:\n  bands:\n    p2: {reserve: auto}", 4, "policy.bands.p2.reserve",
         "expected 0, no band is below the lowest", "'auto'"),
        ("policy:\n  bands:\n    p1: {tpot_slo: 0}", 4, "policy.bands.p1.tpot_slo", "expected a duration above 0",
         "'0'"),
        ("policy:\n  bands:\n    p1: {shed_answer: erorr}", 4, "policy.bands.p1.shed_answer",
         "expected one of error, fallback, or {model: NAME}", "'erorr'"),
        ("gateway:\n  silence_timeout: 0", 3, "gateway.silence_timeout", "expected a duration above 0", "'0'"),
        ("gateway:\n  max_headers: 0", 3, "gateway.max_headers", "expected a size of at least 1 byte", "'0'"),
        ("gateway:\n  header_timeout: no", 3, "gateway.header_timeout",
         "expected a duration like 250ms, 15s, 30min or 24h (a bare number is seconds)", "'no'"),
        ("gateway:\n  tls: {cert: a}", 3, "gateway.tls.key", "expected key, it is required", ""),
        ("control:\n  listen: 0.0.0.0:1", 3, "control.listen",
         "expected a loopback address, or operators: without them nobody is asked for a token", "'0.0.0.0:1'"),
        (f"control:\n  operators:\n  - {{name: a, token: '{TOKEN}'}}\n  - {{name: a, token: '{KEY}'}}", 5,
         "control.operators[1].name", "expected a name of its own, control.operators[0].name has it", "'a'"),
        (f"control:\n  operators:\n  - {{name: a, token: '{TOKEN}'}}\n  - {{name: b, token: '{TOKEN}'}}", 5,
         "control.operators[1].token", "expected a name of its own, control.operators[0].token has it", None),
        (f"control:\n  operators:\n  - {{name: a, role: boss, token: '{TOKEN}'}}", 4, "control.operators[0].role",
         "expected one of viewer, operator", "'boss'"),
        (f"control:\n  operators:\n  - {{name: a, token: '{KEY}'}}\ntenants: [{{name: t, keys: ['{KEY}']}}]", 4,
         "control.operators[0].token",
         "expected a token of its own: a tenant has this key, and its callers would be operators", ""),
    ],
)  # fmt: skip
def test_each_wrong_setting_is_named(more: str, line: int, path: str, expected: str, came: str | None) -> None:
    problem = only("models: [{name: m, backends: [{url: http://a:1, seats: 8}]}]\n" + more)
    assert (problem.line, problem.path, problem.expected) == (line, path, expected)
    assert came is None or problem.came == came


def test_a_token_itself_is_refused_and_not_shown() -> None:
    (problem,) = problems_of("models: [{name: m, backends: [{url: http://a}]}]\n"
                             "control: {operators: [{name: a, token: hunter2}]}")  # fmt: skip
    assert problem.expected.startswith("expected a digest")
    assert "hunter2" not in str(problem)
