"""Which callbacks of the gateway keep its event loop for long, by their own CPU time.

``python -m benchmarks.turns [--streams N] [--seconds S] [--above MS]`` asks of the gateway what
``benchmarks.speed_goals stalls`` does: N streams of which some end and begin again, 1,000 refusals a second and an open
dashboard; besides, the page of metrics is read once a second. The gateway runs on asyncio's own loop, whose callbacks
can be timed one by one by the clock of their thread: whatever else the machine does is no part of it. Its transports
are Python there, so that reading and writing cost more than on the loop of ``tidegate serve``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
import urllib.request
from asyncio.events import Handle
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import speed_goals
from tidegate.assembly import Options, build
from tidegate.config import load_settings

LONG_MS = 4.0
"""From here on a callback is told: a stall of the loop is to stay below 5 ms."""


class Turns:
    """Times the callbacks of asyncio's loop, and the runs of the garbage collector within them.

    Attributes:
        longest: by the callback's name, its longest run, ms.
        long: how often it ran longer than ``above_ms``.
        count: how many callbacks ran.
    """

    def __init__(self, above_ms: float) -> None:
        self.above_ms = above_ms
        self.longest: defaultdict[str, float] = defaultdict(float)
        self.long: Counter[str] = Counter()
        self.count = 0
        self._gc_began = 0.0
        self._run = Handle._run

    def start(self) -> None:
        """Begin to time."""
        turns, run, clock = self, self._run, time.thread_time

        def timed(handle: Handle) -> None:
            call, began = handle._callback, clock()  # type: ignore[attr-defined]
            run(handle)
            took_ms = (clock() - began) * 1e3
            turns.count += 1
            if took_ms > 0.5:
                turns.note(name_of(call), took_ms)

        Handle._run = timed  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Time no more."""
        Handle._run = self._run  # type: ignore[method-assign]
        gc.callbacks.remove(self._collected)

    def note(self, name: str, took_ms: float) -> None:
        """Keep a run."""
        self.longest[name] = max(self.longest[name], took_ms)
        self.long[name] += took_ms > self.above_ms

    def _collected(self, phase: str, told: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_began = time.thread_time()
        else:
            self.note(
                f"garbage collector, generation {told['generation']}", (time.thread_time() - self._gc_began) * 1e3
            )


def name_of(call: Any) -> str:
    """Say what a callback does: whose step of which task, or which function."""
    task: Any = getattr(call, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        return f"task {getattr(coroutine, '__qualname__', type(coroutine).__name__)}"
    if hasattr(task, "get_protocol"):
        return f"{call.__name__} of {type(task.get_protocol()).__name__}"
    return str(getattr(call, "__qualname__", repr(call)))


async def serve(path: str, above_ms: float) -> None:
    """Run the gateway, say where it is; time its callbacks between two lines of input, and tell them."""
    service = build(load_settings(Path(path), environ={}), Options(log_level="warning"))
    await service.start()
    loop, lines, turns = asyncio.get_running_loop(), asyncio.Queue[str](), Turns(above_ms)
    loop.add_reader(sys.stdin.fileno(), lambda: lines.put_nowait(sys.stdin.readline()))
    print(json.dumps([service.gateway_url, service.control_url]), flush=True)
    await lines.get()
    turns.start()
    await lines.get()
    turns.stop()
    print(json.dumps([turns.count, turns.longest, turns.long]), flush=True)
    await service.stop()


def measure(streams: int, seconds: float, above_ms: float) -> tuple[int, dict[str, float], dict[str, int]]:
    """Give what ``serve`` tells under load."""
    with (
        tempfile.TemporaryDirectory() as folder,
        speed_goals.child("engine", speed_goals.LIFE_S) as engine,
    ):
        path = Path(folder, "tidegate.yaml")
        free = {"listen": "127.0.0.1:0"}
        settings = speed_goals.settings_for(speed_goals.line(engine), seats=streams)
        path.write_text(json.dumps(settings | {"gateway": free, "control": free}))  # JSON is YAML
        command = [sys.executable, "-m", "benchmarks.turns", "--serve", str(path), "--above", str(above_ms)]
        with speed_goals.started(command) as gateway:
            url, control = json.loads(speed_goals.line(gateway))
            full = speed_goals.BUSY + speed_goals.WAITING
            with (
                speed_goals.child("streams", full, streams + speed_goals.WAITING, speed_goals.BUSY + streams, url) as s,
                speed_goals.dashboard(control, seconds),
            ):
                speed_goals.line(s)
                with speed_goals.child("refused", speed_goals.REFUSALS, seconds + 5, url) as refused:
                    speed_goals.line(refused)
                    time.sleep(3.0)
                    assert gateway.stdin is not None
                    print("start", file=gateway.stdin, flush=True)
                    for _ in range(round(seconds)):
                        time.sleep(1.0)
                        _read_page(control)
                    print("stop", file=gateway.stdin, flush=True)
                    count, longest, often = json.loads(speed_goals.line(gateway))
    return count, longest, often


def _read_page(control: str) -> None:
    with urllib.request.urlopen(f"{control}/metrics", timeout=30) as response:
        response.read()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=speed_goals.STREAMS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--above", type=float, default=LONG_MS, metavar="MS")
    parser.add_argument("--serve", metavar="CONFIG", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, options.above))
        return
    count, longest, often = measure(options.streams, options.seconds, options.above)
    table = Table("callback", "longest, ms of CPU", f"longer than {options.above:g} ms", title=f"{count} callbacks")
    for name, took_ms in sorted(longest.items(), key=lambda pair: -pair[1])[:20]:
        table.add_row(name, f"{took_ms:.2f}", str(often.get(name, 0)))
    Console().print(table)


if __name__ == "__main__":
    main()
