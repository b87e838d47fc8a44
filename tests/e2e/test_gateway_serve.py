"""``tidegate serve`` as a command: how it ends when it cannot begin."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.testing.gateway_process import gateway_process

pytestmark = pytest.mark.slow

NOWHERE = ("--backend", "http://127.0.0.1:9")


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate", "serve", "--control-listen", "127.0.0.1:0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)


def test_an_address_that_is_taken_is_told_without_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = serve(*NOWHERE, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (ended.returncode, "Address already in use" in ended.stderr, "Traceback" in ended.stderr) == (1, True, False)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "models"),
        ((*NOWHERE, "--listen", "nowhere"), 2, "HOST:PORT"),
        ((*NOWHERE, "--log-level", "loud"), 2, "loud"),
        ((*NOWHERE, "--listen", "127.0.0.1:0", "--event-log", "/nowhere/events"), 1, "/nowhere/events"),
    ],
)
def test_what_cannot_be_used_is_named(arguments: tuple[str, ...], status: int, words: str) -> None:
    ended = serve(*arguments)
    assert (ended.returncode, words in ended.stderr, "Traceback" in ended.stderr) == (status, True, False)


def test_the_event_log_holds_what_the_scheduler_was_told(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    with gateway_process(*NOWHERE, "--event-log", str(events)):
        pass
    kinds = [json.loads(line)[1] for line in events.read_text().splitlines()]
    assert kinds[0] == "policy"
    assert {"observe.Health", "observe.Drain"} <= set(kinds)
