"""``tidegate mode``: show the mode of a running gateway, or switch it."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

import typer

from tidegate.cli._control import TOKEN_ENV, URL, ControlPort, UnansweredError
from tidegate.cli._output import INVALID
from tidegate.config import ExpectedError, duration_text, parse_positive_duration


def mode(
    name: Annotated[
        str | None, typer.Argument(help="Mode to switch to: normal, transactions_only, observe, or one of the file's.")
    ] = None,
    revert_after: Annotated[
        str | None, typer.Option("--revert-after", metavar="TIME", help="Go back by itself after this time.")
    ] = None,
    url: Annotated[str, typer.Option("--url", help="Control port of the gateway.")] = URL,
    token_env: Annotated[
        str, typer.Option("--token-env", metavar="NAME", help="Environment variable with the operator's token.")
    ] = TOKEN_ENV,
) -> None:
    """Show the mode of a running gateway, or switch it at once.

    Ends with status 2 for a mode that does not exist, 1 when the gateway cannot be reached or does not let you.
    """
    body: dict[str, Any] | None = None
    if name is not None:
        body = {"mode": name}
    if revert_after is not None:
        if body is None:
            _end("--revert-after: expected a mode to switch to", INVALID)
        try:
            parse_positive_duration(revert_after)
        except ExpectedError as error:
            _end(f"--revert-after: {error}, got {revert_after!r}", INVALID)
        body["revert_after"] = revert_after
    try:
        typer.echo(_told(ControlPort(url, token_env).ask("/admin/mode", body)))
    except UnansweredError as error:
        _end(str(error) if str(error).startswith("--") else f"tidegate mode: {error}", error.status)


def _told(state: dict[str, Any]) -> str:
    by = "since the start" if state["by"] == "start" else f"since {state['since_utc'][:19]}Z by {state['by']}"
    lines = [f"mode: {state['mode']} ({by})"]
    if state["reverts_to"] is not None:
        lines.append(f"back to {state['reverts_to']} in {duration_text(round(state['reverts_in_s']))}")
    return "\n".join([*lines, f"modes: {', '.join(state['modes'])}"])


def _end(message: str, status: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(status)
