"""Machine instructions of user code for one plain request, by part: what a busy machine does not move.

``PYTHONPATH=build/compiled python -m benchmarks.instructions`` runs the gateway as ``benchmarks.bytepath`` does under
valgrind's callgrind (Debian: ``valgrind``). It is for the compiled build: what Python interprets has no names of its
own there, see ``benchmarks.steps`` for that. The kernel's share is not counted.

Instructions of a library (the interpreter's objects, msgspec, uvloop) are given to who called it, in proportion to the
number of calls; so parts are exact to some percent, the sum is exact. The garbage collector runs by time, and time
passes slowly under callgrind: it stands by itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import bytepath
from benchmarks.parts import PARTS

REQUESTS = 496
WARM_UP = 1_500
START_S = 180.0
COLLECTOR = "garbage collector"
REST = "event loop, parsers' own and the interpreter's frame"
ROUNDS = 200
"""Times that costs move from a function to its callers; chains of calls are shorter."""

_OURS = re.compile(r"CPy(?:Def|Py)_tidegate___(\w+?)___(\w+?)___")
_NAME = re.compile(r"\((\d+)\)(?: (.*))?$")

Calls = dict[str, Counter[str]]


def main() -> None:
    """Count and print."""
    if shutil.which("valgrind") is None:
        raise SystemExit("expected valgrind (Debian: apt-get install valgrind), found none")
    own, calls = counted()
    table = Table("part", "instructions", title="a plain request, user code")
    found = parts(own, calls)
    for name, number in found.most_common():
        table.add_row(name, f"{number / REQUESTS:,.0f}")
    table.add_row("all", f"{sum(own.values()) / REQUESTS:,.0f}")
    Console().print(table)


def counted() -> tuple[Counter[str], Calls]:
    """Run the gateway; return each function's own instructions, and by callee how often which caller called it."""
    with tempfile.TemporaryDirectory() as folder, bytepath.stub() as engine:
        out = Path(folder, "callgrind")
        tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        bytepath.START_S = START_S

        def command(port: int, backend: str) -> list[str]:
            return [*tool, *bytepath.serve_command(Path(folder), port, backend)]

        with bytepath.proxy(command, engine) as (pid, url):
            bytepath.plain_us(pid, url, WARM_UP)
            _control(pid, "--instr=on")
            bytepath.plain_us(pid, url, REQUESTS)
            _control(pid, "--instr=off")
            _control(pid, "--dump")
        with max(Path(folder).glob("callgrind.*"), key=lambda path: path.stat().st_size).open() as lines:
            return read(lines)


def read(lines: Iterable[str]) -> tuple[Counter[str], Calls]:
    """Read what callgrind wrote (https://valgrind.org/docs/manual/cl-format.html)."""
    names: dict[str, str] = {}
    own: Counter[str] = Counter()
    calls: Calls = defaultdict(Counter)
    function = callee = ""
    call = False

    def named(text: str) -> str:
        """Give a function's name without the count of its recursion; it is written out once, then by number."""
        found = _NAME.match(text)
        if found is None:
            return text.partition("'")[0]
        if found[2]:
            names[found[1]] = found[2].partition("'")[0]
        return names[found[1]]

    for line in map(str.strip, lines):
        if line.startswith("fn="):
            function = named(line[3:])
        elif line.startswith("cfn="):
            callee = named(line[4:])
        elif line.startswith("calls="):
            calls[callee][function] += int(line[6:].split()[0])
            call = True
        elif line and (line[0].isdigit() or line[0] in "+-*"):
            if not call:
                own[function] += int(line.split()[1])
            call = False
    return own, calls


def parts(own: Counter[str], calls: Calls) -> Counter[str]:
    """Give each part what its functions did, and what others did for them."""
    found: Counter[str] = Counter()
    moving: Counter[str] = own.copy()
    for _ in range(ROUNDS):
        arrives: Counter[str] = Counter()
        for function, cost in moving.items():
            callers, part = calls.get(function), part_of(function)
            if part is not None or not callers or cost < 1:
                found[part or REST] += cost
                continue
            total = callers.total()
            for caller, number in callers.items():
                arrives[caller] += cost * number / total  # type: ignore[assignment]  # parts of instructions
        moving = arrives
    found[REST] += moving.total()
    return found


def part_of(function: str) -> str | None:
    """Name the part of a function of ours; ``None``: it belongs to who called it."""
    if function.startswith("gc_collect"):
        return COLLECTOR
    ours = _OURS.match(function)
    if ours is None:
        return None
    fits = [start for start in PARTS if f"{ours[1]}/{ours[2]}".startswith(start)]
    return PARTS[max(fits, key=len)] if fits else REST


def _control(pid: int, what: str) -> None:
    subprocess.run(["callgrind_control", what, str(pid)], check=True, capture_output=True)


if __name__ == "__main__":
    main()
