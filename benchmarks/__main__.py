"""Run every benchmark and print one table. ``python -m benchmarks [--record] [NAME …]`` runs only those named.

Ratios that moved by more than a tenth since the last recorded run are told; ``--record`` makes this run that one.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks import _ratios

Row = tuple[str, str, str]


def names() -> Iterator[str]:
    """Every module here that is not private; those without ``run`` are helpers of others."""
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if not module.name.startswith("_"):
            yield module.name


def rows_of(name: str) -> tuple[list[Row], bool]:
    """Run one module. A failure becomes a row, so that nothing is left out of the table unseen."""
    try:
        module = importlib.import_module(f"benchmarks.{name}")
        return (list(module.run()) if hasattr(module, "run") else []), True
    except Exception as error:  # noqa: BLE001 - the top of one benchmark
        traceback.print_exc()
        return [(name, f"failed: {error}", "")], False


def main(wanted: list[str]) -> int:
    """Print the table; 1 when a benchmark failed, 2 when one that is named does not exist."""
    known = list(names())
    keep = "--record" in wanted
    wanted = [name for name in wanted if name != "--record"]
    unknown = set(wanted) - set(known)
    if unknown:
        print(f"expected some of {', '.join(known)}; came {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    # Told because it matters: whatever else runs raises figures of CPU time too (caches, switches).
    load, cores = os.getloadavg()[0], os.cpu_count()
    table = Table("what", "figure", "goal", caption=f"load average before the start: {load:.1f} on {cores} cores")
    good = True
    for name in wanted or known:
        rows, passed = rows_of(name)
        good = good and passed
        for row in rows:
            table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for name, before, now in _ratios.moved(_ratios.noted, _ratios.recorded()):
        console.print(f"moved: {name}: {before:.2f} -> {now:.2f} ({now / before - 1:+.0%})")
    if keep:
        _ratios.record(_ratios.noted)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
