"""``tidegate jobs``: submit, look at and stop batches, and deal with rows that used up their attempts."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.parse import quote, urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidegate.cli._output import FAILED, INVALID
from tidegate.config import ExpectedError, parse_root_url

GATEWAY = "http://127.0.0.1:8400"
CONTROL = "http://127.0.0.1:8401"
TIMEOUT_S = 75.0
"""Longer than the longest wait for a batch."""
LOOK_S = 1.0
ENDED = ("completed", "failed", "expired", "cancelled")
PIECE = 256 * 1024

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
    gateway = Server(url, os.environ.get(key_env))
    uploaded = gateway.upload(file)
    wish: dict[str, Any] = {
        "input_file_id": uploaded["id"],
        "endpoint": endpoint or _endpoint_of(file),
        "completion_window": window,
    }
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
        raise typer.Exit(0 if batch["status"] == "completed" else FAILED)


@jobs.command("list")
def list_batches(
    limit: Annotated[int, typer.Option("--limit", help="How many, newest first.", min=1, max=100)] = 20,
    url: Url = GATEWAY,
    key_env: KeyEnv = KEY_ENV,
    as_json: AsJson = False,
) -> None:
    """List batches, newest first."""
    found = Server(url, os.environ.get(key_env)).ask("GET", f"/v1/batches?limit={limit}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    rows = [(b["id"], b["status"], _counts(b), b["x_tidegate"]["band"], _when(b["expires_at"])) for b in found["data"]]
    _table(("batch", "status", "rows", "band", "window ends"), rows)


@jobs.command()
def show(
    batch: Annotated[str, typer.Argument(help="Id of the batch.")],
    url: Url = GATEWAY,
    key_env: KeyEnv = KEY_ENV,
    as_json: AsJson = False,
) -> None:
    """Show one batch."""
    found = Server(url, os.environ.get(key_env)).ask("GET", f"/v1/batches/{quote(batch, safe='')}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
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
    for error in (found["errors"] or {"data": []})["data"]:
        line = "" if error["line"] is None else f"line {error['line']}: "
        typer.echo(f"{line}{error['message']}")


@jobs.command()
def cancel(
    batch: Annotated[str, typer.Argument(help="Id of the batch.")],
    url: Url = GATEWAY,
    key_env: KeyEnv = KEY_ENV,
) -> None:
    """Stop a batch; what is answered already can be downloaded."""
    found = Server(url, os.environ.get(key_env)).ask("POST", f"/v1/batches/{quote(batch, safe='')}/cancel", {})
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
    found = Server(url, os.environ.get(token_env)).ask("GET", f"/admin/dead-letters{query}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    rows = [
        (row["id"], row["tenant"], row["custom_id"], str(row["attempts"]), str(row["status"] or ""), row["error"][:60])
        for row in found["dead_letters"]
    ]
    _table(("dead letter", "tenant", "custom_id", "attempts", "status", "last error"), rows)


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


class Server:
    """A port of a running gateway. Every fault ends the command with a message."""

    def __init__(self, url: str, key: str | None) -> None:
        try:
            self._root = parse_root_url(url)
        except ExpectedError as error:
            _end(f"--url: {error}", INVALID)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask for JSON."""
        data = None if body is None else json.dumps(body).encode()
        with self._open(method, path, data, {"content-type": "application/json"}) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def upload(self, file: Path) -> dict[str, Any]:
        """Upload a file as it is read."""
        form = Form(file)
        headers = {"content-type": form.content_type, "content-length": str(form.size)}
        with self._open("POST", "/v1/files", form, headers) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def download(self, file_id: str, place: Path) -> None:
        """Write a file of the gateway to a place."""
        with self._open("GET", f"/v1/files/{file_id}/content", None, {}) as answer, place.open("wb") as target:
            while piece := answer.read(PIECE):
                target.write(piece)

    @contextlib.contextmanager
    def _open(self, method: str, path: str, data: Any, headers: dict[str, str]) -> Iterator[Any]:
        request = urllib.request.Request(  # noqa: S310 - parse_root_url: http or https
            f"{self._root}{path}", data, {**self._headers, **headers}, method=method
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            _end(f"tidegate jobs: {_message(error)}", INVALID if error.code == 400 else FAILED)
        except (OSError, HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or error
            _end(f"tidegate jobs: no answer from {urlsplit(self._root).netloc}: {why}", FAILED)


class Form:
    """An upload form around a file, read piece by piece."""

    def __init__(self, file: Path) -> None:
        boundary = secrets.token_hex(16)
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in file.name)
        self._head = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        ).encode()
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._file = file
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self.size = len(self._head) + file.stat().st_size + len(self._tail)

    def __iter__(self) -> Iterator[bytes]:
        yield self._head
        with self._file.open("rb") as source:
            while piece := source.read(PIECE):
                yield piece
        yield self._tail


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A gateway sends nobody elsewhere, and a key goes nowhere else."""

    def redirect_request(self, *_: object) -> None:
        return None


def _watch(gateway: Server, batch: dict[str, Any]) -> dict[str, Any]:
    """Show a bar until the batch has ended."""
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
        while batch["status"] not in ENDED:
            time.sleep(LOOK_S)
            batch = gateway.ask("GET", f"/v1/batches/{batch['id']}")
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


def _endpoint_of(file: Path) -> str:
    with file.open("rb") as source:
        for line in source:
            if line.strip():
                try:
                    return str(json.loads(line)["url"])
                except (ValueError, KeyError, TypeError):
                    break
    return _end(f"{file}: expected lines with a url, or --endpoint", INVALID)


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


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {error.code}"


def _end(message: str, status: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(status)
