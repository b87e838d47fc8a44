"""The plots of a report as SVG, drawn by matplotlib (extra ``report``). The same figures give the same bytes.

Colours are readable on light and dark ground; ink and grid are left to the page by two marks, which are replaced after
drawing, so that one picture serves both.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.cli.report._words import seconds
from tidegate.core import TidegateError
from tidegate.simulation.report import GroupReport, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND_COLOURS = ("#d6455d", "#c98500", "#3b8ad9", "#2f9e6e", "#9b6bd6", "#b0603a", "#7a8794", "#c2559d")
RUN_COLOURS = ("#2f9e6e", "#d6455d", "#c98500", "#3b8ad9", "#9b6bd6", "#7a8794")
_INK, _GRID = "#010203", "#040506"
_MOST_CELLS, _FEW_CELLS = 240, 60
_COLUMN, _HEIGHT = 2.35, 2.1  # inches, of one plot


class PlotsError(TidegateError):
    """The library of the plots is not installed."""


def need_plots() -> None:
    """Raise ``PlotsError`` when plots cannot be drawn here."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise PlotsError(
            "the HTML report draws its plots with matplotlib, which is not installed: pip install 'tidegate[report]' "
            "(the table and --json need nothing)"
        ) from None


def distributions(runs: Mapping[str, Report], figure: str) -> str:
    """CDFs of ``wait`` or ``ttft``: a plot for each band, a line for each run."""
    need_plots()
    from matplotlib.ticker import NullLocator

    bands = [band for band in range(_band_count(runs)) if any(report.bands[band].sent for report in runs.values())]

    def draw(axes: Axes, column: int) -> None:
        band = bands[column]
        for number, report in enumerate(runs.values()):
            points = getattr(report.bands[band], figure).points
            if points:
                xs = [max(time, 1e-3) for time, _ in points]
                ys = [100 * part for _, part in points]
                axes.step([xs[0], *xs], [0.0, *ys], where="post", **_line(number, report.name))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: seconds(value) if value > 1e-3 else "≤ 1 ms")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0, 101)
        axes.set_title(_names(runs)[band])
        if column == 0:
            axes.set_ylabel("% no longer")

    return _svg(figure, len(bands), draw, width=1.45)


def shares(runs: Mapping[str, Report]) -> str:
    """Each band's part of the tokens sent to engines, over time: a plot for each run."""

    def draw(axes: Axes, report: Report) -> None:
        times, rows = _over_time(report, "tokens")
        totals = [sum(column) or 1 for column in zip(*rows, strict=True)]
        parts = [[100 * value / total for value, total in zip(row, totals, strict=True)] for row in rows]
        axes.stackplot(times, *parts, colors=BAND_COLOURS, labels=_names(runs), linewidth=0, step="post")
        axes.set_ylim(0, 100)

    return _by_run("shares", runs, draw, "% of tokens")


def depths(runs: Mapping[str, Report]) -> str:
    """What waits, by band, over time: a plot for each run."""
    return _lines("depth", runs, "requests waiting", log=True)


def ages(runs: Mapping[str, Report]) -> str:
    """Age of the oldest that waits, by band, over time: a plot for each run."""
    return _lines("oldest_s", runs, "oldest waits, s", log=True)


def goodput(runs: Mapping[str, Report]) -> str:
    """Tokens of answers within their targets a second, by band, over time: a plot for each run."""
    return _lines("good_tokens", runs, "good tokens/s", rate=True)


def kv_use(runs: Mapping[str, Report]) -> str:
    """Mean KV use of the engines over time: a line for each run."""

    def draw(axes: Axes, _: int) -> None:
        for number, report in enumerate(runs.values()):
            if report.kv:
                cells = [100 * sum(column) / len(report.kv) for column in _columns([row.cells for row in report.kv])]
                axes.plot(_times(len(cells), report.series.cell_s), cells, **_line(number, report.name))
        axes.set_ylim(0, 101)
        axes.set_ylabel("% of the KV cache")
        axes.set_xlabel("minutes")

    return _svg("kv", 1, draw, width=2.6)


def refusals(runs: Mapping[str, Report]) -> str | None:
    """Refusals by reason over time: a plot for each run that refused; ``None`` when none did."""
    refusing = {name: report for name, report in runs.items() if report.series.refused}
    reasons = sorted({reason for report in refusing.values() for reason in report.series.refused})
    if not refusing:
        return None

    def draw(axes: Axes, report: Report) -> None:
        series = report.series
        nothing = [0] * series.cells
        rows = _thinned([series.refused.get(reason, nothing) for reason in reasons], sum, _FEW_CELLS)
        width = series.cell_s * series.cells / len(rows[0])
        rates = [[value / width for value in row] for row in rows]
        axes.stackplot(
            _times(len(rows[0]), width), *rates, colors=RUN_COLOURS[1:], labels=reasons, linewidth=0, step="post"
        )

    return _by_run("refusals", refusing, draw, "refused/s")


def _lines(name: str, runs: Mapping[str, Report], label: str, *, log: bool = False, rate: bool = False) -> str:
    def draw(axes: Axes, report: Report) -> None:
        times, rows = _over_time(report, name)
        width = report.series.cell_s * report.series.cells / len(times)
        for band, row in enumerate(rows):
            if report.bands[band].sent:
                values = [value / width for value in row] if rate else row
                axes.plot(times, values, color=BAND_COLOURS[band], linewidth=1.1, label=report.bands[band].name)
        if log:
            axes.set_yscale("symlog", linthresh=1)

    return _by_run(name, runs, draw, label)


def _by_run(name: str, runs: Mapping[str, Report], draw: Callable[[Axes, Report], None], label: str) -> str:
    reports = list(runs.values())

    def one(axes: Axes, column: int) -> None:
        draw(axes, reports[column])
        axes.set_title(reports[column].name)
        axes.set_xlabel("minutes")
        if column == 0:
            axes.set_ylabel(label)

    return _svg(name, len(reports), one, sharey=True)


def _over_time(report: Report, name: str) -> tuple[list[float], list[list[float]]]:
    series = report.series
    summed = name in ("tokens", "good_tokens")
    rows = _thinned(getattr(series, name), sum if summed else max, _FEW_CELLS if summed else _MOST_CELLS)
    return _times(len(rows[0]), series.cell_s * series.cells / len(rows[0])), rows


def _thinned(
    rows: Sequence[Sequence[float]], fold: Callable[[Sequence[float]], float], most: int = _MOST_CELLS
) -> list[list[float]]:
    """Fold neighbouring cells until few enough are left to draw."""
    step = -(-len(rows[0]) // most)
    return [[fold(row[at : at + step]) for at in range(0, len(row), step)] for row in rows]


def _columns(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Values of all rows at each place; a row that ends early goes on with 0."""
    length = max(len(row) for row in rows)
    return [[row[at] if at < len(row) else 0.0 for row in rows] for at in range(length)]


def _times(cells: int, cell_s: float) -> list[float]:
    return [number * cell_s / 60 for number in range(cells)]


def _line(number: int, name: str) -> dict[str, Any]:
    return {
        "color": RUN_COLOURS[number % len(RUN_COLOURS)],
        "linewidth": 2.0 if number == 0 else 1.2,
        "linestyle": "-" if number == 0 else ("--", "-.", ":", (0, (5, 1)))[(number - 1) % 4],
        "label": name,
        "zorder": 3 if number == 0 else 2,
    }


def _band_count(runs: Mapping[str, Report]) -> int:
    return len(next(iter(runs.values())).bands)


def _names(runs: Mapping[str, Report]) -> list[str]:
    groups: tuple[GroupReport, ...] = next(iter(runs.values())).bands
    return [group.name for group in groups]


def _svg(
    name: str,
    columns: int,
    draw: Callable[[Axes, int], None],
    *,
    width: float = 1.0,
    sharey: bool = False,
) -> str:
    need_plots()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_style(name)):
        figure: Figure = Figure(figsize=(max(2.6, _COLUMN * width * columns), _HEIGHT + 0.35), layout="constrained")
        plots = figure.subplots(1, columns, sharey=sharey, squeeze=False)[0]
        for column, axes in enumerate(plots):
            draw(axes, column)
            axes.grid(visible=True, axis="y")
        if sharey:  # once all are drawn: a limit stops the scale from growing with what comes later
            plots[0].set_ylim(bottom=0)
        handles, labels = plots[0].get_legend_handles_labels()
        if labels:
            figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6), frameon=False)
        text = io.StringIO()
        figure.savefig(
            text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}, transparent=True
        )
    return _inline(text.getvalue())


def _style(name: str) -> Any:  # matplotlib types the keys
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": f"tidegate {name}",
        "font.size": 8,
        "axes.titlesize": 9,
        "axes.edgecolor": _GRID,
        "axes.labelcolor": _INK,
        "text.color": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": _GRID,
        "grid.linewidth": 0.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "path.simplify": True,
    }


def _inline(svg: str) -> str:
    """Cut what only a file of its own needs, and let the page choose ink, grid and letters."""
    svg = svg[svg.index("<svg") :]
    for mark, colour in ((_INK, "currentColor"), (_GRID, "var(--grid)")):
        svg = svg.replace(mark, colour)
    return svg.replace("'DejaVu Sans', ", "").strip()
