"""What the demo shows: the live counts of both runs, then the table, the notes and the verdict."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.demo._plan import BANDS, LOAD, TENANTS
from tidegate.cli.demo._record import Tally
from tidegate.cli.demo._report import TTFT_SLO_S, BandReport, Quantile, Result, RunReport
from tidegate.cli.demo._setup import SEATS

BASELINE = "one FIFO queue in front of the same engine with the same number of seats"


class Screen:
    """The live view: one block per run, drawn anew from the tallies whenever it is rendered."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.status = ""
        self._runs: list[tuple[str, Tally, Callable[[], float]]] = []

    def add_run(self, name: str, tally: Tally, clock: Callable[[], float]) -> None:
        """Show a run from now on; ``clock()`` gives the seconds since it started."""
        self._runs.append((name, tally, clock))

    def __rich__(self) -> RenderableType:
        blocks: list[RenderableType] = [
            _live(name, tally, min(clock(), self.seconds), self.seconds) for name, tally, clock in self._runs
        ]
        return Group(*blocks, Text(self.status, style="dim"))

    def line(self) -> str:
        """The newest run in one line of plain text, for output that is not a terminal."""
        if not self._runs:
            return self.status
        name, tally, clock = self._runs[-1]
        bands = "; ".join(
            f"{band} sent {row['sent']} waiting {row['waiting']} answered {row['answered']} refused {row['refused']}"
            for band, row in zip(BANDS, tally.counts(), strict=True)
        )
        return f"{name} {min(clock(), self.seconds):.0f}/{self.seconds:.0f} s: {bands}"


def show_result(console: Console, result: Result) -> None:
    """Print the table, what its figures mean, and the verdict."""
    table = Table(box=box.SIMPLE_HEAD, title="What the clients saw", title_justify="left", padding=0)
    for head in ("band", "run"):
        table.add_column(head, no_wrap=True)
    for head in ("sent", "answered", "open", "refused"):
        table.add_column(head, justify="right", no_wrap=True)
    for head in ("queue wait\ns p50/p99", "TTFT\ns p50/p99", "in\nSLO"):
        table.add_column(head, justify="right", no_wrap=True)
    for before, after in zip(result.fifo.bands, result.tidegate.bands, strict=True):
        table.add_row(*_row(before, result.fifo))
        table.add_row(*_row(after, result.tidegate), style="bold", end_section=True)
    console.print(table)
    for note in result.notes:
        console.print(Text(note, style="dim"))
    console.print()
    console.print(Text(result.verdict.sentence, style="bold green" if result.verdict.code == 0 else "bold yellow"))


def notes(fifo: RunReport, tidegate: RunReport) -> tuple[str, ...]:
    """Say what was compared and how each figure is counted."""
    return (
        f"FIFO: {BASELINE}. tidegate: the flash-sale preset as it ships. Both: {SEATS} seats, the same "
        f"requests at the same moments, {sum(LOAD):g} x capacity (p0 {LOAD[0]:g}, p1 {LOAD[1]:g}, p2 {LOAD[2]:g}).",
        "Open: waiting or still being answered when the run ended. Times count from the moment a request was due. One "
        "without its first token when the run ended counts with its age so far (≥ marks a figure that is only a lower "
        "bound). Refused requests are in no wait and no TTFT; they are misses in the SLO.",
        f"In SLO: first token within {TTFT_SLO_S[0]:g} s (p0) and {TTFT_SLO_S[1]:g} s (p1), of the requests for which "
        "that is decided; p2 has no first-token target: what was answered in full before the run ended, of those sent.",
        *(
            f"{run.name}: {run.offered:.2f} s of engine time asked for per second, {run.work:.2f} done, "
            f"{run.output_tokens_per_s:,.0f} answer tokens/s; the engine's steps were {run.lag:.1%} late."
            for run in (fifo, tidegate)
        ),
    )


def _live(name: str, tally: Tally, elapsed: float, seconds: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"{name}  {elapsed:4.0f} / {seconds:.0f} s", title_justify="left")
    table.add_column("band", no_wrap=True)
    columns = ("sent", "waiting", "answering", "answered", "refused")
    for head in columns:
        table.add_column(head, justify="right", min_width=9)
    for band, tenant, row in zip(BANDS, TENANTS, tally.counts(), strict=True):
        table.add_row(f"{band} {tenant}", *(str(row[column]) for column in columns))
    return table


def _row(band: BandReport, run: RunReport) -> list[str]:
    refused = "\n".join(f"{count} {reason}" for reason, count in sorted(band.refused.items())) or "0"
    waits = (f"{_time(band.queue_p50)}/{_time(band.queue_p99)}", f"{_time(band.ttft_p50)}/{_time(band.ttft_p99)}")
    share = "–" if band.in_slo is None else f"{band.in_slo:.0%}"
    return [band.band, run.name, str(band.sent), str(band.answered), str(band.unfinished), refused, *waits, share]


def _time(value: Quantile | None) -> str:
    return "–" if value is None else str(value)
