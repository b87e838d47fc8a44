"""The report on a terminal; it needs nothing but the base install."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.cli.report._words import NONE, gap, meanings, part, quantile, refusals, seconds, value, verdict_sentence
from tidegate.simulation.report import GroupReport, Report
from tidegate.simulation.run import Result

_SHOWN_SOURCES = 12
_WIDE = 92  # columns of a terminal that has room for everything
_REFUSED = "re-\nfused"
_LONGEST = "longest\nwait"
_SLO, _SHARE = "in\nSLO", "share"
_GROUP = (
    *("sent", "an-\nswered", _REFUSED, "wait\np50\np99", _LONGEST, "TTFT\np50\np99"),
    *(_SLO, _SHARE, "good\ntok/s"),
)
"""Heads of ``_cells``."""


def show_result(console: Console, result: Result) -> None:
    """Print the tables, what their figures mean, and the claims."""
    scenario = result.scenario
    console.print(Text(f"{scenario.name}, seed {scenario.seed}: {scenario.description}".rstrip(": "), style="bold"))
    wide = console.width >= _WIDE
    console.print(_bands(result, wide=wide))
    if _differ(result):
        console.print(_sources(result, wide=wide))
    console.print(_runs(result, wide=wide))
    for line in _notes(result):
        console.print(Text(line, style="dim"))
    for verdict in result.verdicts:
        style, sign = ("green", "holds") if verdict.holds else ("bold red", "FAILS")
        console.print(Text(f"{sign}  {verdict_sentence(verdict)}", style=style))


def _differ(result: Result) -> bool:
    """Whether sources are not the same as bands, and few enough to show."""
    first = next(iter(result.runs.values()))
    bands = {(group.sent, group.answered) for group in first.bands}
    return len(first.sources) <= _SHOWN_SOURCES and any((row.sent, row.answered) not in bands for row in first.sources)


def _table(title: str, lead: tuple[str, ...], heads: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    for head in lead:
        table.add_column(head, no_wrap=True)
    for head in heads:
        wraps = head == _REFUSED
        table.add_column(head, justify="right", overflow="fold" if wraps else "ellipsis", no_wrap=not wraps)
    return table


def _bands(result: Result, *, wide: bool) -> Table:
    table = _table("Bands", ("band", "run"), _heads(wide=wide))
    for index, name in enumerate(result.scenario.bands):
        if not any(report.bands[index].sent for report in result.runs.values()):
            continue
        for number, report in enumerate(result.runs.values()):
            last = number == len(result.runs) - 1
            row = (name if number == 0 else "", report.name, *_cells(report.bands[index], wide=wide))
            table.add_row(*row, style="bold" if number == 0 else "", end_section=last)
    return table


def _sources(result: Result, *, wide: bool) -> Table:
    report = next(iter(result.runs.values()))
    table = _table(f"Sources, {report.name}", ("source",), _heads(wide=wide))
    for group in report.sources:
        table.add_row(group.name, *_cells(group, wide=wide))
    return table


def _heads(*, wide: bool) -> tuple[str, ...]:
    """Those of ``_cells``; where room is scarce the share stands below the part in SLO."""
    if wide:
        return _GROUP
    return tuple("in SLO\nshare" if head == _SLO else head for head in _GROUP if head not in (_LONGEST, _SHARE))


def _cells(group: GroupReport, *, wide: bool) -> tuple[str, ...]:
    answered = f"{group.answered:,}" + (f"\n{group.open:,} open" if group.open else "")
    return (
        f"{group.sent:,}",
        answered,
        refusals(group).replace(", ", "\n").replace("_", "_" if wide else " "),
        f"{quantile(group.wait.p50)}\n{quantile(group.wait.p99)}",
        *((quantile(group.wait.max),) if wide else ()),
        f"{quantile(group.ttft.p50)}\n{quantile(group.ttft.p99)}",
        *(
            (part(group.in_slo), part(group.token_part))
            if wide
            else (f"{part(group.in_slo)}\n{part(group.token_part)}",)
        ),
        f"{group.goodput:,.0f}",
    )


def _runs(result: Result, *, wide: bool) -> Table:
    heads = ("took", "tok/s", "value", "KV\nuse", "pre-\nempted", "thrown\naway", "gap ÷\nbound")
    table = _table("Runs", ("run",), (*heads, "floors", "overtakes") if wide else heads)
    for report in result.runs.values():
        cells = _run_cells(report)
        table.add_row(report.name, *(cells if wide else cells[: len(heads)]))
    return table


def _run_cells(report: Report) -> tuple[str, ...]:
    total = report.total
    return (
        seconds(report.seconds),
        f"{total.answer_rate:,.0f}",
        value(report).replace(" (", "\n").rstrip(")"),
        part(report.kv_mean),
        f"{total.preemptions:,}",
        part(total.wasted_tokens / total.computed_tokens, 2) if total.computed_tokens else NONE,
        gap(report),
        f"{total.floors:,}",
        f"{total.overtakes:,}",
    )


def _notes(result: Result) -> list[str]:
    notes = meanings(result.runs.values())
    if any(group.sent and group.in_slo is None for report in result.runs.values() for group in report.bands):
        notes.append("In SLO –: for none of them is it decided yet.")
    return notes
