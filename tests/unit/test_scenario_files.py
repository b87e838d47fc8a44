"""Scenario files: what is read, and what is told of those that cannot be."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from tidegate.cli.scenario import GatewayEstimator, load_scenario, parse_scenario, scenario_text, shipped_scenarios
from tidegate.config import ConfigError, parse_settings
from tidegate.core import Outcome
from tidegate.simulation import Record, Request
from tidegate.simulation.scenario import Kind, Length, Scenario, Slo

FILE = """\
duration: 2min
engines:
  - {profile: h100-8b, replicas: 2, seats: 32}
sources:
  - name: vip
    band: p0
    arrivals: {law: poisson, rate: 2}
    prompt_tokens: {median: 90, p99: 400}
    output_tokens: {low: 10, high: 20}
"""


def problems(text: str, **more: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_scenario(text, **more)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.errors]


def with_(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_a_small_file_is_enough() -> None:
    scenario = parse_scenario(FILE, source="/x/mine.yaml")
    assert (scenario.name, scenario.duration_s, scenario.drain_s, scenario.seed) == ("mine", 120.0, 0.0, 1)
    assert [engine.backend for engine in scenario.engines] == ["m-1", "m-2"]
    assert [(spec.name, spec.seats) for spec in scenario.policy.pools[0].backends] == [("m-1", 32), ("m-2", 32)]
    (source,) = scenario.sources
    assert (source.arrivals.kind, source.arrivals.rate, source.band) == (Kind.POISSON, 2.0, 0)
    assert (source.prompt, source.output) == (Length(1, 1_000_000, 90, 400), Length(10, 20))
    assert scenario.slo(0) == Slo(1.0, 0.05, value=8)
    assert scenario.edges[0].max_input_tokens == 8192


def test_the_policy_is_that_of_the_settings_word_for_word() -> None:
    """What is proven here may be pasted there."""
    policy = "preset: kv-guard\npolicy:\n  overtake_cap: 0.2\n  bands: {p2: {floor: 0.1, ttl: 1h}}\n"
    settings = parse_settings(policy + 'models: [{name: m, backends: [{url: "http://h:1"}]}]\n')
    mine, theirs = parse_scenario(FILE + policy).policy, settings.core_policy()
    assert (mine.bands, mine.overtake_cap, mine.discipline) == (theirs.bands, theirs.overtake_cap, theirs.discipline)
    assert mine.bands[2].floor == Fraction(1, 10)


def test_tenants_need_no_keys() -> None:
    tenants = "tenants:\n  - {name: a, weight: 3}\n  - {name: b, limits: {max_running: 2}}\n"
    found = {spec.name: spec for spec in parse_scenario(FILE + tenants).policy.tenants}
    assert found["a"].weight == 3.0
    assert found["b"].max_running == 2


def test_seeds_and_traces_come_from_the_command_line(tmp_path: Path) -> None:
    text = (
        FILE
        + "  - {name: t, band: p1, trace: t.csv, arrivals: {law: trace}, rules: [{when: {tenant: x*}, band: p0}]}\n"
    )
    (tmp_path / "t.csv").write_text("arrival_ms,prompt_tokens,output_tokens\n0,1,1\n")
    scenario = parse_scenario(text, traces=[tmp_path], seed=9)
    assert scenario.seed == 9
    assert scenario.scrape is not None
    assert scenario.scrape.seed == 9
    assert scenario.sources[1].trace == tmp_path / "t.csv"
    assert scenario.sources[1].rules[0].tenants == ("x*",)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("duration: 2min", "duraton: 2min", "1:1: duraton: unknown setting; did you mean 'duration'?"),
        ("duration: 2min", "", "duration: expected duration, it is required"),
        ("duration: 2min", "duration: -1s", "1:11: duration: expected a duration like 250ms"),
        ("duration: 2min", "duration: 2min\ndrain: never", "2:8: drain: expected a duration like"),
        ("profile: h100-8b", "profile: h100", "3:15: engines[0].profile: expected one of h100-8b"),
        ("replicas: 2", "replicas: 0", "3:34: engines[0].replicas: expected a whole number of at least 1"),
        (
            "seats: 32",
            "max_sequences: 4096",
            "engines[0].max_sequences: expected at most the token_budget (2048), got 4096",
        ),
        ("seats: 32", "kv_tokens: 8", "engines[0].kv_tokens: expected at least 16, got 8"),
        ("band: p0", "band: p9", "6:11: sources[0].band: expected a band, one of p0, p1, p2, got 'p9'"),
        ("    band: p0\n", "", "expected a `band`, or a `trace` with a column band"),
        ("name: vip", "name: p1", "sources[0].name: expected a name of its own"),
        (
            "law: poisson, rate: 2",
            "law: poison, rate: 2",
            "expected one of trace, fixed, poisson, gamma, batch, endless",
        ),
        (
            "law: poisson, rate: 2",
            "law: poisson",
            "7:5: sources[0].arrivals: expected `rate`, which the law poisson needs",
        ),
        ("law: poisson, rate: 2", "law: fixed, rate: 2, cv: 3", "arrivals.cv: expected no `cv` with the law fixed"),
        ("law: poisson, rate: 2", "law: trace", "expected a `trace` beside the law trace"),
        ("median: 90", "median: 900", "8:20: sources[0].prompt_tokens: expected low ≤ high and median ≤ p99"),
        ("median: 90, ", "", "sources[0].prompt_tokens: expected a number of tokens, {low, high}, or {median, p99}"),
        ("low: 10", "least: 10", "'least' is none of these"),
        ("    output_tokens: {low: 10, high: 20}\n", "", "expected a `trace`, or `prompt_tokens` and `output_tokens`"),
        ("name: vip", "name: vip\n    window: 5", "expected `window` only with `job: true`"),
        ("name: vip", "name: vip\n    repeat: yes", "sources[0].repeat: expected `repeat` only with the law trace"),
        ("name: vip", "name: vip\n    longest: 5", "sources[0].longest: expected `longest` only with a trace"),
        ("name: vip", "name: vip\n    max_tokens: exactly", "expected a whole number of at least 1, or `exact`"),
        ("name: vip", "name: vip\n    model: n", "sources[0].model: expected a model of `engines`, one of m, got 'n'"),
        ("name: vip", "name: vip\n    rules: [{when: {}, band: p1}]", "rules[0].when: expected at least one condition"),
        ("name: vip", "name: vip\n    trace: no.csv", "sources[0].trace: expected a file in"),
        ("engines:", "slos: {p7: {ttft: 1s}}\nengines:", "slos.p7: expected a band, one of p0, p1, p2, got 'p7'"),
        ("engines:", "claims: [p0.wait <= 1]\nengines:", "2:10: claims[0]: p0.wait: expected a figure"),
        ("engines:", "baselines: [fcfs]\nengines:", "2:13: baselines[0]: expected one of passthrough, fifo"),
        (
            "engines:",
            "scrape: {each: 1s}\nengines:",
            "2:9: scrape: expected `off`, or a mapping of every, late and spread",
        ),
        ("engines:", "scrape: {every: 0s}\nengines:", "scrape: expected every above 0"),
        ("engines:", "lengths: guessed\nengines:", "2:10: lengths: expected one of learned, known"),
        ("engines:", "preset: none\nengines:", "2:9: preset: expected one of flash-sale"),
        ("engines:", "policy: {bands: {p2: {flor: 1}}}\nengines:", "2:23: policy.bands.p2.flor: unknown setting"),
        ("engines:", "policy: {overtake_cap: 2}\nengines:", "policy.overtake_cap: expected a part from 0 to 1"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_place(old: str, new: str, told: str) -> None:
    found = problems(with_(FILE, old, new), source="s.yaml")
    assert any(told in problem and problem.startswith("s.yaml") for problem in found), found


def test_all_problems_come_at_once() -> None:
    text = with_(with_(FILE, "rate: 2", "rate: x"), "duration: 2min", "duration: 2min\npolicy: {bands: {p9: {}}}")
    assert len(problems(text)) >= 2


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"expected a file, or one of the shipped scenarios: .*flash-sale.*did you mean"
    ):
        load_scenario("flash-sales")
    with pytest.raises(ConfigError, match=r"nothing.yaml: cannot read the file"):
        load_scenario("nothing.yaml")


STORIES = ("flash-sale", "gateways", "gateways-64", "kv-pressure", "shared-platform")


@pytest.mark.parametrize("name", STORIES)
def test_the_stories_run_without_any_other_file(name: str) -> None:
    assert load_scenario(name).claims


@pytest.mark.parametrize("name", sorted(set(shipped_scenarios()) - set(STORIES)))
def test_the_research_workloads_say_which_traces_they_miss(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sources\[0\]\.trace: expected a file .*name its folder with --traces"):
        load_scenario(name)
    assert "--traces" in scenario_text(name)
    wanted = [
        line.split(": ")[1].strip()
        for line in scenario_text(name).splitlines()
        if "trace: " in line and "law" not in line
    ]
    for trace in wanted:
        (tmp_path / trace).write_text("arrival_ms,prompt_tokens,output_tokens\n0,1,1\n")
    loaded: Scenario = load_scenario(name, traces=[tmp_path])
    assert {source.trace for source in loaded.sources} == {tmp_path / trace for trace in wanted}


def test_estimates_are_learned_as_in_the_gateway() -> None:
    estimator = GatewayEstimator()
    for number in range(200):
        predicted = estimator.predict(Request(0.0, 1, "t", 100, 40))
        record = Record(number, "t", 1, "m", 0.0, 100, 40, outcome=Outcome.COMPLETED)
        if number == 0:
            assert predicted.output_tokens == 200
        estimator.learn(record)
    assert predicted.output_tokens == pytest.approx(40, abs=4)
    assert predicted.input_tokens == pytest.approx(100, abs=2)
    assert estimator.predict(Request(0.0, 1, "t", 100, 40, max_tokens=7)).output_tokens == 7
