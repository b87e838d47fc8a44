"""The settings reference is generated, complete and fresh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.config import Settings
from tidegate.config.fields import Section
from tidegate.config.later import NOT_YET
from tidegate.config.reference import reference
from tidegate.config.values import duration_text, parse_duration, parse_size, size_text

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def models(model: type[Section]) -> Iterator[type[Section]]:
    yield model
    for other in Section.__subclasses__():
        if other is not model and other.__module__.startswith("tidegate.config"):  # scenarios have sections too
            yield other


def test_the_page_in_docs_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "run: python -m tidegate.config.reference > docs/reference/configuration.md"
    )


def test_every_setting_has_a_line_with_its_meaning() -> None:
    lines = reference().splitlines()
    later = {path.rpartition(".")[2] for path in NOT_YET}
    shown = [model for model in models(Settings) if not model.__name__.startswith("_")]
    for model in shown:
        for key, info in model.model_fields.items():
            if key in later:
                continue
            assert any(line.startswith(f"| `{key}` |") and line.endswith(f"| {info.description} |") for line in lines)
            assert (info.description or "").endswith((".", "`"))


def test_what_this_version_lacks_is_listed() -> None:
    assert all(f"`{path}`" in reference() for path in NOT_YET)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250ms"), (10.0, "10s"), (1800.0, "30min"), (86400.0, "24h"), (1.5, "1500ms"), (0, "0s")],
)
def test_durations_are_written_as_they_may_be_read(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("count", "text"), [(1024**2 * 32, "32MiB"), (1536, "1536B"), (2048, "2KiB"), (3 * 2**30, "3GiB")]
)
def test_sizes_are_written_as_they_may_be_read(count: int, text: str) -> None:
    assert size_text(count) == text
    assert parse_size(text) == count
