"""Commands of ours as separate processes, for tests on real sockets."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

_START_S = 40.0
_STOP_S = 5.0


@contextlib.contextmanager
def engine_process(**options: object) -> Iterator[str]:
    """Run ``tidegate engine`` on a free port of the loopback address; yields its root URL.

    Args:
        options: command line options by name, ``max_sequences=8`` for ``--max-sequences 8``.

    Raises:
        RuntimeError: it ended, or said no address within 40 s; its last words are in the message.
    """
    arguments = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "tidegate", "engine", "--listen", "127.0.0.1:0", *arguments]
    with running(command) as process:
        yield wait_for_line(process, "listening on ")


@contextlib.contextmanager
def running(command: list[str], environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with its output piped; stop it, by force if it does not obey, at the end."""
    process = subprocess.Popen(  # noqa: S603  (a command of our own)
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(environ or {})},
    )
    try:
        yield process
    finally:
        end(process)
        assert process.stdout is not None
        process.stdout.close()


def wait_for_line(process: subprocess.Popen[bytes], start: str, *, timeout_s: float = _START_S) -> str:
    """Read the process's output up to a line that starts with ``start``; return the rest of that line.

    Raises:
        RuntimeError: no such line came; the message holds what did.
    """
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + timeout_s
    seen = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                break
            data = os.read(descriptor, 65536)
            seen += data
            for line in seen.split(b"\n")[:-1]:
                if line.startswith(start.encode()):
                    return line[len(start) :].decode().strip()
            if not data:
                break
    raise RuntimeError(f"{' '.join(process.args)}: expected a line {start!r}, got {seen.decode(errors='replace')!r}")  # type: ignore[arg-type]


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to stop, and stop it by force if it has not obeyed within 5 s."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
