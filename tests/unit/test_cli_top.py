"""The screen of ``tidegate top`` from the dashboard's numbers."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.cli._top_view import duration, screen
from tidegate.control.snapshot import Observer
from tidegate.testing import run_virtual
from unit.control_stage import FILE, Stage


def drawn(numbers: dict[str, Any], *, width: int = 200, height: int | None = None) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(screen(numbers, width=width, height=height))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def numbers(text: str = FILE, **more: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def story() -> None:
        stage = Stage(text)
        found.append(Observer(stage.driver, stage.recorder, stage.live).numbers())

    run_virtual(story())
    return found[0] | more


def test_a_gateway_that_has_done_nothing_yet() -> None:
    text = drawn(numbers())
    assert text.startswith("mode normal\np0 idle")
    assert "tenants" not in text
    assert "refusals" not in text


def test_names_are_text_and_not_markup() -> None:
    wild = "[bold red]\x1b[2J[/nothing]"
    row = {"age_s": 1, "id": wild, "tenant": wild, "band": "p1", "model": wild, "reason": "shed", "status": 429}
    tenants = {"tokens": [[wild, 7]], "refused": []}
    text = drawn(numbers(refusals=[row | {"retry_after_s": None}], tenants=tenants))
    assert text.count("[bold red]") == 4
    assert "\x1b" not in text


def test_waste_is_told_where_there_is_any() -> None:
    assert "thrown away" not in drawn(numbers())
    waste = {"tokens": 1234, "part": 0.0123, "causes": {"cancelled": 1200, "preempted": 34}}
    assert "thrown away 1.23% (cancelled 1,200, preempted 34)" in drawn(numbers(waste=waste))
    lines = drawn(numbers(waste=waste), width=60).splitlines()
    assert max(map(len, lines)) <= 60


def test_a_low_terminal_keeps_bands_and_backends() -> None:
    tenants = {"tokens": [["shop", 7]], "refused": []}
    assert "tenants" not in drawn(numbers(tenants=tenants), height=24)
    assert "tenants" in drawn(numbers(tenants=tenants), height=60)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = drawn(numbers(), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(any(line.split()[:3] == [band, "0", "0"] for line in lines) for band in ("p0", "p1", "p2"))


def test_a_url_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(app, ["top", "--url", "ftp://x"])
    assert (result.exit_code, result.output.startswith("--url: expected")) == (2, True)


def test_batches_and_faults_are_shown() -> None:
    batch = {"id": "batch-1", "state": "in_progress", "total": 1000, "completed": 300, "failed": 4}
    text = drawn(numbers(jobs={"batches": [batch], "dead": 2}))
    assert "dead letters: 2" in text
    assert "304" in text
    assert "the store is gone" in drawn(numbers(jobs={"error": "the store is gone"}))
    fault = {"fault": "the scheduler stopped", "mode": numbers()["mode"], "revision": 1}
    assert "the scheduler stopped" in drawn(fault)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (0.9999, "1.0 s"),
        (9.94, "9.9 s"),
        (61, "61 s"),
        (600, "10 min"),
        (86400, "24.0 h"),
    ],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
