"""Say in the log what a mode that only observes let through although the rules refuse it.

The scheduler counts and does not say which requests these were, so the line gives counts. Invariant: what the lines
say, added up, is what was counted.
"""

from __future__ import annotations

import structlog

from tidegate.runtime.driver import Driver

log = structlog.get_logger("tidegate.runtime")


class ObservedLog:
    """Writes what is new since the line before. ``look`` is to be called once a second: that bounds the lines."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._said: dict[str, int] = {}

    def look(self) -> None:
        """Write one line when something was counted: how many by reason, and ``total``, the sum since the start."""
        if self._driver.faulty:
            return
        counted = {str(reason): count for reason, count in self._driver.snapshot().would}
        if counted == self._said:
            return
        news = {reason: count - self._said.get(reason, 0) for reason, count in counted.items()}
        self._said = counted
        log.info(
            "observe.would",
            **{reason: count for reason, count in news.items() if count},
            total=sum(counted.values()),
        )
