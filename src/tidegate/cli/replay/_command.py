"""The ``replay`` command: options, progress, report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tidegate.cli._output import FAILED, INVALID
from tidegate.cli.load import Target
from tidegate.cli.replay._rehearsal import FAILURES, Rehearsal, Speech, at_speed
from tidegate.cli.report import need_page, page_of, result_data, show_result
from tidegate.cli.scenario import load_scenario
from tidegate.config import ExpectedError, parse_root_url
from tidegate.simulation import TraceError
from tidegate.simulation.claims import judge
from tidegate.simulation.report import ReportFold
from tidegate.simulation.run import TIDEGATE, Result, claims_of
from tidegate.simulation.scenario import NEVER, Scenario

MAX_LATE_S = 0.25
"""Lateness of this client above which its figures mean little."""

REACH_S = 10.0
"""Longest time that the first connection may take."""


def replay(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A file, or the name of a shipped scenario.")],
    url: Annotated[str, typer.Option("--url", help="Root of the gateway.")] = "http://127.0.0.1:8400",
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="[NAME=]KEY", help="Key for all, or for a tenant or band; may be repeated."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="[NAME=]MODEL", help="Model to ask for, or for one of the scenario's models."),
    ] = None,
    speed: Annotated[float, typer.Option("--speed", min=0.001, help="Times as fast as the scenario.")] = 1.0,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=1.0, help="Stop sending after that many seconds of this run.")
    ] = None,
    drain: Annotated[
        float | None, typer.Option("--drain", min=0.0, help="Seconds to wait for what is open then.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos/--no-ignore-eos", help="Ask for answers of the trace's length (vLLM).")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON and nothing else.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report with plots as one HTML page.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of all chance, in place of the file's.")] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option("--traces", metavar="DIR", envvar="TIDEGATE_TRACES", help="Folder of traces; may be repeated."),
    ] = None,
) -> None:
    """Send the load of a scenario to a live gateway in its own timing, and report as simulate does.

    Engines and policy of the scenario are not used: those of the gateway are what is rehearsed. Ends with status 1 when
    a claim fails or requests failed by a fault.
    """
    loaded = _shortened(load_scenario(scenario, traces=traces or (), seed=seed), speed, seconds, drain)
    rehearsal = Rehearsal(loaded, _target(url), _speech(loaded, url, key or [], model or [], ignore_eos=ignore_eos))
    if html is not None:
        need_page(html)
    _raise_file_limit()
    try:
        asyncio.run(_run(rehearsal, speed))
    except TraceError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(INVALID) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    result = _result(rehearsal, speed)
    late = rehearsal.late_p99_s()
    if html is not None:
        html.write_text(page_of(result), encoding="utf-8")
    if as_json:
        typer.echo(
            json.dumps(result_data(result) | {"client_late_p99_s": round(late, 6)}, ensure_ascii=False, indent=1)
        )
    else:
        show_result(Console(), result)
    if late > MAX_LATE_S:
        typer.echo(f"This machine was too busy: requests left up to {late:.2f} s late (99th percentile).", err=True)
    faults = {
        reason: count for reason, count in result.runs[TIDEGATE].total.refused.items() if reason.startswith(FAILURES)
    }
    if faults:
        typer.echo(_told(faults), err=True)
    if faults or not result.holds:
        raise typer.Exit(FAILED)


def _told(faults: Mapping[str, int]) -> str:
    """What failed otherwise than by policy, and what to do where that is plain."""
    text = f"Failed by a fault, not refused by policy: {sum(faults.values()):,}. See the refusals."
    if not {"http_404", "unknown_model"}.isdisjoint(faults):
        text += " Not found may mean the model: name one that the gateway and its engines have with --model."
    if not {"http_401", "unauthorized"}.isdisjoint(faults):
        text += " Give the key of a tenant with --key."
    return text


def _shortened(scenario: Scenario, speed: float, seconds: float | None, drain: float | None) -> Scenario:
    """The part of the scenario that is sent; both limits are seconds of the run."""
    duration = scenario.duration_s if seconds is None else min(scenario.duration_s, seconds * speed)
    rest = scenario.drain_s if drain is None else drain * speed
    if rest == NEVER:
        rest = 60.0 * speed
    return replace(scenario, duration_s=duration, drain_s=rest)


async def _run(rehearsal: Rehearsal, speed: float) -> None:
    await _reach(rehearsal.target)
    async with _shown(rehearsal, rehearsal.scenario.until_s / speed):
        await rehearsal.run(speed=speed)


async def _reach(target: Target) -> None:
    """End where nobody answers, instead of a whole rehearsal of connections that are refused."""
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
    except OSError as error:  # a time-out is one
        typer.echo(
            f"tidegate replay: no answer from {target.host}:{target.port}: {error or 'it took too long'}", err=True
        )
        raise typer.Exit(FAILED) from None
    writer.close()


def _result(rehearsal: Rehearsal, speed: float) -> Result:
    scenario = at_speed(rehearsal.scenario, speed)
    fold = ReportFold(scenario)
    for sent in rehearsal.sent:
        fold.add(sent.record())
    runs = {TIDEGATE: fold.close(TIDEGATE, scenario.until_s)}
    claims = [claim for claim in claims_of(scenario) if claim.runs == {TIDEGATE}]
    return Result(scenario, runs, tuple(judge(claim, runs) for claim in claims))


def _target(url: str) -> Target:
    try:
        parts = urlsplit(parse_root_url(url))
    except ExpectedError as error:
        raise typer.BadParameter(f"{error.expected}, got {url!r}", param_hint="--url") from None
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Target(parts.hostname or "", parts.port or (443 if tls else 80), tls)


def _speech(scenario: Scenario, url: str, keys: list[str], models: list[str], *, ignore_eos: bool) -> Speech:
    return Speech(
        urlsplit(url).netloc, _named(models), _named(keys), scenario.bands, ignore_eos=ignore_eos, seed=scenario.seed
    )


def _named(words: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` by name; one without a name is for all others."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        found[name if equals else "*"] = value if equals else word
    return found


def _raise_file_limit() -> None:
    """Each open request is a file; take as many as this process may have."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.asynccontextmanager
async def _shown(rehearsal: Rehearsal, seconds: float) -> AsyncIterator[None]:
    """Show how far it is on standard error while the block runs, when that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    columns: tuple[Any, ...] = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("sending", total=seconds)
        task = asyncio.create_task(_watch(rehearsal, progress, bar))
        try:
            yield
        finally:
            task.cancel()


async def _watch(rehearsal: Rehearsal, progress: Progress, bar: Any) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    while True:
        await asyncio.sleep(0.5)
        ended = sum(sent.ended_s is not None for sent in rehearsal.sent)
        progress.update(
            bar, completed=loop.time() - start, description=f"{len(rehearsal.sent):,} sent, {ended:,} ended"
        )
