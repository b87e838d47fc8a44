"""``tidegate keygen``: make a key for a tenant."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from tidegate.cli._output import INVALID
from tidegate.config import ANONYMOUS, ExpectedError, key_digest, parse_name

KEY_BYTES = 32
"""256 bits: guessing is hopeless, so the stored digest needs neither salt nor stretching."""

_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
"""What YAML reads as something else than text."""


def keygen(
    name: Annotated[str, typer.Option("--name", metavar="TENANT", help="Name of the tenant.")] = "my-tenant",
) -> None:
    """Print a new key, its digest, and the entry for the settings file.

    Only the digest goes into the file; the key itself is stored nowhere and shown this once.
    """
    try:
        tenant = parse_name(name)
    except ExpectedError as error:
        typer.echo(f"--name: {error}, got {name!r}", err=True)
        raise typer.Exit(INVALID) from None
    if tenant == ANONYMOUS:
        typer.echo(f"--name: expected another name, callers without a key have this one, got {name!r}", err=True)
        raise typer.Exit(INVALID)
    key = "tg-" + secrets.token_urlsafe(KEY_BYTES)
    digest = key_digest(key)
    typer.echo(f"key:    {key}\ndigest: {digest}\n")
    typer.echo("Give the key to the caller; it is not shown again. For the settings file:\n")
    typer.echo(f'tenants:\n  - name: {_quoted(tenant)}\n    keys: ["{digest}"]\n    band: p1')


def _quoted(name: str) -> str:
    """Quote what YAML would not read as text by itself, like ``2024``, ``a:`` or ``null``."""
    plain = name.replace("-", "").replace("_", "").isalpha() and name.lower() not in _WORDS
    return name if plain else f'"{name}"'
