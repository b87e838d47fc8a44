"""``tidegate check``: judge a settings file without running it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tidegate.config import DEFAULT_PRESET, Settings, advice, load_settings

PLACEHOLDER = "http://127.0.0.1:8000"
"""Backend of a check without a file; nothing connects to it."""


def check(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="Settings file (YAML).")] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="Policy to start from; without a file, the policy to judge.")
    ] = None,
    seats: Annotated[int | None, typer.Option("--seats", min=1, help="Seats, when there is no file.")] = None,
) -> None:
    """Validate settings and warn of what is probably not meant.

    Ends with status 2 and every problem with its line when the settings cannot be used.
    """
    if config is None:
        settings = load_settings(None, environ=os.environ, backend_url=PLACEHOLDER, preset=preset, seats=seats)
    else:
        settings = load_settings(config, environ=os.environ, preset=preset)
    typer.echo(_summary(settings, str(config) if config else f"preset {preset or DEFAULT_PRESET}"))
    for path, text in advice(settings):
        typer.echo(f"warning: {path}: {text}")


def _summary(settings: Settings, name: str) -> str:
    policy = settings.policy
    seats = sum(backend.seats for model in settings.models for backend in model.backends)
    counts = (
        (len(settings.band_names), "band"),
        (len(settings.models), "model"),
        (seats, "seat"),
        (len(settings.tenants), "tenant"),
    )
    parts = ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    return f"{name}: valid; {policy.discipline} over {parts}"
