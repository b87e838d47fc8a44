"""Claims: sentences about the figures of a run that hold or do not, like ``p0.wait_p99 <= 50ms``.

``[RUN.]GROUP.FIGURE OPERATOR [FACTOR *] VALUE``, where VALUE is a number, a percentage, a duration or another figure:
``summaries.total_max <= 1.1 * fifo.summaries.total_max``. RUN is ``tidegate`` unless a baseline is named; GROUP is a
band, a source or ``all``. A figure that is only a lower bound (some were still waiting) never proves an upper one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidegate.core import TidegateError
from tidegate.simulation.report import GroupReport, Report
from tidegate.simulation.tally import Quantile

_CLAIM = re.compile(r"(?P<left>\S+)\s*(?P<op><=|>=|==|<|>)\s*(?:(?P<factor>[\d.]+)\s*[*×]\s*)?(?P<right>[^\s<>=]\S*)")
_VALUE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|h|%)?")
_UNITS = {None: 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "%": 0.01}
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}
_TIMES = {
    f"{time}_{stat}" for time in ("wait", "ttft", "tpot", "total") for stat in ("p50", "p90", "p99", "max", "mean")
}
_PLAIN = {
    "sent", "answered", "open", "in_slo", "dispatches", "floors", "overtakes", "dispatch_part", "token_part",
    "answer_tokens", "answer_rate", "goodput", "value", "preemptions", "last_end", "wasted_tokens", "computed_tokens",
}  # fmt: skip
_DERIVED = {"refused", "answered_part", "wasted_part", "cached_part"}
_OF_RUN = {"kv_mean", "starvation", "value_of_bound"}
FIGURES = tuple(sorted(_TIMES | _PLAIN | _DERIVED | _OF_RUN))


class ClaimError(TidegateError, ValueError):
    """A claim that cannot be read, or speaks of what there is not."""


@dataclass(slots=True, frozen=True)
class Figure:
    """A figure of a group of a run."""

    run: str
    group: str
    figure: str


@dataclass(slots=True, frozen=True)
class Claim:
    """One claim; ``right`` is a figure, or ``None`` beside the number ``value``."""

    text: str
    left: Figure
    op: str
    value: float
    right: Figure | None = None

    @property
    def runs(self) -> set[str]:
        """The runs that it speaks of."""
        return {self.left.run} | ({self.right.run} if self.right else set())


@dataclass(slots=True, frozen=True)
class Verdict:
    """What a claim came to: the figures, and whether it holds."""

    claim: Claim
    holds: bool
    left: float | None
    right: float | None
    at_least: bool = False


def parse_claim(text: str, *, groups: tuple[str, ...], runs: tuple[str, ...]) -> Claim:
    """Read a claim.

    Args:
        text: the sentence.
        groups: names of bands and sources.
        runs: names of all possible runs, the policy's own first.

    Raises:
        ClaimError: says what was expected.
    """
    match = _CLAIM.fullmatch(text.strip())
    if match is None:
        raise ClaimError(f"expected GROUP.FIGURE <= VALUE, like p0.wait_p99 <= 50ms, got {text!r}")
    left = _path(match["left"], groups, runs)
    try:
        factor = float(match["factor"] or 1)
    except ValueError:
        raise ClaimError(f"expected a number before *, got {match['factor']!r}") from None
    value = _VALUE.fullmatch(match["right"])
    if value is not None:
        return Claim(text, left, match["op"], factor * float(value[1]) * _UNITS[value[2]])
    return Claim(text, left, match["op"], factor, _path(match["right"], groups, runs))


def judge(claim: Claim, reports: Mapping[str, Report]) -> Verdict:
    """Say whether a claim holds; one about a figure that does not exist (nobody was sent) does not."""
    left, left_bound = figure_of(reports, claim.left)
    right: float | None = claim.value
    right_bound = False
    if claim.right is not None:
        other, right_bound = figure_of(reports, claim.right)
        right = None if other is None else claim.value * other
    if left is None or right is None:
        return Verdict(claim, holds=False, left=left, right=right)
    undecided = (left_bound and claim.op not in (">", ">=")) or (right_bound and claim.op not in ("<", "<="))
    holds = _OPERATORS[claim.op](left, right) and not undecided
    return Verdict(claim, holds, left, right, left_bound)


def figure_of(reports: Mapping[str, Report], path: Figure) -> tuple[float | None, bool]:
    """Return a figure, and whether it is only a lower bound."""
    report = reports.get(path.run)
    if report is None:
        return None, False
    if path.figure in _OF_RUN:
        return (report.kv_mean if path.figure == "kv_mean" else report.extra.get(path.figure)), False
    group = report.group(path.group)
    return (None, False) if group is None else _figure(group, path.figure)


def _figure(group: GroupReport, figure: str) -> tuple[float | None, bool]:
    if figure in _TIMES:
        time, _, stat = figure.partition("_")
        value = getattr(getattr(group, time), stat)
        if isinstance(value, Quantile):
            return value.seconds, value.at_least
        return value, False
    if figure in _DERIVED:
        whole, part = {
            "refused": (1, sum(group.refused.values())),
            "answered_part": (group.sent, group.answered),
            "wasted_part": (group.computed_tokens, group.wasted_tokens),
            "cached_part": (group.prompt_tokens, group.cached_tokens),
        }[figure]
        return (part / whole if whole else None), False
    value = getattr(group, figure)
    return (None if value is None else float(value)), False


def _path(text: str, groups: tuple[str, ...], runs: tuple[str, ...]) -> Figure:
    *rest, figure = text.split(".")
    run = runs[0]
    if len(rest) > 1 and rest[0] in runs:
        run, rest = rest[0], rest[1:]
    group = ".".join(rest)
    if group not in (*groups, "all"):
        known = ", ".join((*groups, "all"))
        raise ClaimError(f"{text}: expected a band or a source before the figure, one of {known}, got {group!r}")
    if figure not in FIGURES:
        raise ClaimError(f"{text}: expected a figure, one of {', '.join(FIGURES)}, got {figure!r}")
    return Figure(run, group, figure)
