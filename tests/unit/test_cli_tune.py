"""``tidegate tune``: it finds better policies, keeps its guarantees, and prints what ``tidegate check`` accepts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli import _tuning, app
from tidegate.cli._tuning import Guarantees, Outcome, Space, merged, settings_text
from tidegate.cli.scenario import parse_scenario
from tidegate.config import parse_settings

SCENARIO = """\
description: twice what so few seats can do
duration: 8s
drain: 4s
preset: flash-sale
policy:
  bands:
    p2: {floor: 0.07}
engines:
  - {profile: h100-8b, seats: 8}
slos:
  p0: {ttft: 1s, end: 4s}
  p1: {ttft: 3s, end: 6s}
  p2: {end: 10s}
sources:
  - {name: a, band: p0, arrivals: {law: poisson, rate: 3}, prompt_tokens: 300, output_tokens: 60}
  - {name: b, band: p1, arrivals: {law: poisson, rate: 12}, prompt_tokens: 500, output_tokens: {median: 60, p99: 200}}
  - {name: c, band: p2, arrivals: {law: poisson, rate: 12}, prompt_tokens: 900, output_tokens: {median: 60, p99: 200}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def run() -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["tune", *arguments])
        return result.exit_code, result.stdout, result.stderr

    return call


@pytest.mark.slow
def test_prints_a_better_policy_that_check_accepts(
    scenario: Path, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    status, out, _ = run(str(scenario), "--runs", "20")
    assert status == 0
    head = [line for line in out.splitlines() if line.startswith("#")]
    before, now = (float(part.split()[0].replace(",", "")) for part in head[1].partition("second: ")[2].split(", "))
    assert now > 1.05 * before
    settings = parse_settings(out)
    bands = {band.name: band for band in settings.core_policy().bands}
    assert bands["p2"].floor >= Fraction(7, 100)
    assert bands["p1"].floor >= Fraction(5, 100)
    file = tmp_path / "tidegate.yaml"
    file.write_text(out)
    assert CliRunner().invoke(app, ["check", "-c", str(file)]).exit_code == 0


@pytest.mark.slow
def test_same_seed_same_bytes(scenario: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    arguments = (str(scenario), "--runs", "10", "--duration", "3s")
    assert run(*arguments) == run(*arguments)
    assert run(*arguments)[1] != run(*arguments, "--seed", "9")[1]


@pytest.mark.slow
def test_fails_when_nothing_keeps_the_guarantee(scenario: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    """So many p0 that they wait whatever the policy is."""
    scenario.write_text(SCENARIO.replace("rate: 3", "rate: 400"))
    status, out, err = run(str(scenario), "--runs", "10", "--duration", "2s", "--wait", "1ms")
    assert (status, out) == (1, "")
    assert "no candidate keeps the p0 wait within 1ms" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing.yaml"], "nothing.yaml"),
        (["rushh"], "expected a file, or one of the shipped scenarios"),
        (["flash-sale", "--wait", "soon"], "--wait: expected"),
        (["flash-sale", "--runs", "1"], "10"),
    ],
)
def test_refuses_what_it_cannot_use(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["tune", *arguments])
    assert result.exit_code != 0
    assert expected in f"{result.output}{result.exception}"


def test_says_what_to_install(
    scenario: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    result = CliRunner().invoke(app, ["tune", str(scenario), "--duration", "1s"])
    assert str(result.exception) == _tuning.INSTALL


# -- the space -------------------------------------------------------------------------------------------------------


def test_every_point_is_a_policy_that_keeps_the_floors() -> None:
    space = Space(parse_scenario(SCENARIO), SCENARIO)
    low, high = ([bound[side] for bound in space.bounds] for side in (0, 1))
    middle = [(least + most) / 2 for least, most in space.bounds]
    for point in (space.origin(), low, high, middle):
        policy = parse_scenario(space.file(point)).policy
        assert policy.bands[2].floor >= Fraction(7, 100)
        assert sum(band.floor for band in policy.bands) <= policy.overtake_cap <= Fraction(3, 10)
        parse_settings(space.settings(point))


def test_the_origin_is_the_policy_as_it_is() -> None:
    start = parse_scenario(SCENARIO)
    space = Space(start, SCENARIO)
    assert parse_scenario(space.file(space.origin())).policy == start.policy


def test_the_start_itself_can_be_printed() -> None:
    policy = parse_settings(settings_text(SCENARIO, parse_scenario(SCENARIO))).core_policy()
    assert policy == parse_scenario(SCENARIO).policy


def test_mappings_are_merged_deeply() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "d": {"e": 1}}) == {
        "a": {"b": 9, "c": 2},
        "d": {"e": 1},
    }


def test_a_missed_guarantee_is_worse_than_no_value() -> None:
    guarantees = Guarantees(0.05)
    good, better, late, later = (
        Outcome(10.0, 0.05),
        Outcome(20.0, 0.01),
        Outcome(99.0, 0.06),
        Outcome(99.0, float("inf")),
    )
    losses = [each.loss(guarantees, 10.0) for each in (better, good, Outcome(0.0, 0.0), late, later)]
    assert losses == sorted(losses)
    assert len(set(losses)) == 5
    assert [each.keeps(guarantees) for each in (good, late)] == [True, False]
