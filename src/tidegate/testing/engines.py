"""Real engines as processes, for tests: start, wait until they answer, read their metrics, end them with all children.

An engine runs in a session of its own, with lowered priority unless told otherwise, on a free port of the loopback
address. It is ended by process group, and by force if it does not obey; a process of its session that is left after
that is an error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class EngineServer:
    """A running engine.

    Attributes:
        kind: as in the settings: ``vllm``, ``llamacpp``, ``tidegate``.
        url: its root.
        pid: of the first process, and number of its session and process group.
        log: file with everything it printed.
    """

    kind: str
    url: str
    pid: int
    log: Path

    def metrics(self) -> dict[str, float]:
        """Scrape once: samples by ``name{labels}``."""
        lines = self.get("/metrics").decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def total(self, name: str) -> float:
        """Add up the samples of one metric.

        Raises:
            KeyError: it has none.
        """
        found = [value for sample, value in self.metrics().items() if sample.partition("{")[0] == name]
        if not found:
            raise KeyError(f"{self.kind} has no metric {name}")
        return sum(found)

    def get(self, path: str) -> bytes:
        """Get a page.

        Raises:
            OSError: no answer within 10 s, or one with a status of 400 and above.
        """
        with urllib.request.urlopen(self.url + path, timeout=40) as response:  # noqa: S310 - our own url
            body: bytes = response.read()
            return body

    def members(self) -> list[int]:
        """Ids of the processes of its session that are alive."""
        return _members(self.pid)


@contextlib.contextmanager
def engine_server(
    command: Sequence[str],
    *,
    kind: str,
    log: Path,
    environ: Mapping[str, str] | None = None,
    start_s: float = 120.0,
    stop_s: float = 5.0,
    nice: int = 5,
) -> Iterator[EngineServer]:
    """Run an engine until the block is left.

    Args:
        command: the command line; ``{port}`` in a word stands for a free port.
        kind: what it is.
        log: file for its output.
        environ: added to the environment.
        start_s: how long it may take until ``/health`` answers 200, seconds.
        stop_s: how long it may take to obey SIGTERM, seconds.
        nice: how much it gives way to others on the machine; benchmarks, whose figures are its speed, say 0.

    Raises:
        RuntimeError: it ended or did not answer in time (the message holds its last words), or left a process.
    """
    words = ["nice", "-n", str(nice), *command]
    server, process = _start(words, kind=kind, log=log, environ=environ or {})
    try:
        try:
            _wait_for_health(server, process, start_s)
        except RuntimeError:
            if process.poll() is None:
                raise
            # Its port may have been taken between our look and its own: once more, with another one.
            _end(process, stop_s)
            server, process = _start(words, kind=kind, log=log, environ=environ or {})
            _wait_for_health(server, process, start_s)
        yield server
    finally:
        _end(process, stop_s)


def _start(
    command: Sequence[str], *, kind: str, log: Path, environ: Mapping[str, str]
) -> tuple[EngineServer, subprocess.Popen[bytes]]:
    port = _free_port()
    words = [word.replace("{port}", str(port)) for word in command]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - a command of our own
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environ},
            start_new_session=True,
        )
    return EngineServer(kind, f"http://127.0.0.1:{port}", process.pid, log), process


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _wait_for_health(server: EngineServer, process: subprocess.Popen[bytes], start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            server.get("/health")
            return
        time.sleep(_LOOK_S)
    words = server.log.read_text(errors="replace")[-2000:]
    how = "did not answer" if process.poll() is None else f"ended with status {process.returncode}"
    raise RuntimeError(f"{server.kind} {how}: {words}")


def _end(process: subprocess.Popen[bytes], stop_s: float) -> None:
    """End the whole session: politely, then by force; wait until nothing of it is left."""
    for number, patience_s in ((signal.SIGTERM, stop_s), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            process.poll()
            left = _members(process.pid)
            if not left:
                process.wait()
                return
            time.sleep(_LOOK_S)
        for member in left:  # one that made itself a group of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, number)
    raise RuntimeError(f"processes of an engine are left: {_members(process.pid)}")


def _members(session: int) -> list[int]:
    """Processes of a session, from /proc; zombies do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its_session) == session and state not in "ZX":
                    found.append(int(entry.name))
    return found
