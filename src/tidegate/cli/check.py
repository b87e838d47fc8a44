"""``tidegate check``: judge a settings file without running it.

The bounds and most warnings come from ``core.bounds``, which knows the rules; this module reads, asks and prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli._output import INVALID
from tidegate.config import DEFAULT_PRESET, ExpectedError, Settings, advice, load_settings, parse_positive_duration
from tidegate.core.bounds import LongestWait, findings, longest_waits
from tidegate.core.guard import guard_seats
from tidegate.core.policy import AUTO, Band, Policy
from tidegate.core.promises import reserve_of

PLACEHOLDER = "http://127.0.0.1:8000"
"""Backend of a check without a file; nothing connects to it."""

ASSUMED_SEATS = 64
"""What ``seats: auto`` is taken for where nobody says."""


def check(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="Settings file (YAML).")] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="Policy to start from; without a file, the policy to judge.")
    ] = None,
    seats: Annotated[
        int | None,
        typer.Option("--seats", min=1, help="Seats, when there is no file; with one, what `auto` stands for."),
    ] = None,
    service_time: Annotated[
        str, typer.Option("--service-time", metavar="TIME", help="Longest time that a request holds a seat.")
    ] = "10s",
    tenants: Annotated[
        int, typer.Option("--tenants", min=1, help="How many tenants have work in a band at a time.")
    ] = 1,
) -> None:
    """Validate settings, bound how long each band may wait, and warn of what is probably not meant.

    The bounds hold whatever waits elsewhere, while no request holds a seat longer than --service-time.
    Ends with status 2 and every problem with its line when the settings cannot be used.
    """
    try:
        service_s = parse_positive_duration(service_time)
    except ExpectedError as error:
        typer.echo(f"--service-time: {error}, got {service_time!r}", err=True)
        raise typer.Exit(INVALID) from None
    if config is None:
        settings = load_settings(None, environ=os.environ, backend_url=PLACEHOLDER, preset=preset, seats=seats)
    else:
        settings = load_settings(config, environ=os.environ, preset=preset)
    counts = _seats(settings, seats or ASSUMED_SEATS)
    typer.echo(_summary(settings, counts, str(config) if config else f"preset {preset or DEFAULT_PRESET}"))
    policy = settings.core_policy()
    for pools, count in _pools_by_seats(settings, counts):
        typer.echo(f"\n{pools}: the longest wait with {_counted(count, 'seat')}, each held for {service_s:g} s at most")
        for wait in longest_waits(policy, seats=count, service_s=service_s, tenants=tenants):
            typer.echo("\n".join(_bound(wait, tenants)))
        typer.echo("".join(f"  {line}\n" for line in _reserves(policy, count)), nl=False)
    warnings = _warnings(settings, counts, service_s, tenants)
    typer.echo("".join(f"\nwarning: {path}: {text}" for path, text in warnings) or "\nno warnings")


def _summary(settings: Settings, counts: list[int], name: str) -> str:
    parts = (
        _counted(len(settings.band_names), "band"),
        _counted(len(settings.models), "model"),
        _counted(sum(counts), "seat"),
        _counted(len(settings.tenants), "tenant"),
    )
    return f"{name}: valid; {settings.policy.discipline} over {', '.join(parts)}"


def _bound(wait: LongestWait, tenants: int) -> Iterator[str]:
    if wait.next_s is None:
        yield f"  {wait.band}  may wait for ever"
    else:
        fair = "" if tenants == 1 else f"{_time(wait.fair_s)} to a tenant's first among {tenants}, "
        yield f"  {wait.band}  {wait.next_s:g} s to the next dispatch, {fair}{_time(wait.full_s)} through a full band"
    for line in wait.lines:
        yield f"      {line}"


def _reserves(policy: Policy, seats: int) -> Iterator[str]:
    """Say of each automatic reserve how far it goes (SPEC §5.5): the load itself is measured while the gateway runs."""
    for index, band in enumerate(policy.bands[:-1]):
        if band.reserve != AUTO:
            continue
        most = reserve_of(band, seats)
        if not most:
            yield f"reserve: auto of {band.name} keeps no seat free: the pool has fewer than 8"
            continue
        enough = max(part for part in range(100) if not guard_seats(seats, seats * part / 100, 1.0)[1])
        then = "running work is stopped for it" if _stops(policy, band, index) else "it waits for seats"
        yield (
            f"reserve: auto of {band.name} keeps at most {most} of {seats} seats free, "
            f"enough while its work, arriving at random, takes up to {enough} % of the seats; beyond that {then}"
        )


def _stops(policy: Policy, band: Band, index: int) -> bool:
    on = band.may_preempt and policy.preempt_rate > 0 and policy.max_preemptions > 0
    return on and any(lower.preemptible for lower in policy.bands[index + 1 :])


def _time(seconds: float | None) -> str:
    return "no bound" if seconds is None else f"{seconds:g} s"


def _pools_by_seats(settings: Settings, counts: list[int]) -> list[tuple[str, int]]:
    """Pools with equal seats have equal bounds: name them together."""
    groups: dict[int, list[str]] = {}
    for model, seats in zip(settings.models, counts, strict=True):
        groups.setdefault(seats, []).append(model.pool)
    return [(f"pool{'s' * (len(names) > 1)} {', '.join(names)}", seats) for seats, names in groups.items()]


def _warnings(settings: Settings, counts: list[int], service_s: float, tenants: int) -> list[tuple[str, str]]:
    found, policy = advice(settings), settings.core_policy()
    for seats in dict.fromkeys(counts):
        judged = findings(policy, seats=seats, service_s=service_s, tenants=tenants)
        found += [(finding.field, finding.message) for finding in judged]
    return list(dict.fromkeys(found))


def _seats(settings: Settings, assumed: int) -> list[int]:
    """Seats of each pool; a backend that finds its own number counts as ``assumed``."""
    return [sum(assumed if b.seats == AUTO else b.seats for b in model.backends) for model in settings.models]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
