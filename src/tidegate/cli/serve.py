"""``tidegate serve``: run the gateway until a signal says stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tidegate.assembly import Options, build
from tidegate.cli import _hangup
from tidegate.cli._worker_metrics import WorkerMetrics
from tidegate.cli._workers import Worker, judge, run_workers, stop_with_parent
from tidegate.config import Settings, load_settings
from tidegate.telemetry.log import Form


class Level(StrEnum):
    """Levels of log lines."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


def serve(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="Settings file (YAML).")] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="URL", help="Root URL of one backend, for any model.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="What runs behind --backend: vllm, sglang, llamacpp, openai, tidegate."),
    ] = None,
    seats: Annotated[
        int | None, typer.Option("--seats", min=1, help="How many requests --backend runs at a time.")
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="Policy to start from.")] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Address for clients; port 0 takes a free one.")
    ] = None,
    control_listen: Annotated[
        str | None, typer.Option("--control-listen", metavar="HOST:PORT", help="Address of the control port.")
    ] = None,
    event_log: Annotated[
        Path | None, typer.Option("--event-log", metavar="FILE", help="Write every scheduling event, for replay.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Processes that share the port, the seats and one order.")
    ] = 1,
    log_format: Annotated[Form, typer.Option("--log-format", help="Form of the log on standard error.")] = Form.JSON,
    log_level: Annotated[Level, typer.Option("--log-level", help="Least level that is logged.")] = Level.INFO,
) -> None:
    """Serve OpenAI-compatible clients in front of the backends.

    SIGTERM or Ctrl-C: running streams may finish within gateway.drain_timeout, what waits or is still arriving is
    answered with "draining". A second signal ends at once. SIGHUP: the settings file is read again and put in force
    whole, or the log says why not.
    """
    listens = {"gateway.listen": listen, "control.listen": control_listen}
    load = partial(
        load_settings,
        config,
        environ=os.environ,
        backend_url=backend,
        engine=engine,
        seats=seats,
        preset=preset,
        overrides={path: text for path, text in listens.items() if text is not None},
    )
    worker = Worker.here()
    settings = load()
    _allow_many_connections()
    if worker is None and workers > 1:
        judge(settings)
        asyncio.run(run_workers(settings, workers, sys.argv[1:]))
        return
    reload: Callable[[], Settings] | None = None if config is None else load
    if worker is not None:
        settings = worker.settings(settings)
        reload = None if config is None else lambda: worker.settings(load())
        event_log = event_log and event_log.with_name(f"{event_log.name}.{worker.index}")
    metrics = None if worker is None else worker.metrics()
    options = Options(
        event_log=event_log,
        log_form=log_format,
        log_level=log_level,
        reload=reload,
        listener=None if worker is None else worker.socket(),
        page=None if metrics is None else metrics.page_of,
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, options, metrics))


async def _serve(settings: Settings, options: Options, metrics: WorkerMetrics | None) -> None:
    service = build(settings, options)
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            service.hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, service.live.on_signal)
    if options.listener is not None:
        stop_with_parent(on_signal)
    await service.start()
    if _hangup.came():
        service.live.on_signal()
    if metrics is not None:
        await metrics.start()
    typer.echo(f"gateway listening on {service.gateway_url}")
    typer.echo(f"control listening on {service.control_url}")
    typer.echo(f"dashboard: {service.control_url}/")
    await stop.wait()
    await service.stop()
    if metrics is not None:
        metrics.close()


def _allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: each connection is a file, and 1,024 is a usual limit."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: about a tenth less CPU for each request. It is not needed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return factory
