"""The report as one HTML page that needs nothing else: no network, no script. Light and dark."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from html import escape
from pathlib import Path

from tidegate._version import __version__
from tidegate.cli.report import _charts as charts
from tidegate.cli.report._words import NONE, gap, meanings, part, quantile, refusals, seconds, value, verdict_sentence
from tidegate.simulation.baselines import BASELINES
from tidegate.simulation.report import GroupReport, Report
from tidegate.simulation.run import TIDEGATE, Result

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1f24; --soft: #5b6470; --grid: #d4d8de; --card: #f5f6f8;
  --good: #1a7f4b; --bad: #c0273f; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --ink: #e4e7eb; --soft: #9aa4b0; --grid: #3a414a;
  --card: #1d2126; --good: #4cc38a; --bad: #ff7b8d; } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem; max-width: 82rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p { margin: .4rem 0; max-width: 60rem } .soft { color: var(--soft); font-size: .9em }
ul.claims { list-style: none; padding: 0; margin: 1rem 0 } ul.claims li { padding: .35rem .7rem; margin: .3rem 0;
  background: var(--card); border-left: 4px solid var(--good) } ul.claims li.fails { border-color: var(--bad) }
.holds b { color: var(--good) } .fails b { color: var(--bad) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92em }
th, td { padding: .28rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid) }
th { font-weight: 600; color: var(--soft) } th:first-child, td:first-child, .run { text-align: left }
td.run { white-space: normal } tr.own td { font-weight: 600 }
tbody tr:first-child td { border-top: 2px solid var(--grid) }
figure { margin: 0; overflow-x: auto; background: var(--card); padding: .5rem; border-radius: 6px }
figure svg { display: block; max-width: none; height: auto; font-family: inherit; color: var(--ink) }
figure svg text { font-family: system-ui, "Noto Sans", sans-serif !important }
"""


def page_of(result: Result) -> str:
    """Return the page.

    Raises:
        PlotsError: the library of the plots is not installed.
    """
    return "\n".join(_parts(result)) + "\n"


def need_page(path: Path) -> None:
    """Fail before a long run rather than after it, when its page cannot be made or written.

    Raises:
        PlotsError: the library of the plots is not installed.
        OSError: there is no such folder.
    """
    charts.need_plots()
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))


def _parts(result: Result) -> Iterator[str]:
    scenario, runs = result.scenario, result.runs
    title = escape(scenario.name)
    yield "<!doctype html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{title}: tidegate report</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{_STYLE}</style></head><body>"
    yield f"<h1>{title}</h1><p>{escape(scenario.description)}</p>"
    yield (
        f'<p class="soft">Seed {scenario.seed}; requests come for {seconds(scenario.duration_s)}; '
        f"{len(scenario.engines)} engine{'s' * (len(scenario.engines) != 1)}; tidegate {__version__}.</p>"
    )
    if result.verdicts:
        yield '<ul class="claims">'
        for verdict in result.verdicts:
            word = "holds" if verdict.holds else "fails"
            yield f'<li class="{word}"><b>{word}</b> {escape(verdict_sentence(verdict))}</li>'
        yield "</ul>"
    yield "<h2>Bands</h2>"
    yield from _band_table(result)
    yield "<h2>Runs</h2>"
    yield from _run_table(result)
    for text in meanings(runs.values()):
        yield f'<p class="soft">{escape(text)}</p>'
    yield from _chart(
        "Queue wait",
        "Part of the requests that were sent to an engine within that time.",
        charts.distributions(runs, "wait"),
    )
    yield from _chart(
        "Time to first token",
        "Part of the requests that had their first token within that time.",
        charts.distributions(runs, "ttft"),
    )
    yield from _chart("Shares over time", "Each band's part of the tokens sent to engines.", charts.shares(runs))
    yield from _chart("Queue depth", "Requests that wait.", charts.depths(runs))
    yield from _chart(
        "Starvation age", "How long the oldest waiting request of each band has waited.", charts.ages(runs)
    )
    if any(report.kv for report in runs.values()):
        yield from _chart(
            "KV use",
            "Part of the engines' KV cache that running requests hold, mean of all engines.",
            charts.kv_use(runs),
        )
    refused = charts.refusals(runs)
    if refused is not None:
        yield from _chart("Refusals by reason", "Requests refused, by the time of the refusal.", refused)
    yield from _chart("Goodput", "Tokens of answers within their targets.", charts.goodput(runs))
    yield "</body></html>"


def _band_table(result: Result) -> Iterator[str]:
    heads = (
        "band",
        "run",
        "sent",
        "answered",
        "open",
        "refused",
        "wait p50",
        "p99",
        "longest",
        "TTFT p50",
        "p99",
        "in SLO",
        "share",
        "good tok/s",
    )
    yield f'<div class="wide"><table><thead><tr>{_cells("th", heads)}</tr></thead>'
    for index, name in enumerate(result.scenario.bands):
        if not any(report.bands[index].sent for report in result.runs.values()):
            continue
        yield "<tbody>"
        for report in result.runs.values():
            yield _row(report, (name, report.name, *_figures(report.bands[index])))
        yield "</tbody>"
    yield "</table></div>"


def _figures(group: GroupReport) -> tuple[str, ...]:
    return (
        f"{group.sent:,}",
        f"{group.answered:,}",
        f"{group.open:,}",
        refusals(group),
        quantile(group.wait.p50),
        quantile(group.wait.p99),
        quantile(group.wait.max),
        quantile(group.ttft.p50),
        quantile(group.ttft.p99),
        part(group.in_slo),
        part(group.token_part),
        f"{group.goodput:,.0f}",
    )


def _run_table(result: Result) -> Iterator[str]:
    heads = ("run", "what it is", "took", "answer tok/s", "value", "KV use", "preempted", "thrown away", "gap ÷ bound")
    yield f'<div class="wide"><table><thead><tr>{_cells("th", heads)}</tr></thead><tbody>'
    for report in result.runs.values():
        total = report.total
        what = BASELINES.get(report.name, "the scenario's policy by the gateway's own scheduler")
        wasted = part(total.wasted_tokens / total.computed_tokens, 2) if total.computed_tokens else NONE
        figures = (
            seconds(report.seconds),
            f"{total.answer_rate:,.0f}",
            value(report),
            part(report.kv_mean),
            f"{total.preemptions:,}",
            wasted,
            gap(report),
        )
        yield _row(report, (report.name, what, *figures))
    yield "</tbody></table></div>"


def _row(report: Report, cells: tuple[str, ...]) -> str:
    own = ' class="own"' if report.name == TIDEGATE else ""
    return f"<tr{own}>{_cells('td', cells)}</tr>"


def _cells(tag: str, texts: tuple[str, ...]) -> str:
    return "".join(
        f"<{tag}{' class=run' if number == 1 else ''}>{escape(text)}</{tag}>" for number, text in enumerate(texts)
    )


def _chart(title: str, caption: str, svg: str) -> Iterator[str]:
    label = escape(f"{title}. {caption}", quote=True)
    yield f'<h2>{escape(title)}</h2><p class="soft">{escape(caption)}</p>'
    yield f'<figure role="img" aria-label="{label}">{svg}</figure>'
