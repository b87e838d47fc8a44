"""Where the gateway's time goes: samples of its stack under plain requests, by part, and a flame graph.

``python -m benchmarks.parts [FLAME.svg]`` runs the gateway as ``benchmarks.bytepath`` does, has py-spy look at it 500
times a second, and prints µs of CPU by part. A sample counts for the innermost frame that is ours or uvicorn's, so that
what a library does on our behalf stands with whoever called it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import bytepath
from benchmarks.peers.install import NotThereError, python_peer

RATE = 500
SECONDS = 12
MOST_REQUESTS = 1_000_000
LOOP = "event loop and kernel"
PARTS = {
    "classify": "classify, the rest",
    "classify/body": "parse and check",
    "classify/headers": "parse and check",
    "classify/identity": "who calls",
    "classify/estimates": "estimate",
    "core": "core",
    "runtime": "driver",
    "telemetry": "metrics",
    "telemetry/log": "log line",
    "gateway/call": "log line",
    "gateway/protocol": "client's side",
    "gateway/link": "client's side",
    "gateway/flow": "client's side",
    "gateway/cycle": "client's side",
    "gateway/eager": "client's side",
    "uvicorn": "client's side",
    "backends": "backend's side",
    "gateway": "forwarding",
}
"""Beginnings of modules, and what they belong to; of those that fit, the longest counts."""

_OURS = re.compile(r"\(.*/(?:tidegate/|(?=uvicorn/))([\w/]+)\.py")


def part_of(frames: Sequence[str]) -> str:
    """Name the part that a stack belongs to: outermost frame first, each as ``name (path:line)``."""
    for frame in reversed(frames):
        found = _OURS.search(frame)
        fits = [start for start in PARTS if found is not None and found[1].startswith(start)]
        if fits:
            return PARTS[max(fits, key=len)]
    return LOOP


def shares(lines: Iterable[str]) -> Counter[str]:
    """Count samples by part; ``lines`` are collapsed stacks, ``outer;…;inner COUNT``.

    What does not end in a count is left out: a name may be any text, one of several lines too.
    """
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if count.isdecimal():
            found[part_of(stack.split(";"))] += int(count)
    return found


def main(flame: str | None = None) -> None:
    """Measure and print; write the flame graph to the file ``flame``."""
    try:
        spy = python_peer("py-spy") / "py-spy"
    except NotThereError as problem:
        raise SystemExit(f"py-spy cannot be installed: {problem}") from problem
    with tempfile.TemporaryDirectory() as folder, bytepath.stub() as engine:
        raw = Path(folder, "raw")
        with bytepath.proxy(lambda port, to: bytepath.serve_command(Path(folder), port, to), engine) as (pid, url):
            plain_us = min(bytepath.plain_us(pid, url, 8_000) for _ in range(3))
            with bytepath.loading(MOST_REQUESTS, url):
                _record(spy, pid, raw, "raw")
                if flame is not None:
                    _record(spy, pid, Path(flame), "flamegraph")
                    Path(flame).write_text(titled(legible(Path(flame))))
        found = shares(legible(raw).splitlines())
    table = Table("part", "share", "µs", title=f"a plain request: {plain_us:.0f} µs of CPU; {found.total()} samples")
    for name, count in found.most_common():
        table.add_row(name, f"{count / found.total():.0%}", f"{plain_us * count / found.total():.0f}")
    Console().print(table)


def legible(file: Path) -> str:
    """Read what the sampler wrote: names that it read while they changed hold bytes that are no text."""
    text = file.read_text(errors="replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def titled(svg: str) -> str:
    """Say in a flame graph what it shows; py-spy writes its command there, with the places of this machine."""
    return re.sub(r'(<text id="title"[^>]*>)[^<]*', r"\1A plain request through tidegate: CPU by function", svg)


def _record(spy: Path, pid: int, to: Path, form: str) -> None:
    options = ["--rate", str(RATE), "--duration", str(SECONDS), "--format", form]
    options.append("--full-filenames" if form == "raw" else "--function")
    command = [str(spy), "record", "--pid", str(pid), *options, "--output", str(to)]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
