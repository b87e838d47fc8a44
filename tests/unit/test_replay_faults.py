"""What a rehearsal says of requests that failed otherwise than by policy."""

from __future__ import annotations

import socket
import time

import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.cli.replay._command import _told


@pytest.mark.parametrize(
    ("reason", "option"), [("http_404", "--model"), ("unknown_model", "--model"), ("unauthorized", "--key")]
)
def test_what_the_set_up_lacks_is_named(reason: str, option: str) -> None:
    text = _told({reason: 1200, "connection_lost": 5})
    assert "not refused by policy: 1,205" in text
    assert option in text


def test_other_faults_name_no_option() -> None:
    assert "--" not in _told({"connection_lost": 1})


def test_a_gateway_that_is_not_there_ends_a_rehearsal_before_it_begins() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, and nobody listens
        place = f"127.0.0.1:{free.getsockname()[1]}"
        began = time.monotonic()
        words = ["replay", "flash-sale", "--url", f"http://{place}", "--seconds", "1", "--drain", "10"]
        result = CliRunner().invoke(app, words)
    assert time.monotonic() - began < 8
    assert (result.exit_code, f"tidegate replay: no answer from {place}" in result.output) == (1, True), result.output
