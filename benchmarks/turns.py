"""Which callbacks of the gateway keep its event loop for long, by their own CPU time.

``python -m benchmarks.turns [--streams N] [--seconds S] [--above MS]`` asks of the gateway what
``benchmarks.speed_goals stalls`` does: N streams of which some end and begin again, 1,000 refusals a second and an open
dashboard; besides, the page of metrics is read once a second. The gateway runs on asyncio's own loop, whose callbacks
can be timed one by one by the clock of their thread: whatever else the machine does is no part of it. Its transports
are Python there, so that reading and writing cost more than on the loop of ``tidegate serve``.

A timer is as late as the turn of the loop is long, and a turn may be many callbacks. So the longest turns are told by
the wall clock too, and what they are made of: CPU of the thread, its wait for a core that others use, and the rest,
in which it was blocked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import selectors
import sys
import tempfile
import time
import urllib.request
from asyncio.events import Handle
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from heapq import nlargest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import speed_goals
from tidegate.assembly import Options, build
from tidegate.config import load_settings

LONG_MS = 4.0
"""From here on a callback is told: a stall of the loop is to stay below 5 ms."""
LATE_MS = 5.0
"""A turn that takes longer is a stall by the goal."""
TOLD = 10
"""Most turns that are told one by one."""


@dataclass(slots=True)
class Turn:
    """One turn of the loop, from one look for what is ready to the next.

    Attributes:
        wall_ms, cpu_ms: how long it took, and what of it the thread ran.
        waited_ms: how long the thread was ready to run and others had the core (Linux; else 0).
        callbacks: how many ran in it.
        longest: the name of that which ran longest, and its CPU.
    """

    wall_ms: float
    cpu_ms: float
    waited_ms: float
    callbacks: int
    longest: str


class Ready(selectors.DefaultSelector):
    """Tells when a turn of the loop begins and ends."""

    turns: Turns | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See ``selectors``."""
        if self.turns is not None:
            self.turns.ends()
        found = super().select(timeout)
        if self.turns is not None:
            self.turns.begins()
        return found


class Turns:
    """Times the callbacks of asyncio's loop, and the runs of the garbage collector within them.

    Attributes:
        longest: by the callback's name, its longest run, ms.
        long: how often it ran longer than ``above_ms``.
        count: how many callbacks ran.
        late: the turns longer than ``LATE_MS``.
        collected: by generation, the length of each run of the garbage collector, ms.
    """

    def __init__(self, above_ms: float, ready: Ready) -> None:
        self.above_ms = above_ms
        self.late: list[Turn] = []
        self.turns = 0
        self.collected: defaultdict[int, list[float]] = defaultdict(list)
        self._ready = ready
        self._begun = (0.0, 0.0, 0, 0)
        self._most = (0.0, "")
        with contextlib.suppress(OSError):
            self._sched = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
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
            if took_ms > turns._most[0]:
                turns._most = (took_ms, name_of(call))
            if took_ms > 0.5:
                turns.note(name_of(call), took_ms)

        Handle._run = timed  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collected)
        self.begins()
        self._ready.turns = self

    def stop(self) -> None:
        """Time no more."""
        self._ready.turns = None
        Handle._run = self._run  # type: ignore[method-assign]
        gc.callbacks.remove(self._collected)

    def begins(self) -> None:
        """Begin a turn."""
        self._most = (0.0, "")
        self._begun = (time.perf_counter(), time.thread_time(), self._waited_ns(), self.count)

    def ends(self) -> None:
        """End it."""
        at, cpu, waited, count = self._begun
        wall_ms = (time.perf_counter() - at) * 1e3
        self.turns += 1
        if wall_ms > LATE_MS:
            cpu_ms, waited_ms = (time.thread_time() - cpu) * 1e3, (self._waited_ns() - waited) / 1e6
            most = f"{self._most[1]} ({self._most[0]:.1f} ms)"
            self.late.append(Turn(wall_ms, cpu_ms, waited_ms, self.count - count, most))

    def told(self) -> dict[str, Any]:
        """Give all of it as JSON takes it."""
        late = nlargest(TOLD, self.late, key=lambda turn: turn.wall_ms)
        own = sum(turn.cpu_ms > LATE_MS for turn in self.late)
        runs = {
            generation: [len(ms), sum(ms), *(sorted(ms)[int(part * (len(ms) - 1))] for part in (0.5, 0.99, 1))]
            for generation, ms in sorted(self.collected.items())
        }
        return {
            "count": self.count,
            "longest": self.longest,
            "long": self.long,
            "turns": self.turns,
            "late": len(self.late),
            "own": own,
            "worst": [asdict(turn) for turn in late],
            "collected": runs,
        }

    def _waited_ns(self) -> int:
        return int(os.pread(self._sched, 100, 0).split()[1]) if hasattr(self, "_sched") else 0

    def note(self, name: str, took_ms: float) -> None:
        """Keep a run."""
        self.longest[name] = max(self.longest[name], took_ms)
        self.long[name] += took_ms > self.above_ms

    def _collected(self, phase: str, told: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_began = time.thread_time()
        else:
            took_ms = (time.thread_time() - self._gc_began) * 1e3
            self.collected[told["generation"]].append(took_ms)
            self.note(f"garbage collector, generation {told['generation']}", took_ms)


def name_of(call: Any) -> str:
    """Say what a callback does: whose step of which task, or which function."""
    task: Any = getattr(call, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        return f"task {getattr(coroutine, '__qualname__', type(coroutine).__name__)}"
    if hasattr(task, "get_protocol"):
        return f"{call.__name__} of {type(task.get_protocol()).__name__}"
    return str(getattr(call, "__qualname__", repr(call)))


async def serve(path: str, above_ms: float, ready: Ready) -> None:
    """Run the gateway, say where it is; time its callbacks between two lines of input, and tell them."""
    service = build(load_settings(Path(path), environ={}), Options(log_level="warning"))
    await service.start()
    loop, lines, turns = asyncio.get_running_loop(), asyncio.Queue[str](), Turns(above_ms, ready)
    loop.add_reader(sys.stdin.fileno(), lambda: lines.put_nowait(sys.stdin.readline()))
    print(json.dumps([service.gateway_url, service.control_url]), flush=True)
    await lines.get()
    turns.start()
    await lines.get()
    turns.stop()
    print(json.dumps(turns.told()), flush=True)
    await service.stop()


def measure(streams: int, seconds: float, above_ms: float) -> dict[str, Any]:
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
                    found: dict[str, Any] = json.loads(speed_goals.line(gateway))
    return found


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
        ready = Ready()
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ready)) as runner:
            runner.run(serve(options.serve, options.above, ready))
        return
    found = measure(options.streams, options.seconds, options.above)
    console = Console()
    above = f"longer than {options.above:g} ms"
    table = Table("callback", "longest, ms of CPU", above, title=f"{found['count']} callbacks")
    for name, took_ms in sorted(found["longest"].items(), key=lambda pair: -pair[1])[:20]:
        table.add_row(name, f"{took_ms:.2f}", str(found["long"].get(name, 0)))
    console.print(table)
    for generation, (count, total, p50, p99, most) in found["collected"].items():
        lengths = f"p50 {p50:.2f}, p99 {p99:.2f}, longest {most:.2f} ms"
        console.print(f"garbage collector, generation {generation}: {count} runs, {total:.0f} ms in all, {lengths}")
    title = (
        f"{found['late']} of {found['turns']} turns longer than {LATE_MS:g} ms, {found['own']} of them by their own CPU"
    )
    table = Table("turn, ms", "CPU", "waited for a core", "blocked", "callbacks", "longest of them", title=title)
    for turn in found["worst"]:
        wall, cpu, waited = turn["wall_ms"], turn["cpu_ms"], turn["waited_ms"]
        times = (wall, cpu, waited, max(0.0, wall - cpu - waited))
        table.add_row(*(f"{ms:.1f}" for ms in times), str(turn["callbacks"]), turn["longest"])
    console.print(table)


if __name__ == "__main__":
    main()
