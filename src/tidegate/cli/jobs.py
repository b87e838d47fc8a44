"""``tidegate jobs``: submit, look at and stop batches, and deal with rows that used up their attempts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidegate.cli._output import FAILED, INVALID
from tidegate.cli._server import Server, end

GATEWAY = "http://127.0.0.1:8400"
CONTROL = "http://127.0.0.1:8401"
LOOK_S = 1.0
PATIENCE_S = 600.0
"""Who waits for a batch waits so long for a gateway that does not answer: the batch outlives it."""
ENDED = ("completed", "failed", "expired", "cancelled")

Url = Annotated[str, typer.Option("--url", help="The gateway.")]
KeyEnv = Annotated[str, typer.Option("--key-env", metavar="NAME", help="Environment variable with the tenant's key.")]
ControlUrl = Annotated[str, typer.Option("--url", help="Control port of the gateway.")]
TokenEnv = Annotated[
    str, typer.Option("--token-env", metavar="NAME", help="Environment variable with the operator's token.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as the API gives it.")]
KEY_ENV, TOKEN_ENV = "TIDEGATE_API_KEY", "TIDEGATE_TOKEN"

jobs = typer.Typer(no_args_is_help=True, add_completion=False, help="Submit, look at and stop batches.")
dead = typer.Typer(no_args_is_help=True, help="Rows that used up their attempts; for operators, on the control port.")
jobs.add_typer(dead, name="dead")


@jobs.command()
def submit(
    file: Annotated[Path, typer.Argument(help="Requests, one JSON line each.", exists=True, dir_okay=False)],
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help="Endpoint of all lines. Default: that of the first line.")
    ] = None,
    window: Annotated[str, typer.Option("--window", help="Time within which it has to be done.")] = "24h",
    band: Annotated[str | None, typer.Option("--band", help="Band of its rows. Default: p2.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and show how far it is.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="With --wait: write the answers to this file.")
    ] = None,
    errors: Annotated[
        Path | None, typer.Option("--errors", help="With --wait: write the rows without an answer to this file.")
    ] = None,
    url: Url = GATEWAY,
    key_env: KeyEnv = KEY_ENV,
) -> None:
    """Submit a file of requests as a batch, and print the batch's id.

    Ends with status 1 when the gateway cannot be reached or, with --wait, when the batch does not complete.
    """
    for option, place in (("--output", output), ("--errors", errors)):
        _judge(option, place, wait=wait)
    gateway = Server(url, os.environ.get(key_env))
    wish: dict[str, Any] = {"endpoint": endpoint or _endpoint_of(file), "completion_window": window}
    wish["input_file_id"] = gateway.upload(file)["id"]
    if band is not None:
        wish["metadata"] = {"band": band}
    batch = gateway.ask("POST", "/v1/batches", wish)
    typer.echo(batch["id"])
    if wait:
        batch = _watch(gateway, batch)
        for place, key in ((output, "output_file_id"), (errors, "error_file_id")):
            if place is not None and batch[key] is not None:
                gateway.download(batch[key], place)
        typer.echo(_outcome(batch), err=True)
        _print_errors(batch, err=True)
        raise typer.Exit(0 if batch["status"] == "completed" else FAILED)


@jobs.command("list")
def list_batches(
    limit: Annotated[int, typer.Option("--limit", help="How many, newest first.", min=1, max=100)] = 20,
    url: Url = GATEWAY,
    key_env: KeyEnv = KEY_ENV,
    as_json: AsJson = False,
) -> None:
    """List batches, newest first."""
    _look(url, key_env, f"/v1/batches?limit={limit}", as_json=as_json, plain=_print_batches)


@jobs.command()
def show(
    batch: Annotated[str, typer.Argument(help="Id of the batch.")],
    url: Url = GATEWAY,
    key_env: KeyEnv = KEY_ENV,
    as_json: AsJson = False,
) -> None:
    """Show one batch."""
    _look(url, key_env, _path_of(batch), as_json=as_json, plain=_print_batch)


@jobs.command()
def cancel(
    batch: Annotated[str, typer.Argument(help="Id of the batch.")],
    url: Url = GATEWAY,
    key_env: KeyEnv = KEY_ENV,
) -> None:
    """Stop a batch; what is answered already can be downloaded."""
    found = Server(url, os.environ.get(key_env)).ask("POST", f"{_path_of(batch)}/cancel", {})
    typer.echo(_outcome(found))


@dead.command("list")
def list_dead(
    after: Annotated[str | None, typer.Option("--after", help="Id of the last one of the page before.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="How many.", min=1, max=1000)] = 100,
    url: ControlUrl = CONTROL,
    token_env: TokenEnv = TOKEN_ENV,
    as_json: AsJson = False,
) -> None:
    """List dead letters, in order of batches and lines."""
    query = f"?limit={limit}" + ("" if after is None else f"&after={quote(after)}")
    _look(url, token_env, f"/admin/dead-letters{query}", as_json=as_json, plain=_print_letters)


@dead.command()
def redrive(
    letter: Annotated[str, typer.Argument(help="Id of a dead letter, or of a batch for all of it.")],
    url: ControlUrl = CONTROL,
    token_env: TokenEnv = TOKEN_ENV,
) -> None:
    """Send dead letters again, with all their attempts."""
    path = f"/admin/dead-letters/{quote(letter, safe='')}/redrive"
    done = Server(url, os.environ.get(token_env)).ask("POST", path, {})
    typer.echo(f"{done['rows']} rows go again in batch {done['batch_id']}")


@dead.command()
def discard(
    letter: Annotated[str, typer.Argument(help="Id of a dead letter, or of a batch for all of it.")],
    url: ControlUrl = CONTROL,
    token_env: TokenEnv = TOKEN_ENV,
) -> None:
    """Take dead letters off the list for good."""
    done = Server(url, os.environ.get(token_env)).ask("DELETE", f"/admin/dead-letters/{quote(letter, safe='')}")
    typer.echo(f"{done['rows']} dead letters of batch {done['batch_id']} discarded")


def _look(url: str, env: str, path: str, *, as_json: bool, plain: Callable[[dict[str, Any]], None]) -> None:
    """Ask and print: as it came, or for people."""
    found = Server(url, os.environ.get(env)).ask("GET", path)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        plain(found)


def _print_batches(found: dict[str, Any]) -> None:
    rows = [(b["id"], b["status"], _counts(b), b["x_tidegate"]["band"], _when(b["expires_at"])) for b in found["data"]]
    _table(("batch", "status", "rows", "band", "window ends"), rows)


def _print_batch(found: dict[str, Any]) -> None:
    typer.echo(_outcome(found))
    expected = found["x_tidegate"]["expected_at"]
    for name, value in (
        ("expected end", None if expected is None else _when(expected)),
        ("window ends", _when(found["expires_at"])),
        ("input file", found["input_file_id"]),
        ("output file", found["output_file_id"]),
        ("error file", found["error_file_id"]),
        ("dead letters", found["x_tidegate"]["dead"] or None),
    ):
        if value is not None:
            typer.echo(f"{name}: {value}")
    _print_errors(found)


def _print_errors(found: dict[str, Any], *, err: bool = False) -> None:
    """What validation said."""
    for error in (found["errors"] or {"data": []})["data"]:
        line = "" if error["line"] is None else f"line {error['line']}: "
        typer.echo(f"{line}{error['message']}", err=err)


def _print_letters(found: dict[str, Any]) -> None:
    rows = [
        (row["id"], row["tenant"], row["custom_id"], str(row["attempts"]), str(row["status"] or ""), row["error"][:60])
        for row in found["dead_letters"]
    ]
    _table(("dead letter", "tenant", "custom_id", "attempts", "status", "last error"), rows)


def _watch(gateway: Server, batch: dict[str, Any]) -> dict[str, Any]:
    """Show a bar until the batch has ended. A gateway that is started anew meanwhile is waited for."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[end]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(batch["status"], total=None, rate="", end="")
        began, first = time.monotonic(), None
        heard = began
        while batch["status"] not in ENDED:
            time.sleep(LOOK_S)
            found = gateway.look(f"/v1/batches/{batch['id']}")
            if found is None and time.monotonic() - heard < PATIENCE_S:
                progress.update(task, description="no answer", rate="", end="trying again")
                continue
            batch = found or gateway.ask("GET", f"/v1/batches/{batch['id']}")
            heard = time.monotonic()
            counts = batch["request_counts"]
            done = counts["completed"] + counts["failed"]
            if first is None and counts["total"]:
                began, first = time.monotonic(), done
            rate = 0.0 if first is None else (done - first) / max(LOOK_S, time.monotonic() - began)
            expected = batch["x_tidegate"]["expected_at"]
            progress.update(
                task,
                description=batch["status"],
                total=counts["total"] or None,
                completed=done,
                rate=f"{rate:.0f} rows/s" if rate else "",
                end="" if expected is None else f"done by {_when(expected)}",
            )
    return batch


def _judge(option: str, place: Path | None, *, wait: bool) -> None:
    """Say before hours of work that its answers would have no place."""
    if place is None:
        return
    if not wait:
        end(f"{option}: expected --wait beside it", INVALID)
    if place.is_dir() or not place.parent.is_dir():
        end(f"{option}: expected a file to write, got {place}", INVALID)


def _path_of(batch: str) -> str:
    return f"/v1/batches/{quote(batch, safe='')}" if batch else end("expected the id of a batch, got ''", INVALID)


def _endpoint_of(file: Path) -> str:
    with file.open("rb") as source:
        for line in source:
            if line.strip():
                try:
                    return str(json.loads(line)["url"])
                except (ValueError, KeyError, TypeError):
                    break
    return end(f"{file}: expected lines with a url, or --endpoint", INVALID)


def _counts(batch: dict[str, Any]) -> str:
    counts = batch["request_counts"]
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"{counts['completed']}/{counts['total']}{failed}"


def _outcome(batch: dict[str, Any]) -> str:
    return f"{batch['id']}: {batch['status']}, {_counts(batch)}"


def _when(at_utc: int) -> str:
    return datetime.fromtimestamp(at_utc, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    plain = [heads, *(tuple(text.translate(_PLAIN) for text in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
    for row in plain:
        typer.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


_PLAIN = dict.fromkeys((*range(32), 127), " ")
"""Names come from clients; they print no control characters."""
