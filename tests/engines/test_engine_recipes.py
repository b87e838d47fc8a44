"""The flags that docs/how-to/engines.md tells people to start their engines with exist in the engines of the tests."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from engines.servers import ENGINE_TEST, engine_command
from tidegate.testing.real_engines import VLLM_ENVIRON
from unit.docs_pages import ROOT, read

pytestmark = ENGINE_TEST

PAGE = read(ROOT / "docs" / "how-to" / "engines.md")
GONE = {"--preemption-mode", "--swap-space"}
"""Named on the page as flags that are not there any more."""
OF_PIP = {"--no-deps"}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def named(text: str) -> set[str]:
    """Flags in the code of a part of the page, but for the lines of a settings file."""
    code = re.findall(r"```text\n.*?```|`[^`\n]+`", text, re.DOTALL)
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", "\n".join(code)))


@pytest.fixture(scope="module")
def vllm_help() -> str:
    command = [*engine_command("vllm"), "--help=all"]
    return subprocess.run(
        command, env={**os.environ, **VLLM_ENVIRON}, capture_output=True, text=True, check=True, timeout=600
    ).stdout


@pytest.fixture(scope="module")
def llama_help() -> str:
    command = [*engine_command("llamacpp"), "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_the_flags_for_vllm_exist(vllm_help: str) -> None:
    known = set(re.findall(r"--[a-z][a-z-]*", vllm_help))
    flags = named(section("vLLM"))
    assert {"--scheduling-policy", "--max-num-seqs", "--scheduler-cls", "--additional-config"} <= flags
    assert flags - GONE - OF_PIP <= known
    assert not GONE & known


def test_the_flags_for_llama_cpp_exist(llama_help: str) -> None:
    known = set(re.findall(r"--?[a-z][a-z-]*", llama_help))
    flags = named(section("llama.cpp"))
    assert {"-np", "-c", "--metrics"} <= flags
    assert flags <= known
