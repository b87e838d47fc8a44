"""Claims are read, and judged by the figures they name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.simulation.claims import FIGURES, ClaimError, Verdict, judge, parse_claim
from tidegate.simulation.report import GroupReport, Report, SpreadReport
from tidegate.simulation.tally import Quantile

GROUPS, RUNS = ("p0", "p1", "jobs"), ("tidegate", "fifo")


def group(name: str, p99: Quantile | None, **figures: Any) -> GroupReport:
    spread = SpreadReport(0.5, p99, p99, p99, p99, [])
    plain = dict.fromkeys(GroupReport.__dataclass_fields__, 0) | {"name": name, "refused": {}}
    times = dict.fromkeys(("wait", "ttft", "tpot", "total"), spread)
    return GroupReport(**(plain | times | figures))


def report(p99: Quantile | None, **figures: Any) -> Report:
    groups = {"p0": group("p0", p99, **figures), "all": group("all", None, **figures)}
    extra = {"starvation": 0.5, "value_of_bound": 0.9}
    return cast("Report", SimpleNamespace(group=groups.get, kv_mean=0.4, extra=extra))


def judged(text: str, own: Report, fifo: Report | None = None) -> Verdict:
    reports = {"tidegate": own} | ({"fifo": fifo} if fifo else {})
    return judge(parse_claim(text, groups=GROUPS, runs=RUNS), reports)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("p0.wait_p99 <= 50ms", True),
        ("p0.wait_p99 < 40ms", False),
        ("p0.wait_p99<=0.04", True),
        ("p0.wait_mean >= 0.5s", True),
        ("tidegate.p0.wait_p99 <= 1min", True),
        ("p0.answered_part >= 90%", True),
        ("p0.answered_part == 1", False),
        ("p0.refused <= 2", True),
        ("all.wasted_part <= 0.1%", True),
        ("all.kv_mean >= 30%", True),
        ("all.starvation <= 1", True),
        ("p0.sent <= 0.5 * fifo.p0.sent", False),
        ("p0.sent >= 0.5 * fifo.p0.sent", True),
        ("p0.sent > fifo.p0.sent", False),
        ("p0.ttft_p99 <= fifo.all.ttft_p99", False),  # nobody has such a time there
    ],
)
def test_claims_hold_or_do_not(text: str, *, holds: bool) -> None:
    figures = {"sent": 20, "answered": 18, "refused": {"shed": 2}, "computed_tokens": 10_000, "wasted_tokens": 10}
    assert judged(text, report(Quantile(0.04), **figures), report(Quantile(9.0), sent=30)).holds is holds


def test_a_lower_bound_proves_no_upper_one() -> None:
    waiting = report(Quantile(0.04, at_least=True))
    assert not judged("p0.wait_p99 <= 50ms", waiting).holds
    assert judged("p0.wait_p99 >= 10ms", waiting).holds
    known = report(Quantile(0.05))
    assert judged("p0.wait_p99 <= 2 * fifo.p0.wait_p99", known, waiting).holds
    assert not judged("p0.wait_p99 >= 0.1 * fifo.p0.wait_p99", known, waiting).holds


def test_a_claim_names_the_runs_that_it_needs() -> None:
    claim = parse_claim("jobs.total_max <= 1.1 * fifo.jobs.total_max", groups=GROUPS, runs=RUNS)
    assert claim.runs == {"tidegate", "fifo"}
    assert (claim.value, claim.left.group, claim.right and claim.right.run) == (1.1, "jobs", "fifo")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("p0.wait_p99", "expected GROUP.FIGURE <= VALUE"),
        ("p0.wait_p99 <= ", "expected GROUP.FIGURE <= VALUE"),
        ("p9.wait_p99 <= 1", "one of p0, p1, jobs, all, got 'p9'"),
        ("p0.wait <= 1", "expected a figure, one of .*wait_p99.*, got 'wait'"),
        ("wait_p99 <= 1", "expected a band or a source before the figure"),
        ("p0.wait_p99 <= 1.1.1 * p0.ttft_p99", "expected a number before"),
        ("p0.wait_p99 <= lots", "expected a band or a source before the figure"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, told: str) -> None:
    with pytest.raises(ClaimError, match=told):
        parse_claim(text, groups=GROUPS, runs=RUNS)


def test_every_figure_can_be_claimed() -> None:
    own = report(Quantile(1.0), sent=1, computed_tokens=1, prompt_tokens=1, in_slo=1.0, dispatch_part=1.0)
    for figure in FIGURES:
        assert judged(f"p0.{figure} >= 0", own).left is not None
