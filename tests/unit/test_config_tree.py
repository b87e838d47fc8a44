"""YAML is read with its places, and its traps are refused with theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tidegate.config import ConfigError, Mark, Problem
from tidegate.config import tree as t


@pytest.fixture(autouse=True, params=["libyaml", "python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML comes with or without libyaml; both must read alike."""
    if request.param == "libyaml" and not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML was built without libyaml")
    monkeypatch.setattr(t, "_LOADER", yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader)


def read(text: str, environ: dict[str, str] | None = None) -> tuple[t.Map, list[Problem]]:
    problems: list[Problem] = []
    return t.parse_tree(text, source="f.yaml", environ=environ or {}, problems=problems), problems


def places(problems: list[Problem] | tuple[Problem, ...]) -> list[tuple[int, int, str]]:
    return [(problem.line, problem.column, problem.path) for problem in problems]


def failure(text: str) -> Problem:
    with pytest.raises(ConfigError) as caught:
        read(text)
    (problem,) = caught.value.errors
    return problem


def text_of(node: t.Node, key: str) -> str | None:
    assert isinstance(node, t.Map)
    value = node.entries[key]
    assert isinstance(value, t.Scalar)
    return value.text


def test_scalars_keep_their_text_so_that_yaml_guesses_nothing() -> None:
    root, problems = read('a: no\nb: 0755\nc: 0.05\nd: 12:30\ne: 2024-01-01\nf: ~\ng: "null"\nh: 1_0\ni:\n')
    assert [text_of(root, key) for key in "abcdefghi"] == [
        "no",
        "0755",
        "0.05",
        "12:30",
        "2024-01-01",
        None,
        "null",
        "1_0",
        None,
    ]
    assert problems == []


def test_every_node_knows_its_place() -> None:
    root, _ = read("a:\n  - b: 1\n    c: 2\n")
    (item,) = root.entries["a"].items  # type: ignore[union-attr]
    assert isinstance(item, t.Map)
    assert item.keys["c"] == Mark("f.yaml", 3, 5)
    assert item.entries["c"].mark == Mark("f.yaml", 3, 8)


def test_an_empty_file_is_an_empty_mapping() -> None:
    assert read("")[0].entries == {}
    assert read("# nothing\n")[0].entries == {}


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("a: [\n", 2, 1, "expected YAML"),
        ("a:\n\t- b\n", 2, 1, "expected YAML"),
        ("a: b\n---\nc: d\n", 2, 1, "expected YAML"),
        ("a: 'b\n", 2, 1, "expected YAML"),
        ("a: *b\n", 1, 4, "expected YAML"),
        ("a: b\nc: \x01\n", 2, 4, "expected printable text"),
        ("- a\n", 1, 1, "expected settings"),
        ("just text\n", 1, 1, "expected settings"),
        ("a: &x\n  b: *x\n", 1, 4, "expected no alias to what contains it"),
        ("x: &x [1]\na: [" + ", ".join(["*x"] * 101) + "]\n", 2, 405, "expected at most 100 aliases"),
        ("a: " + "[" * 24 + "]" * 24 + "\n", 1, 27, "expected at most 24 levels"),
    ],
)
def test_what_is_no_settings_file_fails_with_its_place(text: str, line: int, column: int, expected: str) -> None:
    problem = failure(text)
    assert problem.expected.startswith(expected)
    assert (problem.line, problem.column) == (line, column)


def test_few_aliases_that_multiply_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real limit would cost seconds and show nothing more."""
    assert t.MAX_NODES == 200_000  # of 400 million
    monkeypatch.setattr(t, "MAX_NODES", 2_000)
    lines = ["a0: &a0 [" + ", ".join("x" * 12) + "]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 12) + "]" for i in range(1, 8)]
    assert "aliases multiply" in failure("\n".join(lines)).expected


def test_aliases_nest_no_deeper_than_what_is_written_out() -> None:
    deep = "[" * 20 + "x" + "]" * 20
    text = f"a: &a {deep}\nb: " + deep.replace("x", "*a")
    assert failure(text).expected == "expected at most 24 levels of nesting"


def test_duplicate_keys_foreign_tags_and_odd_keys_are_problems_with_places() -> None:
    _, problems = read("a: 1\nb: 2\na: 3\nc: !secret x\nd: !!python/name:os.system ''\n? [x]\n: 1\n'': 2\n")
    assert places(problems) == [(3, 1, "a"), (4, 4, "c"), (5, 4, "d"), (6, 3, ""), (8, 1, "")]
    assert "it stands on line 1 already" in problems[0].expected


def test_merge_keys_lend_entries_without_replacing_written_ones() -> None:
    root, problems = read("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\nz: {<<: [*x, {c: 4}]}\nw: {<<: 5}\n")
    y, z = root.entries["y"], root.entries["z"]
    assert [text_of(y, key) for key in "ab"] == ["1", "3"]
    assert [text_of(z, key) for key in "abc"] == ["1", "2", "4"]
    assert places(problems) == [(6, 9, "w.<<")]


def test_the_environment_fills_in_secrets_and_is_never_shown() -> None:
    root, problems = read("a: 'x-${KEY}'\nb: '$${KEY}'\nc: $KEY\nd: ${NONE}\n", {"KEY": "s3cret"})
    assert [text_of(root, key) for key in "abc"] == ["x-s3cret", "${KEY}", "$KEY"]
    assert [(p.line, p.path, p.expected) for p in problems] == [
        (4, "d", "expected the environment variable 'NONE' to be set")
    ]
    assert t.describe(root.entries["a"]) == "'x-${KEY}'"


def test_long_values_are_shortened_in_messages() -> None:
    root, _ = read(f"a: {'x' * 500}\n")
    assert len(t.describe(root.entries["a"])) < 70


def test_files_that_cannot_be_read_are_problems(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (t.MAX_BYTES + 1))
    for path, expected in (
        (tmp_path / "none.yaml", "cannot read the file: No such file"),
        (tmp_path, "cannot read the file"),
        (large, "expected at most 8 MiB"),
    ):
        with pytest.raises(ConfigError, match=expected):
            t.read_text(path)
    with pytest.raises(ConfigError) as caught:
        t.read_text(latin)
    assert places(caught.value.errors) == [(2, 7, "")]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert t.read_text(path) == "a: 1\n"
