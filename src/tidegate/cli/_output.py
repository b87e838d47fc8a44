"""How commands speak: results on standard output, what went wrong on standard error."""

from __future__ import annotations

import io
import os
import sys

import typer

from tidegate.config import ConfigError

FAILED = 1
INVALID = 2
"""Status for settings that cannot be used, as for a wrong option."""


def hold_descriptors() -> None:
    """Put the null device where standard input, output or error is closed: else the next socket or database is it.

    What prints to it would write there, and libuv ends the process when it closes one of them.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free


def spare_letters() -> None:
    """Print ``?`` for a letter that the terminal's encoding lacks: a report with one less is better than none."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def tell(error: Exception) -> None:
    """Print what went wrong, without a traceback."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        typer.echo(f"tidegate: {place}{error.strerror}", err=True)
    else:
        typer.echo(str(error) or type(error).__name__, err=True)


def status_of(error: Exception) -> int:
    """Exit status that goes with an error."""
    return INVALID if isinstance(error, ConfigError) else FAILED
