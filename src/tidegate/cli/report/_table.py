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
_GROUP = (
    *("sent", "answered", "refused", "wait\np50/p99", "longest\nwait", "TTFT\np50/p99"),
    *("in\nSLO", "share", "good\ntok/s"),
)
"""Heads of ``_cells``."""


def show_result(console: Console, result: Result) -> None:
    """Print the tables, what their figures mean, and the claims."""
    scenario = result.scenario
    console.print(Text(f"{scenario.name}, seed {scenario.seed}: {scenario.description}".rstrip(": "), style="bold"))
    console.print(_bands(result))
    if _differ(result):
        console.print(_sources(result))
    console.print(_runs(result))
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
        table.add_column(head, justify="right", overflow="fold")
    return table


def _bands(result: Result) -> Table:
    table = _table("Bands", ("band", "run"), _GROUP)
    for index, name in enumerate(result.scenario.bands):
        if not any(report.bands[index].sent for report in result.runs.values()):
            continue
        for number, report in enumerate(result.runs.values()):
            last = number == len(result.runs) - 1
            row = (name if number == 0 else "", report.name, *_cells(report.bands[index]))
            table.add_row(*row, style="bold" if number == 0 else "", end_section=last)
    return table


def _sources(result: Result) -> Table:
    report = next(iter(result.runs.values()))
    table = _table(f"Sources, {report.name}", ("source",), _GROUP)
    for group in report.sources:
        table.add_row(group.name, *_cells(group))
    return table


def _cells(group: GroupReport) -> tuple[str, ...]:
    answered = f"{group.answered:,}" + (f"\n{group.open:,} open" if group.open else "")
    return (
        f"{group.sent:,}",
        answered,
        refusals(group).replace(", ", "\n"),
        f"{quantile(group.wait.p50)}\n{quantile(group.wait.p99)}",
        quantile(group.wait.max),
        f"{quantile(group.ttft.p50)}\n{quantile(group.ttft.p99)}",
        part(group.in_slo),
        part(group.token_part),
        f"{group.goodput:,.0f}",
    )


def _runs(result: Result) -> Table:
    heads = ("took", "tokens/s", "value", "KV use", "preempted", "thrown away", "floors", "overtakes", "gap ÷\nbound")
    table = _table("Runs", ("run",), heads)
    for report in result.runs.values():
        table.add_row(report.name, *_run_cells(report))
    return table


def _run_cells(report: Report) -> tuple[str, ...]:
    total = report.total
    return (
        seconds(report.seconds),
        f"{total.answer_rate:,.0f}",
        value(report).replace(" (", "\n("),
        part(report.kv_mean),
        f"{total.preemptions:,}",
        part(total.wasted_tokens / total.computed_tokens, 2) if total.computed_tokens else NONE,
        f"{total.floors:,}",
        f"{total.overtakes:,}",
        gap(report),
    )


def _notes(result: Result) -> list[str]:
    notes = meanings(result.runs.values())
    if any(group.sent and group.in_slo is None for report in result.runs.values() for group in report.bands):
        notes.append("In SLO –: for none of them is it decided yet.")
    return notes
