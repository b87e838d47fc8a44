"""What the byte path costs: gateway CPU per plain request and per streamed chunk, and the latency it adds.

Three processes on loopback: the proxy alone on one core, a stub engine and a load client on the others. Figures are
CPU time of the proxy's process (user and system, the kernel's share of sockets included), the least of a few rounds,
since a disturbance only ever adds. ``measure`` takes any proxy's command, so that others can be set beside.

The goals are the figures first measured for this stack, and for the closest rival that also schedules, on the
project's kind of machine; on another machine compare the two proxies with each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _ratios, stub_engine
from benchmarks.load import KEY, request_bytes
from tidegate.testing.processes import end

ROOT = Path(__file__).resolve().parent.parent
BUILDS = {"compiled": ROOT / "build" / "compiled", "interpreted": ROOT / "src"}
START_S = 60.0
SEATS = 256

Command = Callable[[int, str], Sequence[str]]
"""Gives the command of a proxy from the port on which it shall listen and its backend's root url."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: rounds, and in each of them plain requests and streams; requests timed, once."""

    rounds: int = 3
    plain: int = 8_000
    streams: int = 64
    latency: int = 1_500


@dataclass(frozen=True, slots=True)
class Figures:
    """CPU in µs; latencies of plain requests in ms."""

    plain_us: float
    chunk_us: float
    direct_p50_ms: float
    direct_p99_ms: float
    proxied_p50_ms: float
    proxied_p99_ms: float

    @property
    def added(self) -> str:
        """Tell what the proxy adds to the latency."""
        p50, p99 = self.proxied_p50_ms - self.direct_p50_ms, self.proxied_p99_ms - self.direct_p99_ms
        return f"p50 {p50:+.2f} ms, p99 {p99:+.2f} ms (direct {self.direct_p50_ms:.2f}, {self.direct_p99_ms:.2f})"


def measure(command: Command, size: Size = Size()) -> Figures:
    """Measure one proxy.

    Args:
        command: see ``Command``.
        size: fewer make it quicker and less exact.

    Raises:
        RuntimeError: it did not start to answer, or answered wrongly.
    """
    with stub() as engine, proxy(command, engine) as (pid, url):
        _load("plain", size.plain // 4, url)
        plain = min(plain_us(pid, url, size.plain) for _ in range(size.rounds))
        chunk = min(_chunk_us(pid, url, size.streams, plain) for _ in range(size.rounds))
        times = {name: seconds * 1e3 for name, seconds in _load("latency", size.latency, engine, url).items()}
    return Figures(plain, chunk, times["p50_0"], times["p99_0"], times["p50_1"], times["p99_1"])


def run() -> list[tuple[str, str, str]]:
    """Give the rows of the bare proxy and of the real gateway, interpreted and, where it is built, compiled."""
    bare = measure(bare_command)
    rows = [
        ("bare uvicorn + client proxy: CPU per plain request", f"{bare.plain_us:.1f} µs", "about 43 µs"),
        ("bare uvicorn + client proxy: CPU per streamed chunk", f"{bare.chunk_us:.1f} µs", "about 23 µs"),
        ("bare uvicorn + client proxy: added latency", bare.added, ""),
    ]
    for build, folder in BUILDS.items():
        name = f"tidegate serve, {build}"
        if not folder.exists():
            rows.append((name, "not built: make build/compiled/.built", ""))
            continue
        real = _served(folder)
        _ratios.note(f"CPU per plain request: tidegate, {build}, over bare proxy", real.plain_us / bare.plain_us)
        _ratios.note(f"CPU per streamed chunk: tidegate, {build}, over bare proxy", real.chunk_us / bare.chunk_us)
        rows.append((f"{name}: CPU per plain request", f"{real.plain_us:.1f} µs", "under 99 µs"))
        rows.append((f"{name}: CPU per streamed chunk", f"{real.chunk_us:.1f} µs", "under 47 µs"))
        rows.append((f"{name}: added latency", real.added, "p99 under 1 ms"))
    return rows


def _served(build: Path) -> Figures:
    """Measure the gateway of one build."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(build)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return measure(lambda port, backend: serve_command(Path(folder), port, backend))
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def bare_command(port: int, backend: str) -> Sequence[str]:
    """Start the bare proxy."""
    return [sys.executable, "-m", "benchmarks.bare_proxy", str(port), backend]


def serve_command(folder: Path, port: int, backend: str) -> Sequence[str]:
    """Start the gateway with a key and a band, in front of an engine that always has a seat."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    engine = {"name": "stub", "url": backend, "engine": "openai", "seats": SEATS}
    settings = {
        "gateway": {"listen": f"127.0.0.1:{port}"},
        "control": {"listen": "127.0.0.1:0"},
        "models": [{"name": "bench", "backends": [engine]}],
        "tenants": [{"name": "bench", "keys": [f"sha256:{digest}"], "band": "p1"}],
    }
    path = folder / "tidegate.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    return [sys.executable, "-m", "tidegate", "serve", "-c", str(path)]


# One measurement


def plain_us(proxy: int, url: str, count: int, *, body: int = 2_000) -> float:
    """Give the CPU per plain request, µs; ``proxy`` is its process, ``body`` the request's size in bytes."""
    before = _cpu_s(proxy)
    found = _load("plain", count, url, body=body)
    return (_cpu_s(proxy) - before) / found["requests"] * 1e6


def _chunk_us(proxy: int, url: str, streams: int, plain_us: float) -> float:
    """What each stream costs as a request is taken off, so that only its chunks are left."""
    before = _cpu_s(proxy)
    found = _load("stream", streams, url)
    spent_us = (_cpu_s(proxy) - before) * 1e6 - streams * plain_us
    expected = streams * (stub_engine.CHUNKS + 1)
    if found["events"] != expected:
        raise RuntimeError(f"expected {expected} events from the proxy, came {found['events']:.0f}")
    if found["pieces"] < expected * 0.5:
        raise RuntimeError(
            f"{expected} events came in {found['pieces']:.0f} pieces: too busy a machine to count chunks"
        )
    return spent_us / found["pieces"]


@contextmanager
def loading(count: int, url: str) -> Iterator[None]:
    """Have plain requests sent meanwhile, ``count`` at most."""
    command = [sys.executable, "-m", "benchmarks.load", "plain", str(count), url]
    with _running(command, alone=False):
        yield


def _cpu_s(pid: int) -> float:
    """CPU time of a whole process, all threads, by its own clock (Linux, see clock_getcpuclockid(3)).

    /proc, which psutil reads, counts in steps of 10 ms only.
    """
    return time.clock_gettime((~pid << 3) | 2)


def _load(mode: str, count: int, *urls: str, body: int = 2_000) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.load", mode, str(count), *urls]
    environ = os.environ | {"BENCH_BODY_BYTES": str(body)}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environ) as process:
        pin(process.pid, alone=False)
        out, _ = process.communicate(timeout=120)
    if process.returncode:
        raise RuntimeError(f"the load client failed: {' '.join(command)}")
    found: dict[str, float] = json.loads(out)
    return found


# Processes


@contextmanager
def _running(command: Sequence[str], *, alone: bool) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
    )
    try:
        pin(process.pid, alone=alone)
        yield process
    finally:
        end(process)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def stub() -> Iterator[str]:
    """Run the stub engine; gives its root url."""
    with _running([sys.executable, "-m", "benchmarks.stub_engine"], alone=False) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


@contextmanager
def proxy(command: Command, engine: str) -> Iterator[tuple[int, str]]:
    """Run a proxy on a core of its own; gives its process and its root url."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with _running(command(port, engine), alone=True) as process:
        _await_answer(process, url)
        yield process.pid, url


def _await_answer(process: subprocess.Popen[str], url: str) -> None:
    """Wait until the proxy answers a request as the engine would."""
    body = request_bytes("", stream=False).partition(b"\r\n\r\n")[2].replace(b'"max_tokens": 200', b'"max_tokens": 1')
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    began = time.monotonic()
    problem = "no answer yet"
    while time.monotonic() - began < START_S:
        if process.poll() is not None:
            raise RuntimeError(f"the proxy ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except urllib.error.HTTPError as error:
            problem = f"{error}, {error.read()[:300]!r}"
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            problem = str(error)
        time.sleep(0.05)
    raise RuntimeError(f"the proxy did not answer within {START_S} s: {problem}")


@contextmanager
def beside(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program off the proxy's core, spoken to by its standard input and output; it is killed at the end."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        pin(process.pid, alone=False)
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def schedstat(pid: int) -> tuple[float, float]:
    """Seconds that a process ran and that it was ready but others ran (Linux; its main thread)."""
    path = Path(f"/proc/{pid}/schedstat")
    ran, waited, *_ = path.read_text().split() if path.exists() else ("0", "0")
    return int(ran) / 1e9, int(waited) / 1e9


def pin(pid: int, *, alone: bool) -> None:
    """Give the proxy a core of its own, where there are two and the system lets us choose."""
    if not hasattr(os, "sched_setaffinity"):
        return
    first, *others = sorted(os.sched_getaffinity(0))
    if others:
        os.sched_setaffinity(pid, {first} if alone else set(others))
