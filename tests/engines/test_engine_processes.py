"""Setting up and running engines, tried with programs that only behave like engines."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.servers import ROOT, engine_command
from tidegate.testing.engines import engine_server

HEALTHY = """
import http.server, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'# TYPE a gauge\\na{x="1"} 2\\na{x="2"} 3\\nb 1\\n'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *rest): pass
"""
SERVES = 'http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()\n'
STUBBORN = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print("up", flush=True); time.sleep(60)'


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], list[str]]:
    """A command line that runs some Python with the port as its argument."""

    def write(text: str) -> list[str]:
        (tmp_path / "engine.py").write_text(text)
        return [sys.executable, str(tmp_path / "engine.py"), "{port}"]

    return write


@pytest.fixture(scope="module")
def set_up() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "engines" / "set_up.py"), run_name="set_up")


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_an_engine_is_ended_with_children_that_do_not_obey(program: Callable[[str], list[str]], tmp_path: Path) -> None:
    child = f"child = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.PIPE)\n"
    command = program(HEALTHY + child + "child.stdout.readline()\n" + SERVES)
    with engine_server(command, kind="vllm", log=tmp_path / "log", stop_s=0.3) as server:
        members = server.members()
        assert len(members) == 2
        assert (server.total("a"), server.total("b")) == (5, 1)
        with pytest.raises(KeyError):
            server.total("c")
    assert server.members() == []


@pytest.mark.slow
def test_an_engine_that_ends_at_once_is_tried_again_and_then_quoted(
    program: Callable[[str], list[str]], tmp_path: Path
) -> None:
    command = program("import sys; open(sys.argv[0] + '.tries', 'a').write('x'); sys.exit('no weights here')")
    with (
        pytest.raises(RuntimeError, match="ended with status 1: no weights here"),
        engine_server(command, kind="vllm", log=tmp_path / "log"),
    ):
        pass
    assert (tmp_path / "engine.py.tries").read_text() == "xx"


@pytest.mark.slow
def test_an_engine_that_never_answers_is_given_up_and_ended(
    program: Callable[[str], list[str]], tmp_path: Path
) -> None:
    command = program("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    with (
        pytest.raises(RuntimeError, match="did not answer"),
        engine_server(command, kind="vllm", log=tmp_path / "log", start_s=0.5),
    ):
        pass
    assert not exists(int((tmp_path / "log").read_text()))


@pytest.mark.slow
def test_a_server_for_another_cpu_is_recognised(set_up: dict[str, Any], tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_text(f"#!{sys.executable}\nimport os\nos.kill(os.getpid(), {int(signal.SIGILL)})\n")
    server.chmod(0o755)
    assert "illegal instruction" in set_up["probe_llama"](server, tmp_path / "model")
    server.write_text(f"#!{sys.executable}\nraise SystemExit(3)\n")
    assert set_up["probe_llama"](server, tmp_path / "model") == "it ended with status 3"


def test_an_engine_that_cannot_be_had_is_named_with_its_reason(
    set_up: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scope = set_up["set_up"].__globals__

    def no_torch(*command: object, cwd: Path | None = None) -> None:
        if "pip" in command:
            raise set_up["CannotHaveError"]("ERROR: No matching distribution found for torch==2.13.0+cpu")

    monkeypatch.setitem(scope, "ROOT", tmp_path)
    monkeypatch.setitem(scope, "run", no_torch)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "vllm.txt").write_text("torch==2.13.0+cpu\n")
    set_up["set_up"]("vLLM")
    assert "vLLM: NOT TESTED: pip finds no CPU build of torch" in capsys.readouterr().out
    assert "reason" in json.loads((tmp_path / ".venv-vllm" / "engine.json").read_text())


def test_tests_of_an_engine_that_is_not_there_are_skipped_by_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.servers.ROOT", tmp_path)
    with pytest.raises(pytest.skip.Exception, match="make test-engines"):
        engine_command("vllm")
    (tmp_path / ".venv-vllm").mkdir()
    file = tmp_path / ".venv-vllm" / "engine.json"
    file.write_text(json.dumps({"reason": "no torch"}))
    with pytest.raises(pytest.skip.Exception, match="no torch"):
        engine_command("vllm")
    file.write_text(json.dumps({"command": [os.devnull]}))
    assert engine_command("vllm") == [os.devnull]


def test_requirements_name_no_address_and_no_cuda() -> None:
    for name in ("llama", "vllm"):
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert all("==" in pin and "://" not in pin for pin in pins)
        assert not any("nvidia" in pin or "triton" in pin for pin in pins)
