"""The snippets that ask the gateway something are run as they stand, but for the ports."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidegate.cli.demo._children import free_ports, running
from unit.docs_pages import ROOT, Snippet, snippets

pytestmark = pytest.mark.slow

GATEWAY, CONTROL = "127.0.0.1:8400", "127.0.0.1:8401"
MARKS = (
    '"object":"chat.completion"',
    '"object":"request"',
    "# HELP tidegate_",
    '"changes":',
    '"bands":',
    '"requests":',
    '"tenant":',
    "from_utc,tenant",
)
"""What the answers to all documented questions have in them."""


def asking(language: str) -> list[object]:
    """Return each page's snippets that ask the gateway something, in order: later ones may need earlier ones."""
    pages: dict[Path, list[Snippet]] = {}
    for snippet in snippets(language):
        if (GATEWAY in snippet.text or CONTROL in snippet.text) and (language != "bash" or "curl " in snippet.text):
            pages.setdefault(snippet.page, []).append(snippet)
    return [pytest.param(found, id=str(page.relative_to(ROOT))) for page, found in pages.items()]


@asynccontextmanager
async def stack(folder: Path, engine: int, gateway: int, control: int) -> AsyncIterator[None]:
    """Run what the quickstart starts: an engine and a gateway without a file."""
    serve = ("serve", "--backend", f"http://127.0.0.1:{engine}")
    listen = ("--listen", f"127.0.0.1:{gateway}", "--control-listen", f"127.0.0.1:{control}")
    async with (
        running(
            "engine",
            *("engine", "--listen", f"127.0.0.1:{engine}", "--model", "demo", "--speed", "20"),
            port=engine,
            path="/health",
            log=folder / "engine.log",
        ),
        running("gateway", *serve, *listen, port=gateway, path="/readyz", log=folder / "gateway.log"),
    ):
        yield


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    engine, gateway, control = free_ports(3)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        context = stack(Path(folder), engine, gateway, control)
        runner.run(context.__aenter__())
        try:
            yield gateway, control
        finally:
            runner.run(context.__aexit__(None, None, None))


def here(text: str, ports: tuple[int, int]) -> str:
    return text.replace(GATEWAY, f"127.0.0.1:{ports[0]}").replace(CONTROL, f"127.0.0.1:{ports[1]}")


def run(*command: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", asking("python"))
def test_python_snippets_run(page: list[Snippet], ports: tuple[int, int]) -> None:
    for snippet in page:
        run(sys.executable, "-c", here(snippet.text, ports))


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", asking("bash"))
def test_curl_snippets_get_an_answer(page: list[Snippet], ports: tuple[int, int]) -> None:
    for snippet in page:
        answer = run("bash", "-c", here(snippet.text.replace("curl ", "curl -sS --fail "), ports) + "\nwait")
        assert any(mark in answer for mark in MARKS), f"{snippet}: {answer}"
