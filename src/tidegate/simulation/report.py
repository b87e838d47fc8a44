"""The report of a run: what became of each band and each source, and what the engines did. A pure fold of records.

A live rehearsal folds the records of its client with the same code, so that the two can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.core import Outcome
from tidegate.simulation.records import Record
from tidegate.simulation.scenario import Scenario
from tidegate.simulation.series import Series, SeriesFold
from tidegate.simulation.tally import Quantile, Spread, Tally

_PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass(slots=True, frozen=True)
class SpreadReport:
    """Times of a group in seconds: mean of those that are over, percentiles of all, and steps for drawing."""

    mean: float | None
    p50: Quantile | None
    p90: Quantile | None
    p99: Quantile | None
    max: Quantile | None
    points: list[tuple[float, float]]


@dataclass(slots=True, frozen=True)
class GroupReport:
    """One band or one source.

    Attributes:
        name: of the band or the source.
        sent, answered, open: requests; open ones were waiting or running when the run was cut.
        refused: by reason, failures and clients that left included.
        wait: arrival to dispatch. ttft: arrival to first token. tpot: per output token. total: arrival to the end.
        in_slo: part that met its targets, of those for which that is decided; ``None`` without any.
        dispatches: sent upstream; ``floors`` and ``overtakes`` of them.
        dispatch_part, token_part: of all dispatches of the run, and of their tokens.
        answer_tokens, answer_rate: tokens of complete answers, in all and a second.
        goodput: tokens a second, prompt and answer, of answers that met their targets.
        value: of those answers.
        prompt_tokens, cached_tokens: of all prompts, and of those what the prefix cache saved.
        computed_tokens, wasted_tokens: computed, and of those thrown away.
        preemptions: times that running work was stopped.
        last_end: when the last of them ended, seconds.
    """

    name: str
    sent: int
    answered: int
    open: int
    refused: dict[str, int]
    wait: SpreadReport
    ttft: SpreadReport
    tpot: SpreadReport
    total: SpreadReport
    in_slo: float | None
    dispatches: int
    floors: int
    overtakes: int
    dispatch_part: float
    token_part: float
    answer_tokens: int
    answer_rate: float
    goodput: float
    value: float
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    wasted_tokens: int
    preemptions: int
    last_end: float


@dataclass(slots=True, frozen=True)
class KvReport:
    """One engine's KV cache: mean and greatest use (parts), and the mean in each cell of the series."""

    name: str
    mean: float
    max: float
    cells: list[float]


@dataclass(slots=True, frozen=True)
class Report:
    """One run.

    Attributes:
        name: what decided: ``tidegate``, or a baseline.
        seconds: when the last event happened.
        bands, sources: the groups; ``total`` is all of them.
        series: over time.
        kv: of each engine; empty when nobody looked.
        extra: figures that others add, by name.
    """

    name: str
    seconds: float
    bands: tuple[GroupReport, ...]
    sources: tuple[GroupReport, ...]
    total: GroupReport
    series: Series
    kv: tuple[KvReport, ...] = ()
    extra: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def kv_mean(self) -> float | None:
        """Mean KV use of all engines."""
        return sum(row.mean for row in self.kv) / len(self.kv) if self.kv else None

    def group(self, name: str) -> GroupReport | None:
        """The band or source of that name, or ``all``."""
        groups = (*self.bands, *self.sources, self.total)
        return next((group for group in groups if group.name == name), None)


class ReportFold:
    """Takes the records of one run of a scenario; ``close`` gives its report."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        slos = tuple(scenario.slo(band) for band in range(len(scenario.bands)))
        self._bands = [Tally(slos) for _ in scenario.bands]
        self._sources = {source.name: Tally(slos) for source in scenario.sources}
        self._total = Tally(slos)
        self._series = SeriesFold(len(scenario.bands), scenario.duration_s)
        self._open: list[Record] = []
        self.last = 0.0

    def add(self, record: Record) -> None:
        """Take a record."""
        if record.outcome is None:
            self._open.append(record)  # what it counts for depends on when the run was cut
        else:
            self._take(record, 0.0)

    def close(self, name: str, seconds: float, kv: Sequence[KvReport] = ()) -> Report:
        """Return the report of a run that ended at ``seconds``."""
        for record in self._open:
            self._take(record, seconds)
        self._open.clear()
        groups = zip(self._scenario.bands, self._bands, strict=True)
        return Report(
            name,
            seconds,
            tuple(self._group(band, tally, seconds) for band, tally in groups),
            tuple(self._group(source, tally, seconds) for source, tally in self._sources.items()),
            self._group("all", self._total, seconds),
            self._series.close(seconds),
            tuple(kv),
        )

    def _take(self, record: Record, end: float) -> None:
        good = self._bands[record.band].add(record, end)
        self._total.add(record, end)
        source = self._sources.get(record.source)
        if source is not None:
            source.add(record, end)
        self._series.add(record, good=good)

    def _group(self, name: str, tally: Tally, seconds: float) -> GroupReport:
        decided = tally.sent - tally.undecided
        kinds = {str(kind): count for kind, count in tally.kinds.items()}
        return GroupReport(
            name,
            tally.sent,
            tally.answered,
            tally.open,
            dict(sorted(tally.refused.items())),
            _spread(tally.waits),
            _spread(tally.ttfts),
            _spread(tally.tpots),
            _spread(tally.totals),
            tally.in_slo / decided if decided else None,
            tally.dispatches,
            kinds.get("floor", 0),
            kinds.get("overtake", 0),
            tally.dispatches / max(1, self._total.dispatches),
            tally.dispatched_tokens / max(1, self._total.dispatched_tokens),
            tally.answer_tokens,
            tally.answer_tokens / max(seconds, 1e-9),
            tally.good_tokens / max(seconds, 1e-9),
            tally.value,
            tally.prompt_tokens,
            tally.cached_tokens,
            tally.computed_tokens,
            tally.wasted_tokens,
            tally.preemptions,
            tally.last_end,
        )


def _spread(spread: Spread) -> SpreadReport:
    figures = {name: spread.quantile(part) for name, part in _PARTS.items()}
    return SpreadReport(spread.mean(), **figures, points=spread.points())


def outcome_counts(group: GroupReport) -> dict[str, int]:
    """Every request of a group once: answered, open, and each reason."""
    return {str(Outcome.COMPLETED): group.answered, "open": group.open, **group.refused}


def as_data(report: Report) -> dict[str, Any]:
    """The report as plain values for JSON, figures rounded to six places; equal reports give equal values."""
    return {
        "name": report.name,
        "seconds": _round(report.seconds),
        "kv_mean": _round(report.kv_mean),
        "extra": {name: _round(value) for name, value in sorted(report.extra.items())},
        "bands": [_group_data(group) for group in report.bands],
        "sources": [_group_data(group) for group in report.sources],
        "total": _group_data(report.total),
        "engines": [{"name": row.name, "kv_mean": _round(row.mean), "kv_max": _round(row.max)} for row in report.kv],
        "over_time": _series_data(report),
    }


def _group_data(group: GroupReport) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name in group.__dataclass_fields__:
        value = getattr(group, name)
        data[name] = _spread_data(value) if isinstance(value, SpreadReport) else _round(value)
    return data


def _spread_data(spread: SpreadReport) -> dict[str, Any]:
    data: dict[str, Any] = {"mean": _round(spread.mean)}
    for name in _PARTS:
        figure: Quantile | None = getattr(spread, name)
        data[name] = None if figure is None else _round(figure.seconds)
        if figure is not None and figure.at_least:
            data[f"{name}_at_least"] = True
    data["points"] = [[_round(seconds), _round(part)] for seconds, part in spread.points]
    return data


def _series_data(report: Report) -> dict[str, Any]:
    series = report.series
    names = [group.name for group in report.bands]
    lists = {
        name: {band: _round(row) for band, row in zip(names, getattr(series, name), strict=True)}
        for name in ("sent", "dispatched", "tokens", "good_tokens", "depth", "oldest_s")
    }
    return {
        "cell_s": _round(series.cell_s),
        **lists,
        "refused": series.refused,
        "kv": {row.name: _round(row.cells) for row in report.kv},
    }


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list | tuple):
        return [_round(item) for item in value]
    return value
