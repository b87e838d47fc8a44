"""A mode is an overlay that is compiled to a whole policy; a wrong one is found when the file is read."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tidegate import core
from tidegate.config import ConfigError, parse_settings
from unit.test_config_errors import MODELS, only


def admitted(policy: core.Policy) -> list[str]:
    return [band.name for band in policy.bands if band.admit]


def test_the_built_in_modes() -> None:
    settings = parse_settings(MODELS)
    assert settings.mode_names == ("normal", "transactions_only", "observe")
    assert settings.core_policy() == settings.core_policy("normal")
    assert admitted(settings.core_policy()) == ["p0", "p1", "p2"]
    assert admitted(settings.core_policy("transactions_only")) == ["p0"]
    assert not settings.core_policy("transactions_only").observe_only
    assert settings.core_policy("observe").observe_only
    assert admitted(settings.core_policy("observe")) == ["p0", "p1", "p2"]
    with pytest.raises(KeyError):
        settings.core_policy("nightly")


def test_a_mode_of_the_file_is_laid_over_the_policy() -> None:
    settings = parse_settings(
        MODELS + "policy: {bands: {p2: {ttl: 1h}}}\n"
        "modes:\n  night: {admit: [p1, p2], policy: {overtake_cap: 20%, bands: {p2: {ceiling: 0.5}}}}\n"
        "  transactions_only: {admit: [p0, p1]}\n"
    )
    assert settings.mode_names == ("normal", "transactions_only", "observe", "night")
    night, normal = settings.core_policy("night"), settings.core_policy()
    assert (night.overtake_cap, night.bands[2].ceiling, night.bands[2].ttl_s) == (Fraction(1, 5), Fraction(1, 2), 3600)
    assert admitted(night) == ["p1", "p2"]
    assert (normal.overtake_cap, normal.bands[2].ceiling) == (Fraction(15, 100), Fraction(1))
    assert admitted(settings.core_policy("transactions_only")) == ["p0", "p1"]


@pytest.mark.parametrize(
    ("modes", "line", "path", "expected", "nearest"),
    [
        ("  normal: {admit: [p0]}", 3, "modes.normal", "expected another name, `normal` is the policy itself", None),
        ("  'a b': {admit: [p0]}", 3, "modes.a b", "expected a name of 1 to 128 letters", None),
        ("  x:\n    admit: [p7]", 4, "modes.x.admit[0]", "expected a band, one of p0, p1, p2", None),
        ("  x:\n    admit: p0", 4, "modes.x.admit", "expected a list", None),
        ("  x:\n    admit: []", 4, "modes.x.admit", "expected at least one", None),
        ("  x:\n    admti: [p0]", 4, "modes.x.admti", "unknown setting", "admit"),
        ("  x:\n    policy: [1]", 4, "modes.x.policy", "expected a mapping of settings of policy", None),
        ("  x:\n    observe: perhaps", 4, "modes.x.observe", "expected true or false", None),
        (
            "  x:\n    policy:\n      bands:\n        p1: {cieling: 1}",
            6,
            "modes.x.policy.bands.p1.cieling",
            "unknown setting",
            "ceiling",
        ),
        ("  x:\n    policy:\n      bands: {p1: {ttl: 0}}", 5, "modes.x.policy.bands.p1.ttl", "expected a dur", None),
        ("  x:\n    policy:\n      overtake_cap: 0.01", 5, "modes.x.policy.overtake_cap", "expected at least", None),
        ("  x:\n    policy:\n      bands:\n        p3: {floor: 0}", 5, "modes.x.policy.bands", "expected only bands",
         None),
        ("  x:\n    policy: {jobs: 1}", 4, "modes.x.policy.jobs", "unknown setting", None),
        ("  x:\n    policy: {preempt_rate: 2}", 4, "modes.x.policy.preempt_rate", "expected a part", None),
    ],
)  # fmt: skip
def test_a_wrong_mode_is_placed(modes: str, line: int, path: str, expected: str, nearest: str | None) -> None:
    problem = only(f"{MODELS}modes:\n{modes}\n")
    assert (problem.line, problem.path, problem.nearest) == (line, path, nearest)
    assert problem.expected.startswith(expected)


def test_a_problem_of_a_mode_shows_what_was_written_and_not_what_the_environment_filled_in() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(MODELS + "modes: {x: {policy: {bands: {p1: {ttl: '${A}'}}}}}", environ={"A": "hunter2"})
    (problem,) = caught.value.errors
    assert problem.came == "'${A}'"
