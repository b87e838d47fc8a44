"""``tidegate simulate``: run a scenario on a virtual clock, and say what its policy is worth."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tidegate.cli._output import FAILED, INVALID
from tidegate.cli.report import need_page, page_of, result_json, show_result
from tidegate.cli.scenario import GatewayEstimator, load_scenario, scenario_text, shipped_scenarios
from tidegate.simulation import TraceError
from tidegate.simulation.baselines import BASELINES
from tidegate.simulation.run import RUNS, Result, run_scenario
from tidegate.simulation.scenario import Scenario

NO_BASELINE = "none"


def simulate(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="A file, or the name of a shipped scenario.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON and nothing else.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report with plots as one HTML page.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of all chance, in place of the file's.")] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help=f"What runs beside it, not the file's: {', '.join(BASELINES)}, {NO_BASELINE}; may be repeated.",
        ),
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option("--traces", metavar="DIR", envvar="TIDEGATE_TRACES", help="Folder of traces; may be repeated."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the file of a shipped scenario, to start from.")] = False,
) -> None:
    """Run the gateway's scheduler over a scenario in virtual time, beside simpler ways, and judge its claims.

    Without a SCENARIO it lists those that ship. Ends with status 1 when a claim fails, 2 when the scenario cannot be
    used. The same seed gives the same bytes.
    """
    if scenario is None:
        _list()
        return
    if show:
        _show(scenario)
        return
    loaded = load_scenario(scenario, traces=traces or (), seed=seed)
    names = _baselines(baseline)
    if html is not None:
        need_page(html)
    try:
        result = _run(loaded, names)
    except TraceError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(INVALID) from None
    if html is not None:
        html.write_text(page_of(result), encoding="utf-8")
    if as_json:
        typer.echo(result_json(result))
    else:
        show_result(Console(), result)
    if not result.holds:
        raise typer.Exit(FAILED)


def _list() -> None:
    for name in shipped_scenarios():
        typer.echo(name)
    typer.echo(
        "\nRun one with `tidegate simulate NAME`; print its file with `tidegate simulate NAME --show`.", err=True
    )


def _show(name: str) -> None:
    try:
        typer.echo(scenario_text(name), nl=False)
    except KeyError:
        typer.echo(f"--show: expected one of {', '.join(shipped_scenarios())}, got {name!r}", err=True)
        raise typer.Exit(INVALID) from None


def _baselines(given: list[str] | None) -> list[str] | None:
    for name in given or ():
        if name not in (*RUNS[1:], NO_BASELINE):
            typer.echo(f"--baseline: expected one of {', '.join((*RUNS[1:], NO_BASELINE))}, got {name!r}", err=True)
            raise typer.Exit(INVALID)
    return None if given is None else [name for name in given if name != NO_BASELINE]


def _run(scenario: Scenario, baselines: list[str] | None) -> Result:
    with _progress(scenario.duration_s) as told:
        return run_scenario(scenario, estimator=GatewayEstimator, baselines=baselines, progress=told)


class _Bars:
    """A bar for each run, by virtual time."""

    def __init__(self, progress: Progress, total: float) -> None:
        self._progress, self._total = progress, total
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, run: str, now: float) -> None:
        if run not in self._tasks:
            for task in self._tasks.values():
                self._progress.update(task, completed=self._total)
            self._tasks[run] = self._progress.add_task(run, total=self._total)
        self._progress.update(self._tasks[run], completed=now)


@contextlib.contextmanager
def _progress(total: float) -> Iterator[_Bars | None]:
    """Show bars on standard error while the block runs, when that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bars(progress, total)
