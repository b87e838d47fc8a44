"""Batches end to end against an engine that answers at once: rows a second, and what interactive requests notice."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tidegate.testing.gateway_process import gateway_process
from tidegate.testing.processes import wait_for_line

ENGINE = r"""
import asyncio
ANSWER = (b'{"id":"x","object":"chat.completion","created":1,"model":"raw","choices":[{"index":0,"message":{"role":'
          b'"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}')
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
class Engine(asyncio.Protocol):
    def connection_made(self, transport): self.transport, self.data = transport, b""
    def data_received(self, data):
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15:].split(b"\r\n")[0]) if at >= 0 else 0
            if len(self.data) < end + 4 + size: return
            self.data = self.data[end + 4 + size:]
            self.transport.write(HEAD + ANSWER)
async def main():
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=2048)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()
try:
    import uvloop
    uvloop.run(main())
except ImportError:
    asyncio.run(main())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--interactive", type=float, default=50.0, help="p0 requests a second beside it; 0: none")
    parser.add_argument("--accept", action="store_true", help="only until the batch is in progress")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE)
        try:
            url = wait_for_line(engine, "listening on ")
            config = (
                f'models: [{{name: raw, backends: [{{url: "{url}", engine: openai, seats: 64}}]}}]\n'
                f'jobs: {{store: "sqlite:///{folder}/jobs.db", files: "{folder}/files", max_lines: 2000000, '
                f"max_file: 2GiB}}\nanonymous: {{band: p1, max_band: p0}}\n"
            )
            with gateway_process(config=config) as gateway:
                if not options.accept:
                    interactive(gateway.url, 50.0, 5.0)
                run(gateway.url, Path(folder), options, gateway.pid)
        finally:
            engine.kill()
            engine.wait()


def run(url: str, folder: Path, options: argparse.Namespace, pid: int) -> None:
    rows, rate = options.rows, options.interactive
    source = folder / "in.jsonl"
    with source.open("w") as target:
        for number in range(rows):
            body = {"model": "raw", "messages": [{"role": "user", "content": f"row {number}"}], "max_tokens": 1}
            line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            target.write(json.dumps(line) + "\n")
    before = cpu_s(pid)
    began = time.monotonic()
    file = ask_form(url, source)
    uploaded = time.monotonic()
    wish = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = ask(f"{url}/v1/batches", wish)
    while batch["status"] == "validating":
        time.sleep(0.1)
        batch = ask(f"{url}/v1/batches/{batch['id']}")
    started = time.monotonic()
    print(
        f"{rows} rows, {source.stat().st_size >> 20} MiB: upload {uploaded - began:.1f} s, "
        f"validated {started - uploaded:.1f} s later"
    )
    if options.accept:
        print(f"worker at most {peak_mib(pid)} MiB")
        ask(f"{url}/v1/batches/{batch['id']}/cancel", {})
        return
    done = threading.Event()
    waits: list[tuple[float, float]] = []
    beside = threading.Thread(target=lambda: waits.extend(stream(url, rate, done)), daemon=True)
    if rate:
        beside.start()
    while batch["status"] in ("in_progress", "finalizing"):
        time.sleep(0.25)
        batch = ask(f"{url}/v1/batches/{batch['id']}")
    ended = time.monotonic()
    done.set()
    gateway_s, worker_s = (after - first for after, first in zip(cpu_s(pid), before, strict=True))
    print(f"{batch['status']}: {batch['request_counts']}")
    print(
        f"{rows / (ended - started):.0f} rows/s with files; CPU: gateway {1e6 * gateway_s / rows:.0f} us, "
        f"worker {1e6 * worker_s / rows:.0f} us a row; worker at most {peak_mib(pid)} MiB"
    )
    if rate:
        beside.join()
        say("p0 beside it", waits)


def interactive(url: str, rate: float, seconds: float) -> None:
    done = threading.Event()
    threading.Timer(seconds, done.set).start()
    say("p0 alone", stream(url, rate, done))


def say(who: str, waits: list[tuple[float, float]]) -> None:
    for what, values in zip(("wait for a seat", "whole answer"), zip(*waits, strict=True), strict=True):
        ordered = sorted(values)
        print(
            f"{who} ({len(ordered)}), {what}: p50 {ordered[len(ordered) // 2]:.1f} ms, "
            f"p99 {ordered[int(len(ordered) * 0.99)]:.1f} ms"
        )


def stream(url: str, rate: float, done: threading.Event) -> list[tuple[float, float]]:
    """Send p0 requests one after the other; returns milliseconds of wait and of the whole answer."""
    found = []
    body = {"model": "raw", "messages": [{"role": "user", "content": "now"}], "max_tokens": 1}
    while not done.wait(1 / rate):
        began = time.perf_counter()
        request = urllib.request.Request(
            f"{url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json", "x-tidegate-band": "p0"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            found.append((float(answer.headers["x-tidegate-queue-ms"]), (time.perf_counter() - began) * 1000))
    return found


def ask(url: str, body: object = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    try:
        opened = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{error.code}: {error.read().decode()}") from error
    with opened as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def ask_form(url: str, source: Path) -> dict[str, Any]:
    from tidegate.cli.jobs import Server

    return Server(url, None).upload(source)


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds of the gateway and of its worker."""
    return _cpu_s(pid), sum(map(_cpu_s, children(pid)))


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def peak_mib(pid: int) -> int:
    lines = [line for child in children(pid) for line in Path(f"/proc/{child}/status").read_text().splitlines()]
    return max(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


if __name__ == "__main__":
    main()
