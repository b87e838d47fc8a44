"""The docs leave nothing out: commands, options, settings, reasons, metrics; and what they link to is there."""

from __future__ import annotations

import json
import re
import runpy
import typing
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from tidegate.cli import COMMANDS, app
from tidegate.config import Settings
from tidegate.config.changes import LIVE
from tidegate.core import Reason
from tidegate.core.policy import P0, P2
from tidegate.refusals.table import TABLE
from tidegate.telemetry.catalogue import CATALOGUE
from unit.docs_pages import PAGES, ROOT, headings, links, read, snippets

REFERENCE = ROOT / "docs" / "reference"
TRANSLATED = (ROOT / "README.md", ROOT / "README.zh-CN.md")


def parameters(command: str) -> list[list[str]]:
    group = typer.main.get_command(app)
    found = [group.get_command(typer.Context(group), command)]  # type: ignore[attr-defined]
    for each in found:  # grows: a command may have commands
        found += getattr(each, "commands", {}).values()
    return [opts for each in found for parameter in each.params if (opts := parameter.opts)[0].startswith("-")]


def section(command: str) -> str:
    parts = re.split(r"^## `tidegate (\w+)`$", read(REFERENCE / "cli.md"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_documented(command: str) -> None:
    text = section(command)
    missing = [name for opts in parameters(command) for name in opts if f"`{name}" not in text and name != "--help"]
    assert not missing


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_is_documented_that_does_not_exist(command: str) -> None:
    known = {name for opts in parameters(command) for name in opts}
    assert set(re.findall(r"^\|[^|]*?`(--[a-z-]+)", section(command), re.MULTILINE)) <= known


def test_no_command_is_documented_that_does_not_exist() -> None:
    assert set(re.findall(r"^## `tidegate (\w+)`$", read(REFERENCE / "cli.md"), re.MULTILINE)) == set(COMMANDS)


def test_the_page_for_the_person_on_duty_says_which_settings_change_live() -> None:
    rows = re.findall(r"^\| `(gateway|control)` \|(.*)\|(.*)\|$", read(ROOT / "docs/how-to/on-duty.md"), re.MULTILINE)
    told = [
        {(f"{port}.{name}", live) for name in re.findall(r"`(\w+)`", cell)}
        for port, *cells in rows
        for live, cell in zip((True, False), cells, strict=True)
    ]
    fields = [
        (port, name)
        for port in ("gateway", "control")
        for name in Settings.model_fields[port].default.__class__.model_fields
    ]
    assert set().union(*told) == {(f"{port}.{name}", f"{port}.{name}" in LIVE) for port, name in fields}


def settings_of(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for inner in _models_in(field.annotation):
            yield from settings_of(inner)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def test_every_setting_is_documented() -> None:
    text = read(REFERENCE / "configuration.md")
    missing = {name for name in settings_of(Settings) if not re.search(rf"\b{name}\b", text)}
    assert not missing


def test_every_metric_is_documented() -> None:
    text = read(REFERENCE / "metrics.md")
    assert not [metric.name for metric in CATALOGUE if metric.name not in text]


def test_every_metric_that_is_named_exists() -> None:
    names = {metric.name for metric in CATALOGUE}
    used = {name for page in PAGES for name in re.findall(r"`(tidegate_[a-z_]+)`", read(page))}
    assert used <= names


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_documented_with_status_and_code(reason: Reason) -> None:
    row = TABLE[reason]
    line = next(x for x in read(REFERENCE / "http-api.md").splitlines() if x.startswith(f"| `{reason}` |"))
    assert str(row.status) in line
    assert line.endswith(f"`{row.code}` |")


def test_every_path_of_the_control_port_is_documented() -> None:
    text = read(REFERENCE / "http-api.md")
    control = (ROOT / "src" / "tidegate" / "control").glob("*.py")
    paths = {path for file in control for path in re.findall(r'route\(\s*"(/admin/[a-z./-]+)', read(file))}
    assert paths
    assert not {path for path in paths if f" {path}" not in text}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        todo += [
            (page.parent / target.partition("#")[0]).resolve()
            for target in links(page)
            if target.partition("#")[0].endswith(".md") and not target.startswith("http")
        ]
    decisions = {page for page in PAGES if page.parent.name == "decisions"}  # linked as a folder
    assert set(PAGES) - decisions <= reached


def test_the_translation_follows_the_readme() -> None:
    english, chinese = TRANSLATED
    assert headings(chinese) == headings(english)
    code = ("bash", "python", "yaml")
    cut = {page: [s.text for s in snippets(*code) if s.page == page] for page in TRANSLATED}
    strip = re.compile(r"\s*#.*$", re.MULTILINE)
    assert [strip.sub("", text) for text in cut[chinese]] == [strip.sub("", text) for text in cut[english]]
    for number in re.findall(r"\d[\d,.]*\d", read(english)):
        assert number in read(chinese), f"{number} is missing in the translation"


def test_every_room_is_in_the_architecture() -> None:
    text = read(ROOT / "docs" / "architecture.md")
    rooms = {path.parent.name for path in (ROOT / "src" / "tidegate").glob("*/__init__.py")} | {"assembly"}
    assert rooms == set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def test_pictures_are_well_formed() -> None:
    pictures = sorted((ROOT / "docs" / "images").glob("*.svg"))
    assert len(pictures) >= 2
    for picture in pictures:
        assert ET.parse(picture).getroot().tag.endswith("svg")


def test_the_drawn_result_is_the_measured_one() -> None:
    images = ROOT / "docs" / "images"
    draw = runpy.run_path(str(images / "draw_demo.py"))["draw"]
    assert draw(json.loads((images / "demo.json").read_text(encoding="utf-8"))) == read(images / "demo.svg")


def test_the_worked_example_of_the_cap_is_right() -> None:
    text = read(ROOT / "docs" / "explanation" / "next-ticket.md")
    caught_up_ms = (P0.weight - P2.weight) / P2.aging_per_ms
    assert f"{caught_up_ms:,.0f} ms" in text
    for waited_s, shown in ((20, "0.02 s"), (60, "4.0 s"), (300, "28 s"), (1800, "3 min")):
        wait_s = (P2.weight + P2.aging_per_ms * waited_s * 1000 - P0.weight) / (P0.aging_per_ms * 1000)
        number, unit = shown.split()
        assert wait_s / (60 if unit == "min" else 1) == pytest.approx(float(number), rel=0.05)
        assert f"| {shown} |" in text


def test_measured_figures_come_from_the_measured_run() -> None:
    result = json.loads((ROOT / "docs" / "images" / "demo.json").read_text(encoding="utf-8"))
    text = read(ROOT / "README.md")
    for run in ("fifo", "tidegate"):
        for band in result[run]["bands"]:
            quantile = band["ttft_p99"]
            number = f"{quantile['seconds']:.2f}" if quantile["seconds"] < 9.95 else f"{quantile['seconds']:.1f}"
            assert f"{'≥' if quantile['at_least'] else ''}{number} s" in text
            assert f"| {band['in_slo']:.0%} |" in text
