"""What Python does for one plain request: its calls and its steps (bytecodes) by part.

Counted and not timed, so that neither the machine nor what else it does moves the figures.
``python -m benchmarks.steps`` runs the gateway in this process, with the settings of ``benchmarks.bytepath``, in front
of its stub engine.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import _ratios, bytepath
from benchmarks.load import connect
from benchmarks.parts import LOOP, part_of
from tidegate.assembly import Options, build
from tidegate.config import load_settings

WARM_UP = 200
"""Requests before the counting: what is remembered, is then, and the estimates have settled."""
REQUESTS = 1
ROUNDS = 300
"""Of which the one with the fewest steps counts: timers that ring meanwhile are no part of a request."""

Counts = Counter[str]


def count() -> tuple[Counts, Counts]:
    """Return calls and steps of ``REQUESTS`` requests, each by part."""
    with tempfile.TemporaryDirectory() as folder, bytepath.stub() as engine:
        return asyncio.run(_count(Path(folder), engine))


async def _count(folder: Path, engine: str) -> tuple[Counts, Counts]:
    *_, path = bytepath.serve_command(folder, 0, engine)
    service = build(load_settings(Path(path), environ={}), Options(log_level="warning"))
    await service.start()
    try:
        client = await connect(service.gateway_url, stream=False)
        for _ in range(WARM_UP):
            await client.ask()
        rounds = []
        for _ in range(ROUNDS):
            with _counting() as counts:
                for _ in range(REQUESTS):
                    await client.ask()
            rounds.append(counts)
        client.transport.close()
    finally:
        await service.stop()
    return min(rounds, key=lambda counts: counts[1].total())


@contextmanager
def _counting() -> Iterator[tuple[Counts, Counts]]:
    """Count what runs in this thread meanwhile and is the gateway's."""
    calls, steps, parts = Counts(), Counts(), dict[str, str]()

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        part = parts.get(name := _file(frame))
        if part is None:
            part = parts[name] = part_of([f"({name}:1)"])
        if part == LOOP:
            return None
        if event == "call":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            calls[part] += 1
        elif event == "opcode":
            steps[part] += 1
        return trace

    sys.settrace(trace)
    try:
        yield calls, steps
    finally:
        sys.settrace(None)


def _file(frame: FrameType) -> str:
    """Name the file of a function; of one that was written by ``dataclass`` that of its caller."""
    name = frame.f_code.co_filename
    if name == "<string>" and frame.f_back is not None:
        return frame.f_back.f_code.co_filename
    return name


def run() -> list[tuple[str, str, str]]:
    """Give one row of all parts together, and note it for the next run."""
    calls, steps = count()
    _ratios.note("Python steps of a plain request, thousands", steps.total() / REQUESTS / 1000)
    figure = f"{calls.total() / REQUESTS:.0f} calls, {steps.total() / REQUESTS:.0f} steps"
    return [("tidegate serve: what Python does for a plain request", figure, "")]


def main() -> None:
    """Count and print."""
    calls, steps = count()
    table = Table("part", "calls", "steps", title="Python for a plain request")
    for name, number in steps.most_common():
        table.add_row(name, f"{calls[name] / REQUESTS:.0f}", f"{number / REQUESTS:.0f}")
    table.add_row("all", f"{calls.total() / REQUESTS:.0f}", f"{steps.total() / REQUESTS:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
