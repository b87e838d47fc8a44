"""How figures are written, in the terminal and on the page alike."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.simulation.claims import Verdict
from tidegate.simulation.report import GroupReport, Report
from tidegate.simulation.tally import Quantile

NONE = "–"

MEANING = (
    "Wait: until it was sent to an engine. TTFT: until the first token. Both count from the arrival; what still waited "
    "at the end counts with its age (≥). Refused requests are in no wait; they are misses of their SLO. Share: of the "
    "tokens sent to engines. Good: tokens of answers in their SLO. Value: of those answers, each token by its band, "
    "answer tokens twice."
)
"""What the figures of a report are."""


def seconds(value: float | None) -> str:
    """Three figures that matter, with the unit that suits: ``12 ms``, ``1.24 s``, ``26.1 min``."""
    if value is None:
        return NONE
    if value < 0.0005:
        return "0 s"
    if value < 0.9995:
        return f"{1000 * value:.3g} ms" if value < 0.0995 else f"{1000 * value:.0f} ms"
    if value < 119.95:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    if value < 2 * 3600:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"


def quantile(value: Quantile | None) -> str:
    """A percentile; ``≥`` where it is only a lower bound."""
    return NONE if value is None else f"{'≥' if value.at_least else ''}{seconds(value.seconds)}"


def part(value: float | None, digits: int = 0) -> str:
    """A part as a percentage; what is not quite all is never rounded up to it."""
    if value is None:
        return NONE
    text = f"{value:.{digits}%}"
    return f"{value:.2%}" if digits == 0 and ((text == "100%" and value < 1) or (text == "0%" and value > 0)) else text


def refusals(group: GroupReport) -> str:
    """Refusals by reason, the most frequent first."""
    rows = sorted(group.refused.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {reason}" for reason, count in rows) or "0"


def verdict_sentence(verdict: Verdict) -> str:
    """What a claim came to, in figures."""
    if verdict.left is None or verdict.right is None:
        return f"{verdict.claim.text}: there is nothing to measure"
    timed = verdict.claim.left.figure.split("_")[0] in ("wait", "ttft", "tpot", "total", "last")
    left = seconds(verdict.left) if timed else f"{verdict.left:,.4g}"
    right = seconds(verdict.right) if timed else f"{verdict.right:,.4g}"
    return f"{verdict.claim.text}: {'at least ' if verdict.at_least else ''}{left} against {right}"


BOUND = (
    "Bound: what a scheduler that knows all arrivals and lengths could get at most, if work could be divided at will."
)
GAP = (
    "Gap: the most dispatches for which a waiting band went without one, over those in which the rules promise it one. "
    "It stands still while a KV watermark, a quota or a limit stops all that waits in the band."
)


def value(report: Report) -> str:
    """What the answers in their targets were worth, and how much of the bound that is."""
    bound = report.extra.get("value_of_bound")
    return f"{report.total.value:,.0f}" + ("" if bound is None else f" ({part(bound)} of bound)")


def gap(report: Report) -> str:
    """The largest gap over its bound."""
    ratio = report.extra.get("starvation")
    return NONE if ratio is None else f"{ratio:.2f}"


def meanings(runs: Iterable[Report]) -> list[str]:
    """What the figures of these runs are, a paragraph each."""
    extra = {name for report in runs for name in report.extra}
    return [MEANING, *([BOUND] if "value_of_bound" in extra else []), *([GAP] if "starvation" in extra else [])]
