"""Every snippet of the README and the docs is checked: YAML loads, Python compiles, commands and options exist."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache

import pytest
import typer
import yaml

from tidegate.cli import COMMANDS, app
from tidegate.cli.scenario import parse_scenario
from tidegate.config import parse_settings
from unit.docs_pages import ROOT, Snippet, snippets

ENVIRON = {"VENDOR_KEY": "sk-test"}
ELSEWHERE = {"python3", "curl", "make", "#"}


def named(*languages: str) -> list[object]:
    return [pytest.param(snippet, id=str(snippet)) for snippet in snippets(*languages)]


@cache
def options(command: str) -> frozenset[str]:
    """Options of a command, read from the command line itself."""
    group = typer.main.get_command(app)
    found = group.get_command(typer.Context(group), command)  # type: ignore[attr-defined]
    return frozenset(option for parameter in found.params for option in parameter.opts)


def lines(snippet: Snippet) -> list[list[str]]:
    """Words of each command line of a shell snippet."""
    joined = re.sub(r"\\\n\s*", " ", snippet.text)
    return [shlex.split(line, comments=True) for line in joined.splitlines() if line.strip()]


@pytest.mark.parametrize("snippet", named("yaml"))
def test_yaml_is_a_valid_part_of_a_settings_file(snippet: Snippet) -> None:
    text = snippet.text
    if "sources" in yaml.safe_load(text):
        parse_scenario(text, source=str(snippet), environ=ENVIRON)
        return
    if "models" not in yaml.safe_load(text):
        text += '\nmodels: [{name: some, backends: [{url: "http://127.0.0.1:8000"}]}]\n'
    parse_settings(text, environ=ENVIRON, source=str(snippet))


@pytest.mark.parametrize("snippet", named("json"))
def test_json_parses(snippet: Snippet) -> None:
    json.loads(snippet.text)


@pytest.mark.parametrize("snippet", named("python"))
def test_python_compiles(snippet: Snippet) -> None:
    compile(snippet.text, str(snippet), "exec")


@pytest.mark.parametrize("snippet", named("bash"))
def test_commands_exist_and_have_their_options(snippet: Snippet) -> None:
    for words in lines(snippet):
        while words and re.match(r"[A-Z_]+=", words[0]):  # of the program's environment
            words = words[1:]
        if not words:
            continue
        program = words[0].rsplit("/", 1)[-1]
        if program == "tidegate":
            assert words[1] in COMMANDS, f"{snippet}: no command {words[1]}"
            wrong = [w for w in words[2:] if w.startswith("-") and w != "-" and w not in options(words[1])]
            assert not wrong, f"{snippet}: {words[1]} has no {wrong}"
        elif program == "make":
            targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(words[1:]) <= set(targets)
        elif program == "source":
            assert words[1].endswith("/bin/activate")
        else:
            assert program in {"python3", "curl", "pip"}, f"{snippet}: unknown program {program}"


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_a_newcomers_shell_finds_each_command(readme: str) -> None:
    calls = [s for s in snippets("bash") if s.page == ROOT / readme and any(w[0] == "tidegate" for w in lines(s))]
    assert len(calls) >= 2
    for snippet in calls:
        assert lines(snippet)[0] == ["source", "my-venv/bin/activate"], f"{snippet}: tidegate is not on the PATH"


def test_every_fence_says_its_language() -> None:
    known = {"yaml", "json", "python", "bash", "text"}
    assert [str(snippet) for snippet in snippets("")] == []
    assert len(snippets(*known)) >= 20
