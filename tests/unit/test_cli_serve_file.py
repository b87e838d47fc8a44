"""What ``init`` writes, ``serve`` runs: a real process on free ports."""

from __future__ import annotations

import contextlib
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def tidegate(*args: str) -> list[str]:
    return [sys.executable, "-m", "tidegate", *args]


@pytest.mark.parametrize("preset", ["flash-sale", "shared-platform"])
def test_serve_runs_the_file_that_init_writes(preset: str, tmp_path: Path) -> None:
    subprocess.run(tidegate("init", "--preset", preset), cwd=tmp_path, check=True, capture_output=True)
    command = tidegate("serve", "-c", "tidegate.yaml", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0")
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("gateway listening on ").strip()
            with urllib.request.urlopen(f"{url}/livez", timeout=40) as answer:
                assert answer.status == 200
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 0


def test_a_port_in_use_ends_without_a_traceback(tmp_path: Path) -> None:

    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        command = tidegate(
            "serve", "--backend", "http://127.0.0.1:9", "--listen", listen, "--control-listen", "127.0.0.1:0"
        )
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=40, check=False)
    assert result.returncode == 1
    assert "Address already in use" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            "control: {listen: '127.0.0.1:0', audit_file: FOLDER}",
            "control.audit_file: expected a file that lines can be",
        ),
        ("control: {listen: '127.0.0.1:0', audit_file: FOLDER/no/a}", "FOLDER/no/a: No such file or directory"),
        (
            "jobs: {store: 'sqlite:///FOLDER/j.db', files: FOLDER/taken}",
            "jobs.files: cannot use FOLDER/taken: File exists",
        ),
    ],
)
def test_a_place_that_cannot_be_used_is_named_with_its_setting_at_the_start(
    section: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    file = tmp_path / "t.yaml"
    models = "models: [{name: m, backends: [{url: 'http://127.0.0.1:9'}]}]\n"
    file.write_text(models + section.replace("FOLDER", str(tmp_path)) + "\n")
    listens = () if "listen" in section else ("--control-listen", "127.0.0.1:0")
    command = tidegate("serve", "-c", str(file), "--listen", "127.0.0.1:0", *listens)
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=18, check=False)
    assert said.replace("FOLDER", str(tmp_path)) in result.stderr
    assert (result.returncode in (1, 2), "Traceback" in result.stderr) == (True, False)


def test_a_gateway_whose_standard_streams_are_closed_serves_and_ends_as_any_other(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    words = tidegate("serve", "--backend", "http://127.0.0.1:9", "--listen", listen, "--control-listen", "127.0.0.1:0")
    closed = shlex.join(words) + " <&- >&- 2>errors"
    with subprocess.Popen(["/bin/sh", "-c", f"exec {closed}"], cwd=tmp_path) as process:
        try:
            for _ in range(150):
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(f"http://{listen}/livez", timeout=10) as answer,
                ):
                    assert answer.status == 200
                    break
                time.sleep(0.1)
            else:
                pytest.fail("it did not come up")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=18) == 0
    assert "Assertion" not in (tmp_path / "errors").read_text()
