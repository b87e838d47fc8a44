"""Batches end to end against an engine that answers at once: rows a second, and what interactive requests notice."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.cli._server import Server
from tidegate.testing.counting_engine import counting_engine
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

URL = "/v1/chat/completions"
RATE = 50.0
"""Interactive p0 requests a second, one after the other."""

Row = tuple[str, str, str]


@dataclass
class Waits:
    """Milliseconds of p0 requests: until a seat, and of the whole answer."""

    seat: list[float]
    whole: list[float]

    def p99(self, values: list[float]) -> float:
        return sorted(values)[int(len(values) * 0.99)]


def run(rows: int = 20_000, rate: float = RATE, for_s: float = 1e9) -> Iterator[Row]:
    """Run a batch to its end, or for some time, with p0 requests before and beside it."""
    with _stage() as (gateway, folder):
        alone = _interactive(gateway.url, rate, 5.0) if rate else None
        accepting = time.monotonic()
        server, batch = _accepted(gateway, folder, rows)
        began, done = time.monotonic(), threading.Event()
        yield f"{rows} rows written, uploaded and validated", f"{began - accepting:.1f} s", "< 60 s for a million"
        found: list[Waits] = []
        beside = threading.Thread(target=lambda: found.append(_stream(gateway.url, rate, done)), daemon=True)
        if rate:
            beside.start()
        before = _cpu_s(gateway.pid)
        while batch["status"] in ("in_progress", "finalizing") and time.monotonic() - began < for_s:
            time.sleep(0.25)
            batch = server.ask("GET", f"/v1/batches/{batch['id']}")
        took_s = time.monotonic() - began
        done.set()
        ended = batch["request_counts"]["completed"]
        assert batch["request_counts"]["failed"] == 0, batch
        assert ended == rows or took_s >= for_s, batch
        used = [after - first for after, first in zip(_cpu_s(gateway.pid), before, strict=True)]
        files = "files included" if ended == rows else "while it runs"
        yield f"batch of {rows} rows, engine answers at once, {files}", f"{ended / took_s:.0f} rows/s", ">= 1000"
        for who, seconds in zip(("gateway", "worker"), used, strict=True):
            yield f"CPU of the {who} for a row", f"{1e6 * seconds / ended:.0f} us", "-"
        yield "rows for a second of CPU, gateway and worker", f"{ended / sum(used):.0f}", ">= 1000"
        yield "most memory of the worker", f"{_peak_mib(gateway.pid)} MiB", "<= 300 MiB"
        if rate and alone is not None:
            beside.join()
            for what in ("seat", "whole"):
                values = [waits.p99(getattr(waits, what)) for waits in (alone, found[0])]
                name = "wait for a seat" if what == "seat" else "whole answer"
                goal = "+5 ms at most" if what == "seat" else "-"
                yield f"p0 {name}, p99, alone / beside the batch", f"{values[0]:.1f} / {values[1]:.1f} ms", goal


@contextlib.contextmanager
def _stage() -> Iterator[tuple[GatewayProcess, Path]]:
    with tempfile.TemporaryDirectory() as folder, counting_engine() as engine:
        config = (
            f'models: [{{name: raw, backends: [{{url: "{engine.url}", engine: openai, seats: 64}}]}}]\n'
            f'jobs: {{store: "sqlite:///{folder}/jobs.db", files: "{folder}/files", max_lines: 2000000, '
            f"max_file: 2GiB}}\nanonymous: {{band: p1, max_band: p0}}\n"
        )
        with gateway_process(config=config) as gateway:
            yield gateway, Path(folder)


def _accepted(gateway: GatewayProcess, folder: Path, rows: int) -> tuple[Server, dict[str, Any]]:
    """Upload a file of rows and wait until its batch is in progress."""
    source = folder / "in.jsonl"
    with source.open("w") as target:
        for number in range(rows):
            body = {"model": "raw", "messages": [{"role": "user", "content": f"row {number}"}], "max_tokens": 1}
            target.write(json.dumps({"custom_id": f"r{number}", "method": "POST", "url": URL, "body": body}) + "\n")
    server = Server(gateway.url, None)
    wish = {"input_file_id": server.upload(source)["id"], "endpoint": URL, "completion_window": "24h"}
    batch = server.ask("POST", "/v1/batches", wish)
    while batch["status"] == "validating":
        time.sleep(0.1)
        batch = server.ask("GET", f"/v1/batches/{batch['id']}")
    return server, batch


def _interactive(url: str, rate: float, seconds: float) -> Waits:
    done = threading.Event()
    threading.Timer(seconds, done.set).start()
    return _stream(url, rate, done)


def _stream(url: str, rate: float, done: threading.Event) -> Waits:
    """Send p0 requests one after the other."""
    waits = Waits([], [])
    body = {"model": "raw", "messages": [{"role": "user", "content": "now"}], "max_tokens": 1}
    while not done.wait(1 / rate):
        began = time.perf_counter()
        headers = {"content-type": "application/json", "x-tidegate-band": "p0"}
        request = urllib.request.Request(f"{url}{URL}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            waits.seat.append(float(answer.headers["x-tidegate-queue-ms"]))
            waits.whole.append((time.perf_counter() - began) * 1000)
    return waits


def _children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def _cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds of the gateway and of its worker."""
    return _seconds(pid), sum(map(_seconds, _children(pid)))


def _seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def _peak_mib(pid: int) -> int:
    lines = [line for child in _children(pid) for line in Path(f"/proc/{child}/status").read_text().splitlines()]
    return max(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--interactive", type=float, default=RATE, help="p0 requests a second beside it; 0: none")
    parser.add_argument("--for-s", type=float, default=1e9, help="let it run for so long only")
    options = parser.parse_args()
    for row in run(options.rows, options.interactive, options.for_s):
        print(": ".join(row[:2]), flush=True)


if __name__ == "__main__":
    main()
