"""``tidegate mode``: show the mode of a running gateway, or switch it."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer

from tidegate.cli._output import FAILED, INVALID
from tidegate.config import ExpectedError, duration_text, parse_positive_duration, parse_root_url

TIMEOUT_S = 10.0
CONTROL = "http://127.0.0.1:8401"


def mode(
    name: Annotated[
        str | None, typer.Argument(help="Mode to switch to: normal, transactions_only, observe, or one of the file's.")
    ] = None,
    revert_after: Annotated[
        str | None, typer.Option("--revert-after", metavar="TIME", help="Go back by itself after this time.")
    ] = None,
    url: Annotated[str, typer.Option("--url", help="Control port of the gateway.")] = CONTROL,
    token_env: Annotated[
        str, typer.Option("--token-env", metavar="NAME", help="Environment variable with the operator's token.")
    ] = "TIDEGATE_TOKEN",  # noqa: S107 - a name
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
    typer.echo(_told(_ask(url, os.environ.get(token_env), body)))


def _told(state: dict[str, Any]) -> str:
    by = "since the start" if state["by"] == "start" else f"since {state['since_utc'][:19]}Z by {state['by']}"
    lines = [f"mode: {state['mode']} ({by})"]
    if state["reverts_to"] is not None:
        lines.append(f"back to {state['reverts_to']} in {duration_text(round(state['reverts_in_s']))}")
    return "\n".join([*lines, f"modes: {', '.join(state['modes'])}"])


def _ask(url: str, token: str | None, body: dict[str, Any] | None) -> dict[str, Any]:
    try:
        root = parse_root_url(url)
    except ExpectedError as error:
        _end(f"--url: {error}", INVALID)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{root}/admin/mode", data, headers)  # noqa: S310 - parse_root_url: http or https
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            state: dict[str, Any] = json.load(response)
            return state
    except urllib.error.HTTPError as error:
        _end(f"tidegate mode: {_message(error)}", INVALID if error.code == 400 else FAILED)
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or error
        _end(f"tidegate mode: no answer from {urlsplit(root).netloc}: {why}", FAILED)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A control port sends nobody elsewhere, and a token goes nowhere else."""

    def redirect_request(self, *_: object) -> None:
        return None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {error.code}"


def _end(message: str, status: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(status)
