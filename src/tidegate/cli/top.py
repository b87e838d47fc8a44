"""``tidegate top``: the dashboard's numbers in a terminal, as they change."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tidegate.cli._control import TOKEN_ENV, URL, ControlPort, UnansweredError
from tidegate.cli._output import FAILED
from tidegate.cli._top_view import screen

AGAIN_S = 2.0
"""Time between two tries to reach a gateway that does not answer."""

MOST_LINE = 4 * 1024 * 1024


def top(
    url: Annotated[str, typer.Option("--url", help="Control port of the gateway.")] = URL,
    once: Annotated[bool, typer.Option("--once", help="Print the numbers of this moment and end.")] = False,
    token_env: Annotated[
        str, typer.Option("--token-env", metavar="NAME", help="Environment variable with an operator's token.")
    ] = TOKEN_ENV,
) -> None:
    """Show bands, backends, tenants and refusals of a running gateway, live, until Ctrl-C.

    They are the numbers of its dashboard, twice a second. Where standard output is no terminal, as with --once.
    Ends with status 1 when the gateway cannot be reached or does not let you; once it runs, it waits for it instead.
    """
    console = Console()
    try:
        port = ControlPort(url, token_env)
        if once or not console.is_terminal:
            console.print(screen(next(numbers(port)), width=console.width, height=None))
        else:
            _watch(port, console)
    except UnansweredError as error:
        typer.echo(str(error) if str(error).startswith("--") else f"tidegate top: {error}", err=True)
        raise typer.Exit(error.status) from None


def numbers(port: ControlPort) -> Iterator[dict[str, Any]]:
    """Yield what the dashboard shows, each time that it changes.

    Raises:
        UnansweredError: the gateway does not answer, or ended.
    """
    with port.open("/admin/events") as stream:
        name = b""
        while line := stream.readline(MOST_LINE):
            if line.startswith(b"event: "):
                name = line[7:].strip()
            elif line.startswith(b"data: ") and name == b"numbers":
                found: dict[str, Any] = json.loads(line[6:])
                yield found
    raise UnansweredError("the gateway has ended", FAILED)


def _watch(port: ControlPort, console: Console) -> None:
    shown: dict[str, Any] | None = None
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                for shown in numbers(port):
                    live.update(screen(shown, width=console.width, height=console.height), refresh=True)
            except UnansweredError as error:
                if shown is None:
                    raise
                lost = Text(f"{error}; these are the last numbers\n", style="bold white on red")
                live.update(screen(shown, width=console.width, height=console.height, before=lost), refresh=True)
                time.sleep(AGAIN_S)
