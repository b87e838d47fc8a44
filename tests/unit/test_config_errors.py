"""Every kind of error names its line, what was expected, what came, and the nearest name."""

from __future__ import annotations

import pytest

from tidegate.config import ConfigError, Problem, key_digest, load_settings, parse_settings
from tidegate.config.later import NOT_YET
from tidegate.core import TidegateError

MODELS = "models: [{name: m, backends: [{url: http://a:1, seats: 8}]}]\n"
KEY = key_digest("k")


def problems_of(text: str, environ: dict[str, str] | None = None) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, environ=environ, source="f.yaml")
    return caught.value.errors


def only(text: str) -> Problem:
    (problem,) = problems_of(text)
    return problem


@pytest.mark.parametrize(
    ("extra", "line", "column", "path", "expected", "came", "nearest"),
    [
        # names
        ("gatway: {}", 2, 1, "gatway", "unknown setting", "", "gateway"),
        ("policy:\n  bands:\n    p1: {wieght: 2}", 4, 10, "policy.bands.p1.wieght", "unknown setting", "", "weight"),
        ("zzz: 1", 2, 1, "zzz", "unknown setting; the file takes gateway, control, ", "", None),
        ("preset: flash-sal", 2, 9, "preset", "expected one of flash-sale, kv-guard", "'flash-sal'", "flash-sale"),
        ("preset: [x]", 2, 9, "preset", "expected one of flash-sale", "a list", None),
        ("policy: {discipline: agin}", 2, 22, "policy.discipline", "expected one of aging", "'agin'", "aging"),
        ("rules: [{when: {path: /x}, band: P1}]", 2, 34, "rules[0].band", "expected a band, one of p0", "'P1'", "p1"),
        ("objectives: {gold: p7}", 2, 20, "objectives.gold", "expected a band", "'p7'", None),
        ("anonymous: {band: p1, max_band: top}", 2, 33, "anonymous.max_band", "expected a band", "'top'", None),
        # types and values
        ("tenants: {a: b}", 2, 10, "tenants", "expected a list", "a mapping", None),
        ("gateway: 8400", 2, 10, "gateway", "expected a mapping", "'8400'", None),
        ("policy: [1]", 2, 9, "policy", "expected a mapping", "a list", None),
        ("policy: {bands: [p0]}", 2, 17, "policy.bands", "expected a mapping", "a list", None),
        ("policy: {bands: {p0: 3}}", 2, 22, "policy.bands.p0", "expected a mapping", "'3'", None),
        ("gateway: {max_body: 32Mi}", 2, 21, "gateway.max_body", "expected a size", "'32Mi'", None),
        ("gateway: {max_body: }", 2, 21, "gateway.max_body", "expected a size", "nothing", None),
        ("gateway: {drain_timeout: 5m}", 2, 26, "gateway.drain_timeout", "expected a duration", "'5m'", None),
        ("gateway: {listen: ':1'}", 2, 19, "gateway.listen", "expected HOST:PORT", "':1'", None),
        ("policy: {queue_capacity: 0755}", 2, 26, "policy.queue_capacity", "expected a decimal", "'0755'", None),
        ("policy: {queue_capacity: 1.5}", 2, 26, "policy.queue_capacity", "expected a whole", "'1.5'", None),
        ("policy: {max_flows: 0}", 2, 21, "policy.max_flows", "expected a whole number of at least 1", "'0'", None),
        ("policy: {bands: {p1: {floor: 5}}}", 2, 30, "policy.bands.p1.floor", "expected a part", "'5'", None),
        ("policy: {bands: {p1: {weight: -1}}}", 2, 31, "policy.bands.p1.weight", "expected a number", "'-1'", None),
        ("policy: {bands: {p1: {ttl: 0}}}", 2, 28, "policy.bands.p1.ttl", "expected a duration above 0", "'0'", None),
        (
            "rules: [{when: {header: [a]}, band: p0}]",
            2,
            25,
            "rules[0].when.header",
            "expected a mapping",
            "a list",
            None,
        ),
        ("rules: [{band: p0}]", 2, 9, "rules[0].when", "expected when, it is required", "", None),
        ("rules: [{when: {path: []}, band: p0}]", 2, 23, "rules[0].when.path", "expected one", "an empty list", None),
        (
            "rules: [{when: {path: [/v1/x, v1/y]}, band: p0}]",
            2,
            17,
            "rules[0].when.path",
            "expected paths that begin with /",
            "'v1/y'",
            None,
        ),
        (
            "rules: [{when: {header: {X Y: 1}}, band: p0}]",
            2,
            17,
            "rules[0].when.header",
            "expected the name of a header",
            "'x y'",
            None,
        ),
        ("tenants: [{name: a, keys: []}]", 2, 27, "tenants[0].keys", "expected at least one", "an empty list", None),
        ("a: 1\na: 2", 3, 1, "a", "expected each key once, it stands on line 2 already", "", None),
    ],
)
def test_each_error_has_its_place(
    extra: str, line: int, column: int, path: str, expected: str, came: str, nearest: str | None
) -> None:
    problem = problems_of(MODELS + extra)[-1]
    assert (problem.line, problem.column, problem.path) == (line, column, path)
    assert problem.expected.startswith(expected)
    assert (problem.came, problem.nearest) == (came, nearest)


@pytest.mark.parametrize(
    ("extra", "line", "path", "expected"),
    [
        ("tenants:\n- {name: a, keys: [KEY], band: p1,\n   max_band: p2}", 4, "tenants[0].max_band", "expected p1 or"),
        ("anonymous: {band: p0,\n  max_band: p1}", 3, "anonymous.max_band", "expected p0 or higher"),
        ("tenants:\n- {name: anonymous, keys: [KEY]}", 3, "tenants[0].name", "expected another name"),
        (
            "tenants:\n- {name: a, keys: [KEY]}\n- {name: a, keys: [KEY2]}",
            4,
            "tenants[1].name",
            "expected a name of its",
        ),
        (
            "tenants:\n- {name: a, keys: [KEY]}\n- {name: b, keys: [KEY]}",
            4,
            "tenants[1].keys[0]",
            "expected a name of its",
        ),
        ("rules:\n- {when: {tenant: [nobody]}, band: p0}", 3, "rules[0].when.tenant", "expected one of anonymous"),
        ("rules:\n- {when: {model: mm}, band: p0}", 3, "rules[0].when.model", "expected one of m"),
        ("rules:\n- {when: {}, band: p0}", 3, "rules[0].when", "expected at least one condition"),
        ("control: {listen: '0.0.0.0:1'}", 2, "control.listen", "expected a loopback address"),
        ("control: {listen: '127.0.0.1:8400'}", 2, "control.listen", "expected another address than gateway"),
        ("policy: {bands: {p0: {reserve: 8}}}", 2, "policy.bands.p0.reserve", "expected at most 7, one less"),
        ("policy: {bands: {p2: {reserve: 1}}}", 2, "policy.bands.p2.reserve", "expected 0, no band is below"),
        ("policy:\n  bands:\n    p9: {weight: 0}", 4, "policy.bands.p9", "expected a band from p0 (highest) to p7"),
        ("policy:\n  bands:\n    0: {weight: 0}", 4, "policy.bands.0", "expected a band from p0 (highest) to p7"),
        ("policy:\n  bands:\n    p9: {floor: 0}", 4, "policy.bands.p9", "expected a band from p0 (highest) to p7"),
        ("policy:\n  bands:\n    p4: {floor: 0}", 4, "policy.bands.p4", "expected the bands without a gap, p3"),
        ("policy:\n  bands: {p3: , p4: , p5: , p6: , p7: , p8: }", 3, "policy.bands", "expected at most 8"),
        ("policy:\n  bands:\n    p3: {weight: 1}", 4, "policy.bands.p3", "expected a floor (a part like 0.05), or"),
        ("policy:\n  bands:\n    p2: {floor: }", 4, "policy.bands.p2", "expected a floor (a part like 0.05), or"),
        ("policy:\n  overtake_cap: 0.05", 3, "policy.overtake_cap", "expected at least the sum of the floors"),
        ("policy:\n  bands:\n    p2: {weight: 30}", 4, "policy.bands.p2.weight", "expected at most the weight of p1"),
        ("policy:\n  overtake_cap: 1\n  bands: {p2: {floor: 0.5}}", 4, "policy.bands.p2.floor", "expected at most 1/3"),
        ("policy: {bands: {p2: {ceiling: 0}}}", 2, "policy.bands.p2.ceiling", "expected a part above 0"),
    ],
)
def test_settings_that_contradict_each_other_are_placed(extra: str, line: int, path: str, expected: str) -> None:
    problem = only(MODELS + extra.replace("KEY2", key_digest("other")).replace("KEY", KEY))
    assert (problem.line, problem.path) == (line, path)
    assert problem.expected.startswith(expected)


@pytest.mark.parametrize(
    ("models", "line", "path", "expected"),
    [
        ("", 1, "models", "expected models, it is required"),
        ("models: []", 1, "models", "expected at least one"),
        ("models:\n- {backends: [{url: http://a}]}", 2, "models[0].name", "expected name, it is required"),
        ("models:\n- {name: m}", 2, "models[0].backends", "expected backends, it is required"),
        ("models:\n- {name: m, backends: [{seats: 1}]}", 2, "models[0].backends[0].url", "expected url, it is"),
        ("models:\n- {name: m, backends: [{url: http://a/v1}]}", 2, "models[0].backends[0].url", "expected the root"),
        (
            "models:\n- {name: m, backends: [{url: http://a}]}\n- {name: n,\n   backends: [{url: http://a}]}",
            4,
            "models[1].backends[0].name",
            "expected a name of its own, models[0].backends[0].name has it",
        ),
        (
            "models:\n- {name: m, backends: [{url: http://a}]}\n- {name: n, aliases: [x, m], backends: [{url: http://b}]}",
            3,
            "models[1].aliases[1]",
            "expected a name of its own, models[0].name has it",
        ),
        (
            "models:\n- {name: '*', backends: [{url: http://a}]}\n- {name: default, backends: [{url: http://b}]}",
            3,
            "models[1].name",
            "expected another name, `default` is the pool",
        ),
        ("models:\n- {name: m, aliases: ['*'], backends: [{url: http://a}]}", 2, "models[0].aliases[0]", "expected a"),
    ],
)
def test_models_that_cannot_be_are_placed(models: str, line: int, path: str, expected: str) -> None:
    problem = only(models)
    assert (problem.line, problem.path) == (line, path)
    assert problem.expected.startswith(expected)


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = (
        "models: [{name: m, bakends: [], backends: [{url: x}]}]\ngateway: {listen: x}\nrules: [{when: {}, band: p9}]\n"
    )
    assert [(problem.line, problem.path) for problem in problems_of(text)] == [
        (1, "models[0].bakends"),
        (1, "models[0].backends[0].url"),
        (2, "gateway.listen"),
        (3, "rules[0].band"),
    ]


def test_an_error_reads_like_a_compiler_message() -> None:
    error = only(MODELS + "policy: {discipline: agin}")
    assert str(error) == (
        "f.yaml:2:22: policy.discipline: expected one of aging, weighted, strict, got 'agin'; did you mean 'aging'?"
    )
    with pytest.raises(TidegateError, match=r"(?s)^f\.yaml:2:1: zzz.*\nf\.yaml:2:1: models"):
        parse_settings("\nzzz: 1", source="f.yaml")


def test_settings_of_later_versions_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NOT_YET, "moon", "gateways on the moon")
    found = problems_of(MODELS + "moon: {}\n")
    assert [(p.line, p.path, p.expected) for p in found] == [
        (2, "moon", "not in this version: gateways on the moon"),
    ]


def test_one_variable_that_is_not_set_is_one_problem() -> None:
    problem = only("models: [{name: m, backends: [{url: http://a, api_key: '${NOT_SET}'}]}]")
    assert (problem.path, problem.expected) == (
        "models[0].backends[0].api_key",
        "expected the environment variable 'NOT_SET' to be set",
    )


def test_no_message_shows_a_secret() -> None:
    text = (
        "models: [{name: m, backends: [{url: 'http://u:hunter2@a', api_key: ''}, "
        "{url: http://a, seats: '${SECRET}'}]}]\n"
        "tenants: [{name: a, keys: [hunter2]}, {name: '${SECRET}', keys: ['${SECRET}']}]\n"
        "rules: [{when: {tenant: '${SECRET}'}, band: '${SECRET}'}]\npreset: ${SECRET}\n"
    )
    shown = "\n".join(str(problem) for problem in problems_of(text, {"SECRET": "hunter2"}))
    assert "hunter2" not in shown
    assert "got a value that is not shown" in shown
    assert "sha256sum" in shown


def test_a_contradiction_among_values_of_the_environment_shows_no_value() -> None:
    text = "models: [{name: '${A}', aliases: ['${A}'], backends: [{url: http://a}]}]\n"
    (problem,) = problems_of(text, {"A": "hunter2"})
    assert problem.path == "models[0].aliases[0]"
    assert "hunter2" not in str(problem)


def test_the_command_line_is_named_as_the_source() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(
            None, environ={}, backend_url="10.0.0.1", engine="vlm", seats=0, overrides={"gateway.listen": "x"}
        )
    assert {(p.source, p.line, p.path) for p in caught.value.errors} == {
        ("command line", 0, "models[0].backends[0].url"),
        ("command line", 0, "models[0].backends[0].engine"),
        ("command line", 0, "models[0].backends[0].seats"),
        ("command line", 0, "gateway.listen"),
    }
    assert str(caught.value.errors[0]).startswith("command line: ")


def test_what_belongs_to_a_backend_of_the_command_line_is_not_ignored_without_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, environ={}, engine="vllm", seats=8)
    assert [str(problem) for problem in caught.value.errors] == [
        "command line: --engine: expected --backend beside it; for the backends of the file, set engine there",
        "command line: --seats: expected --backend beside it; for the backends of the file, set seats there",
        "command line: models: expected -c FILE with a settings file that has them, or --backend URL",
    ]
