"""``tidegate simulate``: what it prints, how it ends, and that the same seed gives the same bytes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.cli.report import _charts, show_result
from tidegate.cli.scenario import GatewayEstimator, parse_scenario, shipped_scenarios
from tidegate.simulation.run import run_scenario
from tidegate.simulation.tally import Quantile

SMALL = """\
description: A <small> flood & some questions.
duration: 20s
drain: 10s
seed: 5
engines:
  - {profile: slow, seats: 8, kv_tokens: 20000}
sources:
  - {name: vip, band: p0, arrivals: {law: poisson, rate: 1}, prompt_tokens: 50, output_tokens: 10}
  - {name: chat, band: p1, arrivals: {law: gamma, rate: 4, cv: 2}, prompt_tokens: {low: 9, high: 99}, output_tokens: 60}
  - {name: jobs, band: p2, arrivals: {law: endless}, prompt_tokens: {median: 200, p99: 900}, output_tokens: 100}
claims:
  - p0.wait_p99 <= 5s
  - all.kv_mean <= 1
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def run(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["simulate", *words], env={"COLUMNS": "160"})
    assert result.exit_code == status, result.output
    return result.output


def test_without_a_scenario_it_lists_those_that_ship() -> None:
    out = run()
    assert all(name in out for name in shipped_scenarios())


def test_a_shipped_file_can_be_printed() -> None:
    assert "arrivals: {law: batch, rows: 5000}" in run("flash-sale", "--show")
    assert "expected one of agents" in run("nothing", "--show", status=2)


def test_the_table_tells_bands_runs_and_claims(small: Path) -> None:
    out = run(str(small))
    assert "A <small> flood & some questions." in out
    for word in ("p0", "p1", "p2", "tidegate", "passthrough", "fifo", "strict", "bare_aging", "TTFT", "KV"):
        assert word in out
    assert re.search(r"holds +p0\.wait_p99 <= 5s: .* against 5\.00 s", out)


@pytest.mark.parametrize(("width", "whole"), [(80, False), (100, True)])
def test_a_narrow_terminal_gets_fewer_columns_and_no_figure_is_cut(width: int, *, whole: bool) -> None:
    scenario = parse_scenario(SMALL, source="small.yaml", beside=Path())
    out = io.StringIO()
    show_result(Console(file=out, width=width), run_scenario(scenario, estimator=GatewayEstimator, baselines=["fifo"]))
    table = out.getvalue().split("Wait: until")[0]
    assert ("longest" in table, "overtakes" in table) == (whole, whole)
    assert "…" not in table


@pytest.mark.parametrize("reason", ["expired", "queue full"])
def test_short_reasons_of_refusals_are_not_broken_on_a_terminal_of_80_columns(reason: str) -> None:
    """Beside minutes of wait and thousands of requests, under the longest name of a baseline."""
    scenario, out = parse_scenario(SMALL, source="small.yaml", beside=Path()), io.StringIO()
    result = run_scenario(scenario, estimator=GatewayEstimator, baselines=["passthrough"])
    runs = {}
    for name, report in result.runs.items():
        first, *others = report.bands
        wait = replace(first.wait, p50=Quantile(200.0), p99=Quantile(300.0))
        full = replace(
            first,
            sent=5000,
            answered=4000,
            refused={reason.replace(" ", "_"): 674},
            wait=wait,
            ttft=wait,
            in_slo=0.99981,
            goodput=19_999.0,
        )
        runs[name] = replace(report, bands=(full, *others))
    show_result(Console(file=out, width=80), replace(result, runs=runs))
    table = out.getvalue().split("Runs")[0]
    assert "674" in table
    assert all(word in table for word in reason.split())
    assert "99.98%" in table
    assert "…" not in table


def test_a_failing_claim_ends_with_1(small: Path) -> None:
    small.write_text(SMALL.replace("p0.wait_p99 <= 5s", "p2.answered >= 100000"))
    assert re.search(
        r"FAILS +p2\.answered >= 100000: .* against 1e\+05", run(str(small), "--baseline", "none", status=1)
    )


def test_json_holds_every_run(small: Path) -> None:
    data = json.loads(run(str(small), "--json", "--baseline", "fifo"))
    assert (data["scenario"], data["seed"], data["holds"]) == ("small", 5, True)
    assert list(data["runs"]) == ["tidegate", "fifo"]
    own = data["runs"]["tidegate"]
    for group in own["bands"]:
        assert group["sent"] == group["answered"] + group["open"] + sum(group["refused"].values())
    assert sum(group["sent"] for group in own["bands"]) == own["total"]["sent"] > 50
    assert [group["sent"] for group in own["sources"]] == [group["sent"] for group in own["bands"]]
    series = own["over_time"]
    assert sum(series["sent"]["p1"]) == own["bands"][1]["sent"]
    assert len(series["kv"]["m-1"]) == len(series["depth"]["p0"])
    assert data["claims"][0]["claim"] == "p0.wait_p99 <= 5s"


def test_baselines_see_the_same_arrivals(small: Path) -> None:
    data = json.loads(run(str(small), "--json"))
    for band in (0, 1):
        assert len({report["bands"][band]["sent"] for report in data["runs"].values()}) == 1


def test_another_seed_gives_another_run(small: Path) -> None:
    words = (str(small), "--json", "--baseline", "none")
    assert run(*words) == run(*words) == run(*words, "--seed", "5") != run(*words, "--seed", "6")


def test_wrong_options_are_told(small: Path) -> None:
    assert "--baseline: expected one of passthrough, fifo" in run(str(small), "--baseline", "fcfs", status=2)


def test_a_trace_that_cannot_be_used_is_told_with_its_line(small: Path) -> None:
    source = "  - {name: t, band: p1, trace: t.csv, arrivals: {law: trace}}\n"
    small.write_text(SMALL.replace("claims:", source + "claims:"))
    (small.parent / "t.csv").write_text("arrival_ms,prompt_tokens,output_tokens\n0,1,1\n5,x,1\n")
    assert "t.csv, line 3: prompt_tokens: expected a number, got 'x'" in run(str(small), status=2)


class Page(HTMLParser):
    """Collects tags, and whatever a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for key, value in attrs if key in ("src", "href") or key.endswith(":href")]


@pytest.mark.slow
def test_the_page_needs_no_network_and_no_script(small: Path) -> None:
    pytest.importorskip("matplotlib")
    out = small.parent / "r.html"
    run(str(small), "--html", str(out))
    text = out.read_text()
    page = Page(text)
    assert page.tags.count("svg") == 7 + text.count("Refusals by reason</h2>")
    assert all(target.startswith("#") for target in page.fetched)
    assert "script" not in page.tags
    assert not re.search(r"url\((?!#)|@import", text)
    assert "A &lt;small&gt; flood &amp; some questions." in text
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert _charts._INK not in text
    assert len(text) < 1_000_000


def test_without_the_library_the_page_says_what_to_install(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = CliRunner().invoke(app, ["simulate", str(small), "--html", str(small.parent / "r.html")])
    assert result.exit_code != 0
    assert "pip install 'tidegate[report]'" in str(result.exception)
    assert "holds" in run(str(small), "--baseline", "none")


def test_a_page_that_cannot_be_written_is_told_before_the_run(small: Path) -> None:
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(app, ["simulate", str(small), "--html", str(small.parent / "no" / "r.html")])
    assert isinstance(result.exception, FileNotFoundError)
    assert result.exception.filename == str(small.parent / "no")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk"])
def test_a_terminal_that_has_not_all_letters_gets_those_that_it_has(small: Path, encoding: str) -> None:
    command = [sys.executable, "-m", "tidegate", "simulate", str(small), "--baseline", "none"]
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    result = subprocess.run(command, env=environ, capture_output=True, check=False, timeout=18)
    assert (result.returncode, result.stderr) == (0, b"")
    assert "holds" in result.stdout.decode(encoding)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_under_any_hash_seed(small: Path) -> None:
    pytest.importorskip("matplotlib")
    made = set()
    for hash_seed in ("0", "4711"):
        page = small.parent / f"{hash_seed}.html"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tidegate",
                "simulate",
                str(small),
                "--json",
                "--html",
                str(page),
                "--baseline",
                "fifo",
            ],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        )
        made.add((done.stdout, page.read_bytes()))
    assert len(made) == 1
