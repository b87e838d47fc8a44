"""Where the gateway's time goes: samples of its stack under plain requests, by part, and a flame graph.

``PYTHONPATH=build/compiled python -m benchmarks.parts [FLAME.svg]`` runs the gateway as ``benchmarks.bytepath`` does,
has py-spy look at it 500 times a second, and prints µs of CPU by part; without the path, those of the interpreted
gateway. A sample counts for the innermost frame that is ours, so that what a library does on our behalf stands with
whoever called it.
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
from benchmarks.flame import drawn, is_kernel, legible_frame, tree
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
    "backends": "backend's side",
    "gateway": "forwarding",
}
"""Beginnings of modules, and what they belong to; of those that fit, the longest counts."""

_OURS = re.compile(r"\(.*tidegate/(?P<file>[\w/]+)\.py|^CPy(?:Def|Py)_tidegate___(?P<room>\w+?)___(?P<module>\w+?)___")
_WAITING = re.compile(r"epoll_p?wait|_worker\b")
"""Frames of a thread that has nothing to do; the kernel's work for such a call counts with them."""


def part_of(frames: Sequence[str]) -> str:
    """Name the part that a stack belongs to: outermost frame first.

    A frame is ``name (path:line)``, or of compiled code its function's name.
    """
    for frame in reversed(frames):
        found = _OURS.search(frame)
        module = "" if found is None else found["file"] or f"{found['room']}/{found['module']}"
        fits = [start for start in PARTS if module.startswith(start)]
        if fits:
            return PARTS[max(fits, key=len)]
    return LOOP


def busy(lines: Iterable[str]) -> list[tuple[list[str], int]]:
    """Read collapsed stacks, ``outer;…;inner COUNT``, but for those of threads that wait.

    What does not end in a count is left out: a name may be any text, one of several lines too.
    """
    split = (line.rpartition(" ") for line in lines)
    found = [(stack.split(";"), int(count)) for stack, _, count in split if count.isdecimal()]
    return [(frames, count) for frames, count in found if not _WAITING.search(";".join(frames[-9:]))]


def shares(stacks: Iterable[tuple[Sequence[str], int]]) -> Counter[str]:
    """Count samples by part."""
    found: Counter[str] = Counter()
    for frames, count in stacks:
        found[part_of(frames)] += count
    return found


def drawing(stacks: Iterable[tuple[Sequence[str], int]]) -> str:
    """Return the flame graph of samples as SVG."""
    named = []
    for frames, count in stacks:
        shown = (
            (legible_frame(frame), "kernel" if is_kernel(frame) else part_of(frames[: place + 1]))
            for place, frame in enumerate(frames)
        )
        named.append(([(name, part) for name, part in shown if name is not None], count))
    return drawn(tree(named), "A plain request through tidegate: CPU by function")


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
                _record(spy, pid, raw)
        stacks = busy(legible(raw).splitlines())
    if flame is not None:
        Path(flame).write_text(drawing(stacks))
    found = shares(stacks)
    table = Table("part", "share", "µs", title=f"a plain request: {plain_us:.0f} µs of CPU; {found.total()} samples")
    for name, count in found.most_common():
        table.add_row(name, f"{count / found.total():.0%}", f"{plain_us * count / found.total():.0f}")
    Console().print(table)


def legible(file: Path) -> str:
    """Read what the sampler wrote: names that it read while they changed hold bytes that are no text."""
    text = file.read_text(errors="replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def _record(spy: Path, pid: int, to: Path) -> None:
    options = ["--rate", str(RATE), "--duration", str(SECONDS), "--format", "raw", "--full-filenames", "--native"]
    subprocess.run(
        [str(spy), "record", "--pid", str(pid), *options, "--output", str(to)], check=True, capture_output=True
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
