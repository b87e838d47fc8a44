"""``serve --workers``: several processes on one port, each a replica of one pool, whose parent keeps them alive."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tidegate.testing.counting_engine import counting_engine
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]  # a busy machine takes a while to start processes

CONFIG = 'models: [{{name: raw, backends: [{{name: b, url: "{url}", engine: openai, seats: 8}}]}}]\n'


def ask(gateway: GatewayProcess) -> int:
    body = json.dumps({"model": "raw", "messages": [{"role": "user", "content": "x"}]}).encode()
    request = urllib.request.Request(gateway.url + "/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=40) as answer:
        return int(answer.status)


def until(say: Callable[[], Any], seconds: float = 40.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = say()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it took too long")


def rows(gateway: GatewayProcess) -> set[str]:
    try:
        (pool,) = gateway.state()["cluster"]["pools"].values()
    except OSError:
        return set()
    return {row["name"] for row in pool["replicas"] if row["seen_s_ago"] < 1.0}


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


def test_workers_share_a_port_and_a_pool_and_come_back(tmp_path: Path) -> None:
    with (
        counting_engine(tmp_path / "asked", delay_s=0.05) as engine,
        gateway_process("--workers", "2", config=CONFIG.format(url=engine.url)) as gateway,
    ):
        until(lambda: rows(gateway) == {"worker-0", "worker-1"})
        assert {ask(gateway) for _ in range(10)} == {200}
        before = children(gateway.pid)
        assert len(before) == 2
        os.kill(before[-1], signal.SIGKILL)
        time.sleep(0.5)  # what it had accepted is lost with it
        assert {ask(gateway) for _ in range(10)} == {200}
        until(lambda: len(children(gateway.pid)) == 2 and children(gateway.pid) != before)
        until(lambda: rows(gateway) == {"worker-0", "worker-1"})
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(30.0) == 0
        assert len(engine.asked()) == 20


def test_one_scrape_has_the_metrics_of_all_workers(tmp_path: Path) -> None:
    with (
        counting_engine(tmp_path / "asked") as engine,
        gateway_process("--workers", "3", config=CONFIG.format(url=engine.url)) as gateway,
    ):
        until(lambda: gateway.total("tidegate_worker_up") == 3)
        assert {ask(gateway) for _ in range(30)} == {200}
        until(lambda: gateway.total("tidegate_requests_total") == 30)  # counted once the answer is out
        until(lambda: gateway.total("tidegate_ttft_seconds_count") == 30)  # a worker that is slow is left out of a page
        until(lambda: sum(gateway.total("tidegate_requests_total", worker=str(each)) for each in range(3)) == 30)
        victim = children(gateway.pid)[-1]
        os.kill(victim, signal.SIGKILL)
        until(lambda: gateway.total("tidegate_worker_up") == 2)
        until(lambda: gateway.total("tidegate_worker_up") == 3)


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    with (
        counting_engine(tmp_path / "asked") as engine,
        gateway_process("--workers", "2", config=CONFIG.format(url=engine.url)) as gateway,
    ):
        pids = until(lambda: len(children(gateway.pid)) == 2 and children(gateway.pid))
        gateway.signal(signal.SIGKILL)
        gateway.wait(5.0)
        until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))


@contextlib.contextmanager
def serving(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run ``serve`` with ``tidegate.yaml`` and ``log`` in a folder; gives process and output once it listens."""
    file = folder / "tidegate.yaml"
    file.write_text(CONFIG.format(url="http://127.0.0.1:9"))
    words = [sys.executable, "-u", *command, "-c", str(file)]
    words += ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
    with (
        (folder / "log").open("w") as errors,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            assert "listening" in process.stdout.readline()
            yield process, process.stdout
        finally:
            process.kill()


TWO_WORKERS = ("-m", "tidegate", "serve", "--workers", "2")


def test_a_stop_while_workers_are_being_started_reaches_them(tmp_path: Path) -> None:
    with serving(tmp_path, *TWO_WORKERS) as (parent, _):  # the next thing that it does is to start workers
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(30.0) == 0


def test_a_file_read_again_while_workers_are_being_started_holds_on_all(tmp_path: Path) -> None:
    """A SIGHUP ended workers that could not obey it yet, and these ended the command: "it would fail again"."""
    file, log = tmp_path / "tidegate.yaml", tmp_path / "log"
    with serving(tmp_path, *TWO_WORKERS) as (parent, output):
        file.write_text(file.read_text() + "policy: {bands: {p1: {ttl: 1h}}}\n")

        def told() -> list[str]:
            assert parent.poll() is None, log.read_text()
            parent.send_signal(signal.SIGHUP)
            return re.findall(r"^worker 1: control listening on (\S+)", log.read_text(), re.MULTILINE)

        ports = [until(told)[0], output.readline().split()[-1]]

        def ttl(url: str) -> str:
            with urllib.request.urlopen(url + "/admin/policy", timeout=40) as answer:
                return str(json.load(answer)["bands"]["p1"]["ttl"])

        until(lambda: [ttl(each) for each in ports] == ["1h", "1h"])
        assert "started anew" not in log.read_text()
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(30.0) == 0


def test_a_signal_that_comes_while_the_command_is_loaded_is_obeyed_once_it_serves(tmp_path: Path) -> None:
    hung_up = (
        "import os, signal, tidegate.cli as cli\n"
        "load = cli.import_module\n"
        "cli.import_module = lambda name: (os.kill(os.getpid(), signal.SIGHUP), load(name))[1]\n"
        "cli.main()\n"
    )
    with serving(tmp_path, "-c", hung_up, "serve") as (process, _):
        until(lambda: "control.reloaded" in (tmp_path / "log").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30.0) == 0


def test_workers_refuse_a_store_that_one_process_has_for_itself(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.yaml"
    file.write_text(CONFIG.format(url="http://127.0.0.1:9") + f"jobs: {{store: 'sqlite:///{tmp_path}/jobs.db'}}\n")
    command = [sys.executable, "-m", "tidegate", "serve", "--workers", "2", "--listen", "127.0.0.1:0", "-c", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "jobs.store" in done.stderr
    assert "postgresql://" in done.stderr


def test_workers_that_cannot_begin_end_the_command(tmp_path: Path) -> None:
    with counting_engine(tmp_path / "asked") as engine:
        file = tmp_path / "tidegate.yaml"
        file.write_text(CONFIG.format(url=engine.url) + "gateway: {tls: {cert: none.pem, key: none.pem}}\n")
        command = [sys.executable, "-m", "tidegate", "serve", "--workers", "2", "-c", str(file)]
        command += ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode != 0
        assert "none.pem" in done.stderr
