"""Tokens that were computed for nothing, by cause: the one fold of the gateway's metric and of the simulator.

Two things waste: an answer that nobody gets to its end, with all that was computed for it, and what is computed a
second time so that an answer can go on. A token counts once: what was computed again is not among what an ended request
used.
"""

from __future__ import annotations

from collections import defaultdict

from tidegate.core import Outcome

PREEMPTED, BROKEN = "preempted", "broken"
"""Why an answer has a seam. A request that did not complete counts under its outcome."""


class Waste:
    """Adds up.

    Attributes:
        by_cause: the tokens of each cause.
        computed: all tokens that were computed, for nothing or not.
    """

    __slots__ = ("by_cause", "computed")

    def __init__(self) -> None:
        self.by_cause: defaultdict[str, int] = defaultdict(int)
        self.computed = 0

    def again(self, cause: str, tokens: int) -> None:
        """Count tokens that were computed before and are once more, because of ``cause``."""
        if tokens:
            self.by_cause[cause] += tokens
            self.computed += tokens

    def ended(self, outcome: Outcome, tokens: int) -> None:
        """Count the end of a request for which ``tokens`` were computed, apart from those of ``again``."""
        self.computed += tokens
        if tokens and outcome is not Outcome.COMPLETED:
            self.by_cause[outcome.value] += tokens

    @property
    def total(self) -> int:
        """Tokens of all causes."""
        return sum(self.by_cause.values())

    @property
    def part(self) -> float | None:
        """What part of the computed tokens that is; ``None`` when none were computed."""
        return self.total / self.computed if self.computed else None

    def largest_first(self) -> dict[str, int]:
        """Return the tokens of each cause, the most first."""
        return dict(sorted(self.by_cause.items(), key=lambda pair: (-pair[1], pair[0])))
