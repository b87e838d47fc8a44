"""What is to become of a row, given how its last sending ended. Pure; chance is handed in."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tidegate.jobs.messages import Result
from tidegate.jobs.records import one_line
from tidegate.stores import Answer, Bury, Finish, GiveBack, Retry, RowState, Verdict

BUSY: Final = frozenset({429, 503})
"""Statuses that say nothing of the row: it goes back and has used no attempt."""
AGAIN: Final = frozenset({408, 409, 425})
"""Errors of the client's kind that may pass."""
MOST_EXPONENT: Final = 10


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a row is tried again.

    Waits double from ``first_s`` up to ``most_s`` and are spread by half, so that rows that failed together do not
    come back together. What the upstream asks for counts where it is longer, up to an hour.
    """

    max_attempts: int = 5
    first_s: float = 1.0
    most_s: float = 60.0
    most_asked_s: float = 3600.0

    def wait_s(self, times: int, asked_s: float | None, chance: random.Random) -> float:
        """Seconds until the next try, after ``times`` earlier ones came to nothing."""
        own = min(self.first_s * 2.0 ** min(times, MOST_EXPONENT), self.most_s)
        asked = min(asked_s or 0.0, self.most_asked_s)
        return max(own, asked) * (1 + chance.random() / 2)

    def is_final(self, result: Result) -> bool:
        """Whether a row that ended so has ended for good."""
        if _came_to_nothing(result):
            return False
        return not _may_pass(result) or result.row.attempts + 1 >= self.max_attempts

    def verdict(self, result: Result, now_utc: float, chance: random.Random) -> Verdict:
        """Decide on a row."""
        row, status = result.row, result.status
        if _came_to_nothing(result):
            wait_s = self.wait_s(row.returns, result.retry_after_s, chance)
            return GiveBack(row, now_utc + wait_s, result.error or f"status {status}")
        if not self.is_final(result):
            wait_s = self.wait_s(row.attempts, result.retry_after_s, chance)
            return Retry(row, now_utc + wait_s, result.error or f"status {status}")
        if _may_pass(result):
            return Bury(row, _answer(result))
        ended = RowState.COMPLETED if status is not None and status < 400 else RowState.FAILED
        return Finish(row, ended, _answer(result))


def _came_to_nothing(result: Result) -> bool:
    """Nothing was said of the row: it was returned, or the backend is busy."""
    return (result.status is None and not result.broken) or result.status in BUSY


def _may_pass(result: Result) -> bool:
    """Whether another attempt may end better."""
    return result.status is None or result.status >= 500 or result.status in AGAIN


def _answer(result: Result) -> Answer:
    if result.status is None:
        return Answer(code="upstream_error", message=result.error[:2000] or "The backend did not finish its answer.")
    return Answer(status=result.status, request_id=result.request_id, body=one_line(result.body))
