"""The pages that users read, cut into fenced snippets and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block: its page, line, language and text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read(page: Path) -> str:
    """Return the text of a page."""
    return page.read_text(encoding="utf-8")


def snippets(*languages: str) -> list[Snippet]:
    """Return every fenced block of all pages in one of the languages."""
    return [
        Snippet(page, read(page).count("\n", 0, match.start()) + 1, match["language"], match["text"])
        for page in PAGES
        for match in _FENCE.finditer(read(page))
        if match["language"] in languages
    ]


def links(page: Path) -> list[str]:
    """Return the targets of a page's links, outside of fenced blocks."""
    return [match["target"] for match in _LINK.finditer(_FENCE.sub("", read(page)))]


def headings(page: Path) -> list[int]:
    """Return the depth of each heading of a page, in order."""
    return [len(line) - len(line.lstrip("#")) for line in _FENCE.sub("", read(page)).splitlines() if line[:1] == "#"]
