"""From the records of two runs to the table and the verdict. Pure.

A request without its first text when the run ends counts as *waiting with its age so far*: its wait is at least that
long, which flatters a run with a long queue and never the other. A percentile that falls on such a request is a lower
bound and marked so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum

from tidegate.cli.demo._plan import BANDS, engine_ms
from tidegate.cli.demo._record import Record

TTFT_SLO_S: tuple[float | None, ...] = (1.0, 10.0, None)
"""First-token targets of the flash-sale preset (p2 has none)."""

MAX_LAG = 0.05
"""Part of the engine's step time by which it may be late before the figures mean nothing."""

MAX_CLIENT_LATE_S = 0.25
"""99th percentile by which the load generator may send late, likewise."""


FAULTS = ("http_", "no_connection", "connection_lost", "broken_answer", "cut", "error_event")
"""How the reasons begin that are faults of a part, not refusals by policy."""


class Code(IntEnum):
    """Exit codes of the demo: ``NO_VERDICT`` when the machine was too busy or the runs too short."""

    KEPT = 0
    NOT_KEPT = 1
    NO_VERDICT = 3


@dataclass(slots=True, frozen=True)
class Quantile:
    """A percentile in seconds; ``at_least`` when it falls on a request that was still waiting. Prints without unit."""

    seconds: float
    at_least: bool = False

    def __str__(self) -> str:
        number = f"{self.seconds:.2f}" if self.seconds < 9.95 else f"{self.seconds:.1f}"
        return f"{'≥' if self.at_least else ''}{number}"


@dataclass(slots=True, frozen=True)
class BandReport:
    """One band in one run.

    Attributes:
        band: its name.
        sent: requests sent.
        answered: complete answers.
        refused: refusals and failures by reason.
        unfinished: waiting or answering when the run ended.
        queue_p50: and ``queue_p99``: queue wait, without the refused.
        ttft_p50: and ``ttft_p99``: time to the first token, without the refused.
        in_slo: part that met the target, of those for which it is decided; p2, which has no target: part of those sent
            that was answered in full.
    """

    band: str
    sent: int
    answered: int
    refused: dict[str, int]
    unfinished: int
    queue_p50: Quantile | None
    queue_p99: Quantile | None
    ttft_p50: Quantile | None
    ttft_p99: Quantile | None
    in_slo: float | None


@dataclass(slots=True, frozen=True)
class RunReport:
    """One run.

    Attributes:
        name: of the run.
        seconds: its length.
        bands: one report each.
        work: part of the engine's time that went into what clients received (prompts begun, text produced), by the
            costs of the plan; about 1 when the engine is full.
        offered: the same unit, what the timetable asked for.
        output_tokens_per_s: answer tokens received per second.
        lag: part of the engine's step time by which it was late, 0 when it kept up.
        late_p99_s: 99th percentile by which the load generator sent late.
    """

    name: str
    seconds: float
    bands: tuple[BandReport, ...]
    work: float
    offered: float
    output_tokens_per_s: float
    lag: float
    late_p99_s: float

    @property
    def faults(self) -> dict[str, int]:
        """Requests that failed by a fault, by reason."""
        found: Counter[str] = Counter()
        for band in self.bands:
            found.update({reason: n for reason, n in band.refused.items() if reason.startswith(FAULTS)})
        return dict(found)

    @property
    def busy(self) -> bool:
        """Whether the machine was too busy for the figures to mean anything."""
        return self.lag > MAX_LAG or self.late_p99_s > MAX_CLIENT_LATE_S


@dataclass(slots=True, frozen=True)
class Verdict:
    """The last sentence and the exit code that goes with it."""

    code: Code
    sentence: str


@dataclass(slots=True, frozen=True)
class Result:
    """Both runs and the verdict; ``as_dict`` is what ``--json`` prints."""

    fifo: RunReport
    tidegate: RunReport
    verdict: Verdict
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)


def report_run(name: str, records: Sequence[Record], *, seconds: float, lag: float) -> RunReport:
    """Count one run that lasted ``seconds``."""
    late = quantile([(record.sent_s, False) for record in records if record.sent_s is not None], 0.99)
    begun = sum(record.question.prompt_tokens for record in records if record.first_s is not None)
    pieces = sum(record.pieces for record in records)
    return RunReport(
        name=name,
        seconds=seconds,
        bands=tuple(
            _report_band(band, [r for r in records if r.question.band == band], seconds) for band in range(len(BANDS))
        ),
        work=engine_ms(begun, pieces) / 1000 / seconds,
        offered=sum(record.question.engine_ms for record in records) / 1000 / seconds,
        output_tokens_per_s=pieces / seconds,
        lag=lag,
        late_p99_s=late.seconds if late else 0.0,
    )


def quantile(values: Sequence[tuple[float, bool]], q: float) -> Quantile | None:
    """Nearest-rank quantile of (seconds, still waiting) pairs; ``None`` of nothing."""
    if not values:
        return None
    seconds, waiting = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    return Quantile(seconds, waiting)


def judge(fifo: RunReport, tidegate: RunReport) -> Verdict:
    """Say in one sentence what the two runs showed, or why they showed nothing."""
    for run in (fifo, tidegate):
        if run.busy:
            return Verdict(
                Code.NO_VERDICT,
                f"No verdict: this machine was too busy during the {run.name} run (the simulated engine was late by "
                f"{run.lag:.0%} of its step time, allowed {MAX_LAG:.0%}; requests left up to {run.late_p99_s:.2f} s "
                f"late, allowed {MAX_CLIENT_LATE_S:g} s). Run it again when the machine is quieter.",
            )
        if run.faults:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(run.faults.items()))
            return Verdict(
                Code.NOT_KEPT, f"Not kept: requests failed during the {run.name} run ({reasons}): a fault, no refusal."
            )
    before, after = fifo.bands[0], tidegate.bands[0]
    if before.in_slo is None or after.in_slo is None or before.in_slo > 0.9 or not fifo.work:
        return Verdict(
            Code.NO_VERDICT, "No verdict: the runs were too short for a queue to build up; give more --seconds."
        )
    kept = after.in_slo >= 0.95 and after.in_slo > before.in_slo and tidegate.work >= 0.9 * fifo.work
    facts = (
        f"at {fifo.offered:.1f} times what the engine can do, {after.in_slo:.0%} of the checkout questions "
        f"(p0) had their first token within {TTFT_SLO_S[0]:g} s through tidegate and {before.in_slo:.0%} through one "
        f"FIFO queue (p99 {after.ttft_p99} s against {before.ttft_p99} s), while the engine did "
        f"{tidegate.work / fifo.work:.0%} of the work it did under FIFO."
    )
    return Verdict(Code.KEPT, f"Kept: {facts}") if kept else Verdict(Code.NOT_KEPT, f"Not kept: {facts}")


def _report_band(band: int, records: Sequence[Record], seconds: float) -> BandReport:
    served = [record for record in records if record.refused is None]
    queue = [_so_far(record, record.queue_s, seconds) for record in served]
    ttft = [_so_far(record, record.first_s, seconds) for record in served]
    answered = sum(record.done_s is not None for record in served)
    return BandReport(
        band=BANDS[band],
        sent=len(records),
        answered=answered,
        refused=dict(Counter(record.refused for record in records if record.refused is not None)),
        unfinished=len(served) - answered,
        queue_p50=quantile(queue, 0.5),
        queue_p99=quantile(queue, 0.99),
        ttft_p50=quantile(ttft, 0.5),
        ttft_p99=quantile(ttft, 0.99),
        in_slo=_share_in_slo(band, records, seconds),
    )


def _so_far(record: Record, value: float | None, seconds: float) -> tuple[float, bool]:
    return (seconds - record.question.at_s, True) if value is None else (value, False)


def _share_in_slo(band: int, records: Sequence[Record], seconds: float) -> float | None:
    slo = TTFT_SLO_S[band]
    if slo is None:
        return sum(r.done_s is not None and r.refused is None for r in records) / len(records) if records else None
    met = missed = 0
    for record in records:
        value, waiting = _so_far(record, record.first_s, seconds)
        if record.refused is not None or value > slo:
            missed += 1
        elif not waiting:
            met += 1
    return met / (met + missed) if met + missed else None
