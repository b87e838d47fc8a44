"""``tidegate tune``: search a policy for a scenario, and print it as a settings file with what it gained."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidegate.cli._output import FAILED, INVALID
from tidegate.cli._tuning import Found, Guarantees, Outcome, Search, Space, Told, need_optimiser
from tidegate.cli.scenario import load_scenario, parse_scenario
from tidegate.cli.scenario._find import find_scenario
from tidegate.config import ExpectedError, parse_positive_duration
from tidegate.config.tree import read_text
from tidegate.simulation import TraceError
from tidegate.simulation.scenario import Scenario


def tune(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A file, or the name of a shipped scenario.")],
    runs: Annotated[int, typer.Option("--runs", min=10, help="About how many candidates are run.")] = 60,
    p0_wait: Annotated[
        str,
        typer.Option(
            "--wait", metavar="TIME", help="Guarantee: 99th percentile of the highest band's wait in the gateway."
        ),
    ] = "50ms",
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="TIME", help="Simulate only so much of the scenario each time.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the search and of the scenario's chance.")] = 1,
    traces: Annotated[
        list[Path] | None,
        typer.Option("--traces", metavar="DIR", envvar="TIDEGATE_TRACES", help="Folder of traces; may be repeated."),
    ] = None,
) -> None:
    """Search weights, aging, floors, cap, reserve and seats for the most value of answers in time.

    The floors of the scenario's policy are guaranteed and so is --wait. The best policy goes to standard output as
    a settings file; what it gained stands on top of it. Ends with status 1 when nothing keeps the guarantees. The same
    seed gives the same bytes.
    """
    need_optimiser()
    limit_s = _duration("--wait", p0_wait)
    length_s = None if duration is None else _duration("--duration", duration)
    path = find_scenario(scenario)
    text = read_text(path)

    def read(file: str) -> Scenario:
        made = parse_scenario(file, source=str(path), beside=path.parent, traces=traces or (), seed=seed)
        return made if length_s is None else replace(made, duration_s=min(length_s, made.duration_s))

    load_scenario(scenario, traces=traces or (), seed=seed)  # with its own lines in the errors, should there be any
    space = Space(read(text), text)
    try:
        with _progress(runs) as told:
            search = Search(space, Guarantees(limit_s), read, runs=runs, told=told)
            found = search.find(seed)
    except TraceError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(INVALID) from None
    if found is None:
        waits = f"{search.start.p0_wait_s * 1000:.3g} ms with the policy that the search began with"
        typer.echo(
            f"no candidate keeps the p0 wait within {p0_wait}: {waits}; try more --runs or a longer time", err=True
        )
        raise typer.Exit(FAILED)
    typer.echo(_header(found, space.start, p0_wait) + space.settings(found.point), nl=False)


def _header(found: Found, scenario: Scenario, p0_wait: str) -> str:
    before, after = found.start, found.outcome
    gain = f" ({(after.value / before.value - 1):+.1%})" if before.value else ""
    floors = ", ".join(f"{band.name} {float(band.floor):g}" for band in scenario.policy.bands if band.floor) or "none"
    lines = (
        *(["No candidate was better: this is the policy that the search began with."] if found.point is None else []),
        f"Tuned by `tidegate tune` on {scenario.name}, {found.runs} runs of {scenario.duration_s:g} s.",
        f"Value of answers in time, a second: {before.value:,.1f} before, {after.value:,.1f} now{gain}.",
        f"p0 wait p99: {_ms(before)} before, {_ms(after)} now; {p0_wait} is guaranteed, and floors: {floors}.",
        "Judge it with `tidegate check -c FILE` before it is used.",
    )
    return "".join(f"# {line}\n" for line in lines)


def _ms(outcome: Outcome) -> str:
    return f"{outcome.p0_wait_s * 1000:.3g} ms"


def _duration(option: str, text: str) -> float:
    try:
        return parse_positive_duration(text)
    except ExpectedError as error:
        typer.echo(f"{option}: {error}, got {text!r}", err=True)
        raise typer.Exit(INVALID) from None


@contextlib.contextmanager
def _progress(runs: int) -> Iterator[Told | None]:
    """Show a bar with the best so far on standard error, when that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("the policy as it is", total=runs)

        def told(count: int, _: Outcome, best: Outcome | None) -> None:
            text = "nothing keeps the guarantees yet" if best is None else f"best {best.value:,.1f} a second"
            progress.update(task, completed=min(count, runs), description=text)

        yield told
