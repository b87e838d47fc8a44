"""What is wrong with a file: every problem at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.core import TidegateError


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a source; line and column count from 1, 0 means that the source has no lines."""

    source: str
    line: int = 0
    column: int = 0


REQUEST = Mark("request")
"""Where settings came from that no file holds."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        path: dotted path of the setting, like ``models[0].backends[1].url``; empty for the file as a whole.
        expected: what would have been right, as a sentence part that starts with "expected", or a whole sentence.
        came: what stood there, as it may be shown (never a secret); empty when nothing did.
        nearest: the known name that looks most like what came.
        mark: where it stands.
    """

    path: str
    expected: str
    came: str = ""
    nearest: str | None = None
    mark: Mark = Mark("settings")

    @property
    def source(self) -> str:
        """File name, or what else the setting came from."""
        return self.mark.source

    @property
    def line(self) -> int:
        """Line in the source, from 1."""
        return self.mark.line

    @property
    def column(self) -> int:
        """Column in the source, from 1."""
        return self.mark.column

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        came = f", got {self.came}" if self.came else ""
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f"{place}: {self.path + ': ' if self.path else ''}{self.expected}{came}{hint}"


class ConfigError(TidegateError):
    """Settings that cannot be used. ``errors`` holds every problem found, in the order of the file."""

    def __init__(self, errors: Iterable[Problem]) -> None:
        self.errors = tuple(sorted(errors, key=lambda problem: (problem.line, problem.column)))
        super().__init__("\n".join(str(problem) for problem in self.errors))
