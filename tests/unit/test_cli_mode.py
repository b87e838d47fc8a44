"""``tidegate mode`` against a control port that answers from a list."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tidegate import cli

STATE = {
    "mode": "normal",
    "by": "start",
    "since_utc": "2026-01-02T03:04:05.678901Z",
    "reverts_to": None,
    "reverts_in_s": None,
    "modes": ["normal", "transactions_only", "observe"],
}


class Port:
    """A control port. ``answers`` is used up; ``seen`` holds (method, path, headers, body)."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        port = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                port.seen.append(
                    (self.command, self.path, {key.lower(): value for key, value in self.headers.items()}, body)
                )
                status, value = port.answers.pop(0)
                content = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("location", f"{port.url}/elsewhere")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    thread = threading.Thread(target=port.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield port
    port.server.shutdown()
    thread.join()
    port.server.server_close()


def run(port: Port, *args: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli.app, ["mode", "--url", port.url, *args], env=env)


def test_the_mode_is_shown(port: Port) -> None:
    port.answers = [(200, STATE)]
    result = run(port)
    assert (result.exit_code, result.output) == (
        0,
        "mode: normal (since the start)\nmodes: normal, transactions_only, observe\n",
    )
    ((method, path, headers, body),) = port.seen
    assert (method, path, body) == ("GET", "/admin/mode", b"")
    assert "authorization" not in headers


def test_the_mode_is_switched_for_a_while_with_a_token(port: Port) -> None:
    after = {"mode": "transactions_only", "by": "duty", "reverts_to": "normal", "reverts_in_s": 1799.7}
    port.answers = [(200, {**STATE, **after})]
    result = run(port, "transactions_only", "--revert-after", "30min", "--token-env", "TOKEN", env={"TOKEN": "s3cret"})
    assert result.output.splitlines()[:2] == [
        "mode: transactions_only (since 2026-01-02T03:04:05Z by duty)",
        "back to normal in 30min",
    ]
    ((method, _, headers, body),) = port.seen
    assert (method, headers["authorization"], headers["content-type"]) == ("POST", "Bearer s3cret", "application/json")
    assert json.loads(body) == {"mode": "transactions_only", "revert_after": "30min"}


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (
            (400, {"error": {"message": "mode: expected one of normal"}}),
            2,
            "tidegate mode: mode: expected one of normal",
        ),
        (
            (401, {"error": {"message": "expected an operator's token"}}),
            1,
            "tidegate mode: expected an operator's token",
        ),
        ((500, b"oops"), 1, "tidegate mode: the gateway answered 500"),
        ((302, b""), 1, "tidegate mode: the gateway answered 302"),
        ((200, b"not json"), 1, "tidegate mode: no answer from 127.0.0.1:"),
    ],
)
def test_what_goes_wrong_is_one_line(port: Port, answer: tuple[int, Any], status: int, message: str) -> None:
    port.answers = [answer]
    result = run(port, "night")
    assert result.exit_code == status
    assert result.output.startswith(message)
    assert len(result.output.splitlines()) == 1
    assert len(port.seen) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--revert-after", "5min"], "--revert-after: expected a mode to switch to"),
        (["observe", "--revert-after", "soon"], "--revert-after: expected a duration"),
        (["--url", "here"], "--url: expected a root URL"),
    ],
)
def test_wrong_options_are_refused_before_anybody_is_asked(port: Port, args: list[str], message: str) -> None:
    result = run(port, *args)
    assert result.exit_code == 2
    assert result.output.startswith(message)
    assert port.seen == []


def test_nobody_there_is_said() -> None:
    result = CliRunner().invoke(cli.app, ["mode", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.output.startswith("tidegate mode: no answer from 127.0.0.1:1: ")
