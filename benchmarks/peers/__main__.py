"""Measure every peer in turn, three times round, and print the medians."""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import bytepath
from benchmarks.peers import functional
from benchmarks.peers.commands import PEERS
from benchmarks.peers.install import DEBIAN, PACKAGES, NotThereError, version_of

ROUNDS = 3
START_S = 90.0
FAST = bytepath.Size(rounds=1, plain=8_000, streams=64, latency=500)
SLOW = {"litellm": bytepath.Size(rounds=1, plain=400, streams=8, latency=100)}


def main(names: list[str]) -> None:
    """Measure ``names``, or all."""
    unknown = sorted(set(names) - set(PEERS))
    if unknown:
        raise SystemExit(f"expected some of {', '.join(PEERS)}; got {', '.join(unknown)}")
    chosen = [name for name in PEERS if not names or name in names]
    found: dict[str, list[bytepath.Figures]] = {name: [] for name in chosen}
    absent: dict[str, str] = {}
    bytepath.START_S = START_S
    console = Console()
    with Progress(console=console) as progress:
        task = progress.add_task("peers", total=ROUNDS * len(chosen))
        for _ in range(ROUNDS):
            for name in chosen:
                progress.update(task, description=name)
                if name not in absent:
                    problem = _measure(name, found[name])
                    if problem:
                        absent[name] = problem
                progress.advance(task)
    console.print(_table(found, absent))


def _measure(name: str, found: list[bytepath.Figures]) -> str:
    """Measure one; give what kept it from being measured twice: somebody may have been faster to take its port."""
    told = ""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found.append(bytepath.measure(partial(PEERS[name], Path(folder)), SLOW.get(name, FAST)))
                return ""
            except (NotThereError, RuntimeError) as problem:
                told = str(problem)
    return told


def _table(found: dict[str, list[bytepath.Figures]], absent: dict[str, str]) -> Table:
    table = Table(title=f"one core each, medians of {ROUNDS} rounds; CPU in µs, added latency in ms")
    for column in ("gateway", "version", "plain request, 2 KB", "streamed piece", "added p50", "added p99"):
        table.add_column(column, justify="left" if column in ("gateway", "version") else "right")
    for name, figures in found.items():
        version = version_of(name) if name in PACKAGES or (name in DEBIAN and name not in absent) else ""
        if name in absent or not figures:
            table.add_row(name, version, f"not measured: {absent.get(name, '')[:60]}", "", "", "")
            continue
        table.add_row(
            name,
            version,
            f"{_median([each.plain_us for each in figures]):.0f}",
            f"{_median([each.chunk_us for each in figures]):.1f}",
            f"{_median([each.proxied_p50_ms - each.direct_p50_ms for each in figures]):.2f}",
            f"{_median([each.proxied_p99_ms - each.direct_p99_ms for each in figures]):.2f}",
        )
    return table


def _median(values: list[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    if sys.argv[1:2] == ["functional"]:
        functional.main(sys.argv[2:])
    else:
        main(sys.argv[1:])
