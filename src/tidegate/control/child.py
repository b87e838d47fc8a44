"""Run ``tidegate simulate`` as a child process: the gateway itself never holds the simulator.

The child has the lowest priority, a bounded time and a folder of its own that goes away with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

TIMEOUT_S = 20.0
LEAST_PRIORITY = 19
MOST_OUTPUT = 16 * 1024 * 1024


class ChildError(Exception):
    """The child did not answer; the message says why, for people."""


async def simulate(scenario: str, traces: dict[str, str]) -> dict[str, Any]:
    """Run a scenario and return its report.

    Args:
        scenario: text of the file.
        traces: texts of the traces by the names that the scenario gives them.

    Raises:
        ChildError: it cannot be run, failed, or took more than ``TIMEOUT_S``.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-what-if-") as name:
        folder = Path(name)
        for file, text in {"what-if.yaml": scenario, **traces}.items():
            (folder / file).write_text(text, encoding="utf-8")
        words = (sys.executable, "-m", "tidegate", "simulate", str(folder / "what-if.yaml"))
        with (folder / "report.json").open("w+b") as report:
            said = await _run((*words, "--json", "--baseline", "none"), report.fileno())
            report.seek(0)
            written = report.read(MOST_OUTPUT)
    try:
        found: dict[str, Any] = msgspec.json.decode(written)
    except msgspec.DecodeError:
        first = said.decode(errors="replace").replace(name + os.sep, "").strip().partition("\n")[0]
        raise ChildError(first[:300] or "the simulator ended without a report") from None
    return found


async def _run(words: tuple[str, ...], output: int) -> bytes:
    """Run a command to its end, or for as long as it may; returns what it said on standard error."""
    child = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=asyncio.subprocess.PIPE
    )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child.pid, LEAST_PRIORITY)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, said = await child.communicate()
            return said
    except TimeoutError:
        raise ChildError(f"the simulator took more than {TIMEOUT_S:g} s") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
