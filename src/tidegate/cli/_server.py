"""A port of a running gateway, as commands speak to it: JSON, uploads, downloads, and a message for each fault."""

from __future__ import annotations

import contextlib
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import typer

from tidegate.cli._asking import error_message, opener, why
from tidegate.cli._output import FAILED, INVALID
from tidegate.config import ExpectedError, parse_root_url

TIMEOUT_S = 75.0
"""Longer than the longest wait for a batch."""
PIECE = 256 * 1024
PASSING = (429, 502, 503, 504)
"""What a gateway, or a balancer before it, answers while it starts, stops, or cannot reach its store."""


class Server:
    """A port of a running gateway. Every fault ends the command with a message."""

    def __init__(self, url: str, key: str | None) -> None:
        try:
            self._root = parse_root_url(url)
        except ExpectedError as error:
            end(f"--url: {error}", INVALID)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._opener = opener(_Http, _Https)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask for JSON."""
        data = None if body is None else json.dumps(body).encode()
        with self._open(method, path, data, {"content-type": "application/json"}) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def look(self, path: str) -> dict[str, Any] | None:
        """Ask for JSON; ``None`` while the gateway is not there or takes nobody, which passes."""
        try:
            with self._opener.open(self._request("GET", path, None, {}), timeout=TIMEOUT_S) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            return None if error.code in PASSING else _refused(error)
        except (OSError, HTTPException, ValueError):
            return None

    def upload(self, file: Path) -> dict[str, Any]:
        """Upload a file as it is read."""
        form = Form(file)
        headers = {"content-type": form.content_type, "content-length": str(form.size)}
        with self._open("POST", "/v1/files", form, headers) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def download(self, file_id: str, place: Path) -> None:
        """Write a file of the gateway to a place."""
        with self._open("GET", f"/v1/files/{file_id}/content", None, {}) as answer:
            with _named(place):
                target = place.open("wb", buffering=0)
            with target:
                while piece := answer.read(PIECE):
                    with _named(place):
                        _write(target, piece)

    def _request(self, method: str, path: str, data: Any, headers: dict[str, str]) -> urllib.request.Request:
        return urllib.request.Request(  # noqa: S310 - parse_root_url: http or https
            f"{self._root}{path}", data, {**self._headers, **headers}, method=method
        )

    @contextlib.contextmanager
    def _open(self, method: str, path: str, data: Any, headers: dict[str, str]) -> Iterator[Any]:
        try:
            with self._opener.open(self._request(method, path, data, headers), timeout=TIMEOUT_S) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            _refused(error)
        except (OSError, HTTPException, ValueError) as error:
            end(f"tidegate jobs: no answer from {urlsplit(self._root).netloc}: {why(error)}", FAILED)


def _refused(error: urllib.error.HTTPError) -> NoReturn:
    end(f"tidegate jobs: {error_message(error)}", INVALID if error.code == 400 else FAILED)


@contextlib.contextmanager
def _named(place: Path) -> Iterator[None]:
    """End the command with the name of a file that takes nothing: it is no fault of the gateway's."""
    try:
        yield
    except OSError as error:
        end(f"{place}: {error.strerror or error}", FAILED)


def _write(target: FileIO, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[target.write(rest) :]


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


class _Hears(HTTPConnection):
    """Hears an answer that comes before all is sent: who refuses an upload does not read it to its end."""

    def send(self, data: Any) -> None:
        try:
            super().send(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # if there is no answer either, reading it says so


class _HearsTls(_Hears, HTTPSConnection):
    """The same by TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_Hears, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_HearsTls, req)


def end(message: str, status: int) -> NoReturn:
    """End the command with a message."""
    typer.echo(message, err=True)
    raise typer.Exit(status)
