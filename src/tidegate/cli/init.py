"""``tidegate init``: write a commented settings file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli._output import FAILED, INVALID
from tidegate.config import DEFAULT_PRESET, nearest, preset_names, preset_text


def init(
    preset: Annotated[
        str, typer.Option("--preset", help="Policy to start from: flash-sale, kv-guard, shared-platform, strict.")
    ] = DEFAULT_PRESET,
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write; - for standard output.")] = Path(
        "tidegate.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented settings file that holds a whole preset and loads as it is."""
    names = preset_names()
    if preset not in names:
        hint = f"; did you mean {close!r}?" if (close := nearest(preset, names)) else ""
        typer.echo(f"--preset: expected one of {', '.join(names)}, got {preset!r}{hint}", err=True)
        raise typer.Exit(INVALID)
    if str(output) == "-":
        typer.echo(preset_text(preset), nl=False)
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(preset_text(preset))
    except FileExistsError:
        typer.echo(f"tidegate: {output} is there already; --force replaces it, --output names another", err=True)
        raise typer.Exit(FAILED) from None
    typer.echo(f"wrote {output} (preset {preset}); set your backend's url, then: tidegate serve -c {output}")
