"""Ends of rows on their way to the disk: collected for a moment, said to the worker, kept until it confirms them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from tidegate.jobs.messages import Report, Result

COLLECT_S: Final = 0.002
"""How long ends are collected: a commit costs the same for one as for hundreds."""


class Reports:
    """What was not confirmed yet. ``say`` tells the worker."""

    def __init__(self, say: Callable[[Report], None]) -> None:
        self._say = say
        self._results: list[Result] = []
        self._said: dict[int, Report] = {}
        self._ids = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many reports the worker has not confirmed."""
        return len(self._said)

    def add(self, result: Result) -> None:
        """Report an end soon."""
        self._results.append(result)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COLLECT_S, self.flush)

    def flush(self) -> None:
        """Report what is collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._results:
            report = Report(next(self._ids), self._results)
            self._results = []
            self._said[report.id] = report
            self._say(report)

    def settled(self, report_id: int) -> None:
        """A report is on disk."""
        self._said.pop(report_id, None)

    def again(self) -> tuple[list[int], list[Report]]:
        """Return the lease tokens of all ends that are not confirmed, and what was said of them."""
        said = list(self._said.values())
        results = [result for report in said for result in report.results] + self._results
        return [result.row.token for result in results], said
