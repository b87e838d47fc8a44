"""``tidegate demo`` as a user runs it: real processes, loopback HTTP, and nothing left behind."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(60),  # most start four processes one after the other: 10 s on a quiet machine, 30 on a busy one
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

COMMAND = (sys.executable, "-m", "tidegate", "demo")


def children(parent: int) -> set[int]:
    """Return the process ids whose parent is ``parent``."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(state[1]) == parent:
                found.add(int(entry.name))
    return found


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def wait_for_children(process: subprocess.Popen[str]) -> set[int]:
    """Wait until engine and gateway run."""
    for _ in range(600):
        pids = children(process.pid)
        if len(pids) == 2:
            return pids
        time.sleep(0.05)
    pytest.fail("the demo did not start its two children")


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        (*COMMAND, "--seconds", "2", "--stay"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(10)
    if process.stdout is not None:
        process.stdout.close()


def test_the_demo_ends_with_a_table_and_a_verdict() -> None:
    done = subprocess.run((*COMMAND, "--seconds", "2", "--json"), capture_output=True, text=True, timeout=55)
    result = json.loads(done.stdout)
    assert done.returncode in (0, 1, 3), done.stderr
    assert result["verdict"]["code"] == done.returncode
    for run in ("fifo", "tidegate"):
        bands = result[run]["bands"]
        assert [band["band"] for band in bands] == ["p0", "p1", "p2"]
        assert sum(band["sent"] for band in bands) > 0
        assert all(
            band["sent"] == band["answered"] + band["unfinished"] + sum(band["refused"].values()) for band in bands
        )
        assert not any(reason.startswith(("http_", "connection", "no_conn")) for b in bands for reason in b["refused"])
        assert result[run]["output_tokens_per_s"] > 0


def test_p0_keeps_its_target_in_a_short_overload() -> None:
    done = subprocess.run((*COMMAND, "--seconds", "8", "--json"), capture_output=True, text=True, timeout=55)
    result = json.loads(done.stdout)
    if done.returncode == 3:
        pytest.skip(result["verdict"]["sentence"])
    assert done.returncode == 0, result["verdict"]["sentence"]
    assert result["tidegate"]["bands"][0]["in_slo"] > result["fifo"]["bands"][0]["in_slo"]


def test_a_killed_demo_takes_its_children_with_it(demo: subprocess.Popen[str]) -> None:
    pids = wait_for_children(demo)
    demo.kill()
    demo.wait(40)
    for _ in range(200):
        if not alive(pids):
            break
        time.sleep(0.05)
    assert alive(pids) == set()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_stops_the_children_too(demo: subprocess.Popen[str], sent: signal.Signals) -> None:
    pids = wait_for_children(demo)
    demo.send_signal(sent)
    assert demo.wait(40) == 130
    assert alive(pids) == set()
    assert children(os.getpid()) == set() or demo.poll() is not None


def test_stay_keeps_it_running_and_says_where(demo: subprocess.Popen[str]) -> None:
    assert demo.stdout is not None
    text = ""
    for line in demo.stdout:
        text += line
        if "curl" in line:
            break
    pids = children(demo.pid)
    assert len(pids) == 2
    port = int(re.findall(r"gateway +http://127\.0\.0\.1:(\d+)/v1", text)[0])
    key = re.findall(r"Bearer (\S+)'", text)[0]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = json.dumps(
        {"model": "demo", "messages": [{"role": "user", "content": "Is my order paid?"}], "max_tokens": 3}
    )
    connection.request(
        "POST",
        "/v1/chat/completions",
        body,
        {"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    answer = connection.getresponse()
    assert (answer.status, answer.headers["x-tidegate-band"]) == (200, "p0")
    answer.read()
    connection.close()
    demo.send_signal(signal.SIGINT)
    assert demo.wait(40) == 130
    assert alive(pids) == set()


def test_a_child_that_cannot_start_is_told_with_its_words(tmp_path: Path) -> None:
    broken = tmp_path / "sitecustomize.py"
    broken.write_text("import sys\nif 'serve' in sys.orig_argv:\n    sys.exit('no gateway today')\n")
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run((*COMMAND, "--seconds", "1"), capture_output=True, text=True, timeout=55, env=environ)
    assert done.returncode == 1
    assert "the gateway ended with code 1" in done.stdout
    assert "no gateway today" in done.stdout
