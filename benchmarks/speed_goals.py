"""The goals of speed that a single request does not show, each by a command of its own.

``python -m benchmarks.speed_goals [memory|latency|body|stalls …] [--minutes N]`` (a minute of ``stalls`` unless told).

* **memory**: what 5,000 open streams add to the gateway (private memory of the process, ``smaps_rollup``).
* **latency**: what the gateway adds to a plain request of 2 KB at 200 requests/s, beside the engine asked directly.
* **body**: CPU of a request with a body of 200 KB.
* **stalls**: the longest time that the loop was late while 5,000 streams run, as many more end and begin as can, 1,000
  requests a second are refused and a dashboard is open. The gateway itself says how late it was
  (``tidegate_loop_stall_seconds``).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import bytepath
from benchmarks.load import KEY
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

ROOT = Path(__file__).resolve().parent.parent
Row = tuple[str, str, str]
STREAMS = 5_000
WAITING = 200
BUSY = 64
"""Seats of the model whose queue is full."""
LIFE_S = 60.0
REFUSALS = 1_000
RATE = 200
BODY = 200_000


def memory() -> list[Row]:
    """5,000 streams: what they add to the process."""
    with child("engine") as engine, _gateway(line(engine), seats=STREAMS) as gateway:
        time.sleep(1.0)
        before = private_bytes(gateway.pid)
        with child("streams", 0, STREAMS, STREAMS, gateway.url) as streams:
            line(streams)
            time.sleep(3.0)
            during = private_bytes(gateway.pid)
    added = during - before
    each = f"{added / STREAMS / 1024:.1f} KiB a stream"
    return [
        ("5,000 open streams: above idle", f"{added / 1e6:.0f} MB ({each}; idle {before / 1e6:.0f} MB)", "≤ 100 MB")
    ]


def latency(seconds: float = 20.0) -> list[Row]:
    """What is added at a steady rate."""
    with tempfile.TemporaryDirectory() as folder, started([sys.executable, "-m", "benchmarks.stub_engine"]) as stub:
        command, engine = partial(bytepath.serve_command, Path(folder)), line(stub)
        with bytepath.proxy(command, engine) as (pid, url):
            _prefer(pid)
            before = bytepath.schedstat(pid)[1]
            with child("pace", RATE, seconds, engine, url) as pace:
                direct, through = json.loads(line(pace)), json.loads(line(pace))
            waited = bytepath.schedstat(pid)[1] - before
    added = {name: (through[name] - direct[name]) * 1e3 for name in ("p50", "p99")}
    return [
        (f"added at {RATE} requests/s: p50", f"{added['p50']:.0f} µs", "≤ 250 µs"),
        (f"added at {RATE} requests/s: p99", f"{added['p99']:.0f} µs", "≤ 600 µs"),
        ("  directly: p50, p99", f"{direct['p50'] * 1e3:.0f}, {direct['p99'] * 1e3:.0f} µs", ""),
        ("  the gateway waited for its core", f"{waited / seconds:.1%} of the time", ""),
    ]


def body(rounds: int = 3) -> list[Row]:
    """What a long body costs, beside a short one and the bare proxy."""
    found: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as folder, bytepath.stub() as engine:
        commands: dict[str, bytepath.Command] = {
            "bare proxy": bytepath.bare_command,
            "tidegate": partial(bytepath.serve_command, Path(folder)),
        }
        for name, command in commands.items():
            with bytepath.proxy(command, engine) as (pid, url):
                _prefer(pid)
                for size in (2_000, BODY):
                    bytepath.plain_us(pid, url, 200, body=size)
                    found[name, size] = min(bytepath.plain_us(pid, url, 800, body=size) for _ in range(rounds))
    rows: list[Row] = []
    for name in commands:
        long, short = found[name, BODY], found[name, 2_000]
        goal = "≤ 200 µs" if name == "tidegate" else ""
        rows.append((f"a 200 KB body, {name}: CPU", f"{long:.0f} µs ({long - short:.0f} more than 2 KB)", goal))
    return rows


def stalls(minutes: float = 1.0) -> list[Row]:
    """How late the loop is when everything is asked of it at once."""
    seconds = minutes * 60
    with child("engine", LIFE_S) as engine, _gateway(line(engine), seats=STREAMS) as gateway:
        pid = gateway.pid
        bytepath.pin(pid, alone=True)
        _prefer(pid)
        counts = (BUSY + WAITING, STREAMS + WAITING, BUSY + STREAMS)
        with child("streams", *counts, gateway.url) as streams, dashboard(gateway.control, seconds):
            line(streams)
            with child("refused", REFUSALS, seconds + 10, gateway.url) as refused:
                line(refused)
                time.sleep(10.0)  # what was late while 5,000 streams were opened is not asked for
                ran, waited = bytepath.schedstat(pid)
                late, whole = [], []
                stolen = _stolen_ms()
                for _ in track(range(max(1, round(seconds / 10))), description="under load"):
                    time.sleep(10.0)
                    late.append(gateway.total("tidegate_loop_stall_seconds") * 1e3)
                    before, stolen = stolen, _stolen_ms()
                    if stolen == before:
                        whole.append(late[-1])
                ran, waited = (now - then for now, then in zip(bytepath.schedstat(pid), (ran, waited), strict=True))
                told = json.loads(line(refused))
            assert streams.stdin is not None
            streams.stdin.close()
            ended = json.loads(line(streams))["ended"]
            assert engine.stdin is not None
            engine.stdin.close()
            engine_ms = json.loads(line(engine))["late_ms"]
    p99 = f"p50 {told['p50']:.1f} ms, p99 {told['p99']:.1f} ms, longest {told['most']:.0f} ms"
    others = {key: value for key, value in told.items() if key not in {"count", "p50", "p99", "most", "behind"}}
    return [
        (
            "loop late at most",
            f"{max(late):.1f} ms (of each ten seconds the most: median {statistics.median(late):.1f} ms)",
            "≤ 5 ms",
        ),
        (
            "  of these tens of seconds",
            f"{sum(each > 5 for each in late)} of {len(late)} above 5 ms; the most of {len(whole)} in which the host "
            f"took the machine no time away: {max(whole, default=0.0):.1f} ms",
            "",
        ),
        ("refusal in the same run", p99, "p99 < 5 ms"),
        ("  refusals: statuses, not sent in time", str(others), f"429 for {REFUSALS}/s"),
        (
            "  late by themselves at most: engine, clients",
            f"{engine_ms:.0f}, {told['behind']:.0f} ms",
            "a burst comes then",
        ),
        ("  streams that ended and were replaced", f"{ended / seconds:.0f}/s", ""),
        ("  the gateway's core", f"{ran / seconds:.0%} used, {waited / seconds:.1%} waited for", "0% waited for"),
    ]


PARTS: dict[str, Callable[[], list[Row]]] = {"memory": memory, "latency": latency, "body": body, "stalls": stalls}


def main() -> None:
    """Measure what is named, or all, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=1.0, help="of stalls (1; the goal is for 10)")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        raise SystemExit(f"expected some of {', '.join(PARTS)}; got {', '.join(unknown)}")
    console = Console()
    table = Table("what", "figure", "goal")
    for name in options.parts or PARTS:
        with console.status(name):
            rows = stalls(options.minutes) if name == "stalls" else PARTS[name]()
        for row in rows:
            table.add_row(*row)
    console.print(table)


def private_bytes(pid: int) -> int:
    """Give the memory that a process has to itself (Linux)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def settings_for(engine: str, *, seats: int) -> dict[str, object]:
    """Give the settings: one model with seats, and one whose queue is full."""
    other = engine.replace("127.0.0.1", "localhost")  # the same engine, for the pool that is full
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    return {
        "models": [
            {"name": "bench", "backends": [{"name": "a", "url": engine, "engine": "openai", "seats": seats}]},
            {"name": "busy", "backends": [{"name": "b", "url": other, "engine": "openai", "seats": BUSY}]},
        ],
        "tenants": [{"name": "bench", "keys": [f"sha256:{digest}"], "band": "p1"}],
        "policy": {
            "bands": {
                "p0": {"reserve": 0},
                "p1": {"capacity": WAITING, "shed_hopeless": False, "ttl": "1h", "shed_answer": "error"},
            }
        },
    }


@contextlib.contextmanager
def _gateway(engine: str, *, seats: int) -> Iterator[GatewayProcess]:
    settings = settings_for(engine, seats=seats)
    with gateway_process("--log-level", "warning", config=json.dumps(settings)) as gateway:  # JSON is YAML
        yield gateway


@contextlib.contextmanager
def dashboard(control: str, seconds: float) -> Iterator[None]:
    """Have a dashboard open."""
    command = [sys.executable, "-m", "benchmarks.dashboard_ends", "screens", "1", str(seconds + 120), control]
    with started(command):
        yield


@contextlib.contextmanager
def child(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run one of the other ends."""
    with started([sys.executable, "-m", "benchmarks.speed_goals_ends", *map(str, arguments)]) as process:
        yield process


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program, before others where the system allows it."""
    with bytepath.beside(command) as process:
        _prefer(process.pid)
        yield process


def line(process: subprocess.Popen[str]) -> str:
    """Read what a program says next."""
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if not said:
        raise RuntimeError(f"{process.args!r} ended without a word")
    return said


def _stolen_ms() -> int:
    """Time that the host of a virtual machine gave to others while it had work, all cores (Linux)."""
    path = Path("/proc/stat")
    return int(path.read_text().split()[8]) * 10 if path.exists() else 0


def _prefer(pid: int) -> None:
    """Let a process go before other programs, where the system allows it: what they do is no part of the answer."""
    with contextlib.suppress(PermissionError, AttributeError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))


if __name__ == "__main__":
    main()
