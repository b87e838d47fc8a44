"""``tidegate serve`` as a separate process, for tests on real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_STOP_S = 2.0
_HURRY_S = 15.0


class GatewayProcess:
    """A running gateway.

    Attributes:
        url: where clients go.
        control: where metrics are.
        log: file with its log lines.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self.log = log
        self.url = self._line("gateway listening on ")
        self.control = self._line("control listening on ")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def metrics(self) -> dict[str, float]:
        """Scrape once: samples by ``name{labels}`` as they stand in the exposition."""
        lines = self._get("/metrics").decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def total(self, name: str, **labels: str) -> float:
        """Add up the samples of one metric that carry ``labels``."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for sample, value in self.metrics().items()
            if sample.partition("{")[0] == name and all(label in sample for label in wanted)
        )

    def state(self) -> dict[str, Any]:
        """What the scheduler says of itself."""
        found: dict[str, Any] = json.loads(self._get("/admin/state"))
        return found

    def requests(self) -> list[dict[str, Any]]:
        """The log lines of finished requests so far (written within a tenth of a second)."""
        return [line for line in self.lines() if line.get("event") == "request"]

    def lines(self) -> list[dict[str, Any]]:
        """All log lines so far but one that is being written just now."""
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end; return the exit status."""
        return self._process.wait(timeout_s)

    def _line(self, start: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(start):
            raise RuntimeError(f"expected a line {start!r}, got {line!r}; log: {self.log.read_text()}")
        return line[len(start) :].strip()

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.control + path, timeout=40) as response:  # noqa: S310 - our own url
            body: bytes = response.read()
            return body


@contextlib.contextmanager
def gateway_process(
    *arguments: str, config: str | None = None, environ: Mapping[str, str] | None = None
) -> Iterator[GatewayProcess]:
    """Run ``tidegate serve`` on free ports of the loopback address.

    Args:
        arguments: more of the command line, like ``"--backend", url``.
        config: text of a settings file.
        environ: added to the environment.

    Raises:
        RuntimeError: it ended, or said no address; the message holds its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        command = [sys.executable, "-m", "tidegate", "serve", "--listen", "127.0.0.1:0"]
        command += ["--control-listen", "127.0.0.1:0", *arguments]
        if config is not None:
            file = Path(folder, "tidegate.yaml")
            file.write_text(config, encoding="utf-8")
            command += ["-c", str(file)]
        with log.open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 - a command of our own
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environ or {})},
                text=True,
            )
        try:
            yield GatewayProcess(process, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Let what runs end for a moment, then not; a gateway that is busy with its end is not killed in the middle."""
    for number, patience_s in ((signal.SIGTERM, _STOP_S), (signal.SIGTERM, _HURRY_S), (signal.SIGKILL, None)):
        if process.poll() is None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
    assert process.stdout is not None
    process.stdout.close()
