"""``serve --workers N``: several processes on one port, with one order, and no store to install.

The parent owns the socket that clients connect to, and the ledger, which it serves to its workers from a socket in a
folder that only this user can read. It carries no request. A worker that ends is started anew; while it is gone the
kernel gives connections to the others. When the parent dies, the workers' standard input ends, and so do they.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import typer

from tidegate.cli._worker_metrics import WorkerMetrics
from tidegate.config import Address, ClusterSettings, ConfigError, Problem, Settings
from tidegate.stores.ledger_socket import serve_ledger

ENVIRON = "TIDEGATE_WORKER"
BACKLOG = 4096
AGAIN_S = 0.2
AGAIN_LONGEST_S = 10.0
LIVED_S = 10.0
"""Who lived for so long is started anew without a pause."""


@dataclass(slots=True, frozen=True)
class Worker:
    """What a worker is told by its parent.

    Attributes:
        index: its number, from 0; that one has the control port of the settings.
        count: how many there are.
        listener: descriptor of the socket that clients connect to.
        ledger: socket of the ledger; empty where the settings name another store.
        pages: folder in which workers give each other their metrics.
    """

    index: int
    count: int
    listener: int
    ledger: str
    pages: str

    @classmethod
    def here(cls) -> Worker | None:
        """Return which worker this process is, ``None`` for none."""
        told = os.environ.pop(ENVIRON, "")
        return cls(**json.loads(told)) if told else None

    def settings(self, settings: Settings) -> Settings:
        """Return the settings of this worker."""
        host, port = settings.control.listen
        control = settings.control.model_copy(update={"listen": Address(host, port + self.index if port else 0)})
        cluster = settings.cluster
        if self.ledger:
            cluster = ClusterSettings(
                store=f"unix://{self.ledger}", replica=f"worker-{self.index}", first_share=Fraction(1, self.count)
            )
        elif cluster is not None and cluster.replica is not None:
            cluster = cluster.model_copy(update={"replica": f"{cluster.replica}-{self.index}"})
        return settings.model_copy(update={"control": control, "cluster": cluster})

    def metrics(self) -> WorkerMetrics:
        """Return what gathers the metrics of all workers."""
        return WorkerMetrics(self.pages, self.index, self.count)

    def socket(self) -> socket.socket:
        """Return the socket that clients connect to."""
        return socket.socket(fileno=self.listener)


def judge(settings: Settings) -> None:
    """Look whether several processes can work by these settings.

    Raises:
        ConfigError: a store is a file that one process has for itself.
    """
    stores = [("jobs.store", settings.jobs.store if settings.jobs else ""), ("control.store", settings.control.store)]
    expected = "expected a postgresql:// URL with --workers: a SQLite file is for one process"
    problems = [Problem(path, expected) for path, url in stores if url is not None and url.startswith("sqlite")]
    if problems:
        raise ConfigError(problems)


async def run_workers(settings: Settings, count: int, arguments: Sequence[str]) -> None:
    """Run workers until a signal says stop.

    Args:
        settings: in force at the start.
        count: of workers.
        arguments: of the command line, for each worker.

    Raises:
        OSError: the address is taken.
    """
    host, port = settings.gateway.listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server((host, port), family=family, backlog=BACKLOG))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-"))
        path = ""
        if settings.cluster is None:
            path = str(Path(folder, "ledger"))
            server = await serve_ledger(path)
            stack.push_async_callback(server.close)
        crew = _Crew(
            [Worker(index, count, listener.fileno(), path, folder) for index in range(count)],
            [sys.executable, "-m", "tidegate", *arguments],
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, crew.stop)
        loop.add_signal_handler(signal.SIGHUP, crew.reload)  # one before this is obeyed by reading the file first
        scheme = "http" if settings.gateway.tls is None else "https"
        typer.echo(f"gateway listening on {scheme}://{Address(host, listener.getsockname()[1])}")
        await crew.run()
    if crew.failed:
        raise typer.Exit(crew.failed)


class _Crew:
    """The workers' processes.

    Attributes:
        failed: exit status of a worker that could not begin at all; 0 without.
    """

    def __init__(self, workers: Sequence[Worker], command: Sequence[str]) -> None:
        self._workers = workers
        self._command = command
        self._alive: dict[int, asyncio.subprocess.Process] = {}
        self._serving: set[int] = set()
        self._to_reload: set[int] = set()
        self._stopping = asyncio.Event()
        self.failed = 0

    async def run(self) -> None:
        """Keep them running until they are to stop and have ended."""
        await asyncio.gather(*(self._keep(worker) for worker in self._workers))

    def stop(self) -> None:
        """Have them stop; a second time, at once."""
        self._stopping.set()
        for index in self._alive:
            self._send(index, signal.SIGTERM)

    def reload(self) -> None:
        """Have them read the file again. One that starts may have done so, and cannot obey yet: told later."""
        for worker in self._workers:
            if worker.index in self._serving:
                self._send(worker.index, signal.SIGHUP)
            else:
                self._to_reload.add(worker.index)

    def _send(self, index: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._alive[index].send_signal(number)

    async def _keep(self, worker: Worker) -> None:
        loop, pause_s, first = asyncio.get_running_loop(), AGAIN_S, True
        while not self._stopping.is_set():
            began = loop.time()
            status, served = await self._life(worker)
            if first and status and not served and not self._stopping.is_set():
                self.failed = self.failed or abs(status)  # it would fail again and again
                self.stop()
                return
            first = False
            if self._stopping.is_set():
                return
            typer.echo(f"worker {worker.index} ended with status {status} and is started anew", err=True)
            pause_s = AGAIN_S if loop.time() >= began + LIVED_S else min(AGAIN_LONGEST_S, 2 * pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _life(self, worker: Worker) -> tuple[int, bool]:
        """Run one process to its end; return its exit status, and whether it ever served."""
        told = json.dumps({name: getattr(worker, name) for name in Worker.__slots__})
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, ENVIRON: told},
            pass_fds=(worker.listener,),
        )
        self._alive[worker.index] = process
        if self._stopping.is_set():  # since the signal came while the process was made
            process.terminate()
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            self._serving.add(worker.index)
            if worker.index in self._to_reload:
                self._to_reload.discard(worker.index)
                self._send(worker.index, signal.SIGHUP)
            if worker.index == 0 and not text.startswith("gateway "):
                typer.echo(text)
            elif text.startswith("control "):
                typer.echo(f"worker {worker.index}: {text}", err=True)
        status = await process.wait()
        served = worker.index in self._serving
        del self._alive[worker.index]
        self._serving.discard(worker.index)
        return status, served


def stop_with_parent(stop: Callable[[], None]) -> None:
    """Stop this worker when its parent is gone; call it inside the loop."""

    def look() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            stop()

    loop = asyncio.get_running_loop()
    loop.add_reader(0, look)
