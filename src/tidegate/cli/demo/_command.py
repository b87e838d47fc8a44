"""The ``demo`` command: both runs one after the other, then the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from tidegate.cli.demo._children import ChildError, free_ports, get, running, tail
from tidegate.cli.demo._load import Target, prepare, replay
from tidegate.cli.demo._plan import Timetable, timetable
from tidegate.cli.demo._record import Tally
from tidegate.cli.demo._report import Code, Result, RunReport, judge, report_run
from tidegate.cli.demo._screen import Screen, notes, show_result
from tidegate.cli.demo._setup import Ports, Setup, engine_arguments, fifo_setup, tidegate_setup


def demo(
    seconds: Annotated[float, typer.Option(min=1.0, max=600.0, help="Length of each of the two runs.")] = 33.0,
    seed: Annotated[int, typer.Option(help="Seed of the drawn arrivals, the prompts and the engine.")] = 1,
    stay: Annotated[bool, typer.Option("--stay", help="Leave engine and gateway running until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")] = False,
) -> None:
    """Overload a simulated engine, first through one FIFO queue, then through tidegate, and compare.

    Ends with code 0 when tidegate kept p0 in its target, 1 when it did not or a part failed, 3 without a verdict: this
    machine was too busy, or the runs too short.
    """
    console = Console(stderr=as_json)
    try:
        code = asyncio.run(_demo(console, seconds, seed=seed, stay=stay, as_json=as_json))
    except ChildError as error:
        console.print(f"tidegate demo: {error}", style="red", markup=False, highlight=False)
        code = Code.NOT_KEPT
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(130) from None
    raise typer.Exit(int(code))


async def _demo(console: Console, seconds: float, *, seed: int, stay: bool, as_json: bool) -> Code:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    plan = timetable(seconds, seed=seed)
    screen = Screen(seconds)
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as folder:
        work = Path(folder)
        with _shown(console, screen, quiet=as_json):
            fifo = await _run_fifo(work, plan, screen, seed=seed)
        async with contextlib.AsyncExitStack() as stack:
            with _shown(console, screen, quiet=as_json):
                ports = Ports(*free_ports(3))
                setup = tidegate_setup(ports)
                await stack.enter_async_context(_started(setup, ports, work, screen, seed=seed))
                after = await _measure(setup, ports, plan, screen, seed=seed)
            result = Result(fifo, after, judge(fifo, after), notes(fifo, after))
            _tell(console, result, work, as_json=as_json)
            if stay:
                await _stay(console, setup, ports)
    return result.verdict.code


def _tell(console: Console, result: Result, work: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result.as_dict(), ensure_ascii=False, indent=2))
    else:
        show_result(console, result)
    for run in (result.fifo, result.tidegate):
        if run.faults:
            console.print(f"\nLast words of the gateway ({run.name}):", style="red")
            console.print(tail(work / f"{run.name}.log"), markup=False, highlight=False)


async def _run_fifo(work: Path, plan: Timetable, screen: Screen, *, seed: int) -> RunReport:
    ports = Ports(*free_ports(3))
    setup = fifo_setup(ports)
    async with _started(setup, ports, work, screen, seed=seed):
        return await _measure(setup, ports, plan, screen, seed=seed)


@contextlib.asynccontextmanager
async def _started(setup: Setup, ports: Ports, work: Path, screen: Screen, *, seed: int) -> AsyncIterator[None]:
    """Run a fresh engine and a gateway with the setup's file."""
    screen.status = f"{setup.name}: starting the simulated engine and the gateway"
    file = work / f"{setup.name}.yaml"
    file.write_text(setup.text)
    engine = engine_arguments(ports, seed=seed)
    gateway = ("serve", "-c", str(file), "--log-level", "warning")
    async with (
        running("engine", *engine, port=ports.engine, path="/health", log=work / f"{setup.name}-engine.log"),
        running("gateway", *gateway, port=ports.gateway, path="/readyz", log=work / f"{setup.name}.log"),
    ):
        screen.status = f"dashboard: http://127.0.0.1:{ports.control}/"
        yield


async def _measure(setup: Setup, ports: Ports, plan: Timetable, screen: Screen, *, seed: int) -> RunReport:
    tally = Tally()
    prepared = prepare(plan.questions, Target(ports.gateway, setup.keys), seed=seed)
    loop = asyncio.get_running_loop()
    start = loop.time()
    screen.add_run(setup.name, tally, lambda: loop.time() - start)
    await replay(prepared, ports.gateway, tally, seconds=screen.seconds)
    _, stats = await get(ports.engine, "/sim/stats")
    lag = float(json.loads(stats)["lag_share"])
    return report_run(setup.name, tally.records, seconds=screen.seconds, lag=lag)


@contextlib.contextmanager
def _shown(console: Console, screen: Screen, *, quiet: bool) -> Iterator[None]:
    """Draw the screen while the block runs: live on a terminal, a line now and then elsewhere."""
    if quiet:
        yield
    elif console.is_terminal:
        with Live(screen, console=console, refresh_per_second=4, transient=True):
            yield
    else:
        task = asyncio.create_task(_lines(console, screen))
        try:
            yield
        finally:
            task.cancel()


async def _lines(console: Console, screen: Screen) -> None:
    while True:
        await asyncio.sleep(6)
        console.print(screen.line(), markup=False, highlight=False, soft_wrap=True)


async def _stay(console: Console, setup: Setup, ports: Ports) -> None:
    console.print(
        f"\nStill running until Ctrl-C:\n"
        f"  dashboard  http://127.0.0.1:{ports.control}/\n"
        f"  gateway    http://127.0.0.1:{ports.gateway}/v1\n"
        f"  metrics    http://127.0.0.1:{ports.control}/metrics\n"
        f"  engine     http://127.0.0.1:{ports.engine}\n"
        f"Ask something as checkout (p0):\n"
        f"  curl http://127.0.0.1:{ports.gateway}/v1/chat/completions -H 'authorization: Bearer {setup.keys[0]}' "
        f"-H 'content-type: application/json' "
        """-d '{"model": "demo", "messages": [{"role": "user", "content": "Is my order paid?"}]}'""",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    await asyncio.Event().wait()
