"""The figures of a report, against what can be counted by hand."""

from __future__ import annotations

import math
import random
import sys

import pytest

from tidegate.core import BackendSpec, Outcome, Policy, PoolSpec, Reason, Turn
from tidegate.simulation import Record
from tidegate.simulation.report import Report, ReportFold, as_data, outcome_counts
from tidegate.simulation.scenario import Arrivals, EngineSpec, Kind, Scenario, Slo, Source
from tidegate.simulation.series import CELLS
from tidegate.simulation.tally import EXACT, Quantile, Spread, meets, worth

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 8),)),))
SLOS = (Slo(1.0, 0.05, value=8), Slo(end_s=10.0, per_token_s=0.1, value=2), Slo())
SCENARIO = Scenario(
    "s", POLICY, (EngineSpec("b"),), (Source("a", Arrivals(Kind.FIXED), band=0),), float(CELLS), slos=SLOS
)


def answered(
    number: int, band: int, arrival: float, dispatched: float, first: float, finished: float, *, output: int = 11
) -> Record:
    record = Record(number, "t", band, "m", arrival, 100, output, source="a")
    record.dispatched_s, record.first_token_s, record.finished_s = dispatched, first, finished
    record.outcome, record.kind, record.backend = Outcome.COMPLETED, Turn.TURN, "b"
    record.computed_tokens = 100 + output
    return record


def reported(*records: Record, seconds: float = float(CELLS)) -> Report:
    fold = ReportFold(SCENARIO)
    for record in records:
        fold.add(record)
    return fold.close("tidegate", seconds)


def test_quantiles_are_those_of_the_sorted_list() -> None:
    draw = random.Random(1)
    values = [draw.expovariate(1.0) for _ in range(997)]
    spread = Spread()
    for value in values:
        spread.add(value)
    values.sort()
    for part in (0.5, 0.9, 0.99, 1.0):
        assert spread.quantile(part) == Quantile(values[math.ceil(part * 997) - 1])
    points = spread.points()
    assert points[0] == (values[0], 1 / 997)
    assert points[-1] == (values[-1], 1.0)
    assert points == sorted(points)
    assert Spread().quantile(0.5) is None
    assert Spread().points() == []


def test_what_still_waits_counts_with_its_age_and_makes_bounds() -> None:
    waiting = Record(1, "t", 2, "m", 100.0, 10, 10)
    report = reported(answered(0, 2, 0.0, 5.0, 6.0, 7.0), waiting)
    wait = report.bands[2].wait
    assert (wait.p50, wait.p99, wait.mean) == (Quantile(5.0), Quantile(60.0, at_least=True), 5.0)
    assert report.bands[2].open == 1
    assert report.bands[2].ttft.max == Quantile(60.0, at_least=True)
    assert report.bands[2].wait.points == [(5.0, 0.5)]


def test_targets_are_met_when_all_of_them_are() -> None:
    slow_token = answered(0, 0, 0.0, 0.1, 0.5, 1.1)  # 60 ms a token
    good = answered(1, 0, 0.0, 0.1, 1.0, 1.5)
    assert [meets(record, SLOS[0]) for record in (slow_token, good)] == [False, True]
    by_the_end = answered(2, 1, 0.0, 5.0, 11.0, 11.1)
    assert meets(by_the_end, SLOS[1])
    assert not meets(answered(3, 1, 0.0, 5.0, 11.0, 11.2), SLOS[1])
    assert worth(good, SLOS[0]) == 8 * (100 + 22)
    report = reported(slow_token, good, by_the_end)
    assert report.bands[0].in_slo == 0.5
    assert report.bands[0].goodput == pytest.approx(111 / CELLS)
    assert report.total.value == 8 * 122 + 2 * 122


def test_refused_requests_are_misses_and_open_ones_only_when_too_late() -> None:
    refused = Record(0, "t", 0, "m", 1.0, 100, 10, finished_s=1.0, outcome=Outcome.REJECTED, reason=Reason.SHED)
    fresh = Record(1, "t", 0, "m", CELLS - 0.5, 100, 10)
    late = Record(2, "t", 0, "m", CELLS - 1.5, 100, 10)
    report = reported(answered(3, 0, 0.0, 0.1, 0.5, 1.0), refused, fresh, late)
    assert report.bands[0].in_slo == pytest.approx(1 / 3)
    assert report.bands[0].refused == {"shed": 1}
    assert outcome_counts(report.bands[0]) == {"completed": 1, "open": 2, "shed": 1}
    assert report.bands[0].wait.max == Quantile(1.5, at_least=True)


def test_shares_are_of_what_was_dispatched() -> None:
    floor = answered(1, 2, 0.0, 2.0, 3.0, 4.0, output=211)
    floor.kind = Turn.FLOOR
    report = reported(answered(0, 0, 0.0, 1.0, 2.0, 3.0), floor)
    assert (report.bands[0].dispatch_part, report.bands[2].dispatch_part) == (0.5, 0.5)
    assert report.bands[2].token_part == pytest.approx(311 / 422)
    assert (report.total.floors, report.total.overtakes) == (1, 0)
    assert report.sources[0].sent == 2


def test_waste_is_what_was_computed_for_nothing() -> None:
    again = answered(0, 0, 0.0, 1.0, 2.0, 3.0)
    again.computed_tokens, again.wasted_tokens, again.preempted = 150, 39, 1
    total = reported(again).total
    assert (total.computed_tokens, total.wasted_tokens, total.preemptions) == (150, 39, 1)


def test_series_are_those_of_a_plain_count() -> None:
    """Depth and oldest age at the end of each second against a scan over all records."""
    draw = random.Random(7)
    records = []
    for number in range(400):
        arrival = draw.uniform(0, CELLS - 20)
        wait = draw.choice([0.0, 0.2, draw.expovariate(0.05)])
        if arrival + wait + 0.3 < CELLS:
            records.append(
                answered(number, number % 3, arrival, arrival + wait, arrival + wait + 0.1, arrival + wait + 0.3)
            )
        else:
            records.append(Record(number, "t", number % 3, "m", arrival, 100, 11))
    draw.shuffle(records)
    series = reported(*records).series
    assert series.cells == CELLS
    for band in range(3):
        mine = [record for record in records if record.band == band]
        for cell in range(CELLS):
            at = cell + 1.0
            waiting = [
                r.arrival_s for r in mine if r.arrival_s <= at and (r.dispatched_s is None or r.dispatched_s > at)
            ]
            assert series.depth[band][cell] == len(waiting)
            assert series.oldest_s[band][cell] == pytest.approx(at - min(waiting) if waiting else 0.0)
            assert series.sent[band][cell] == sum(cell <= r.arrival_s < cell + 1 for r in mine)
        assert sum(series.dispatched[band]) == sum(r.dispatched_s is not None for r in mine)
        assert sum(series.tokens[band]) == sum(111 for r in mine if r.dispatched_s is not None)


def test_refusals_over_time_and_the_very_end_of_the_run() -> None:
    def refused(at: float, reason: Reason) -> Record:
        return Record(0, "t", 1, "m", at, 1, 1, finished_s=at, outcome=Outcome.REJECTED, reason=reason)

    series = reported(
        refused(3.5, Reason.SHED), refused(3.6, Reason.SHED), refused(float(CELLS), Reason.EXPIRED)
    ).series
    assert series.refused["shed"][3] == 2
    assert series.refused["expired"][-1] == 1
    assert sum(map(sum, series.refused.values())) == 3


def test_the_data_of_equal_reports_is_equal() -> None:
    records = [answered(n, n % 3, n / 7, n / 7 + 1, n / 7 + 2, n / 7 + 3) for n in range(50)]
    assert as_data(reported(*records)) == as_data(reported(*records))
    assert as_data(reported(*records))["bands"][0]["wait"]["p50"] == 1.0


def test_a_spread_of_many_times_stays_small_and_never_tells_too_little() -> None:
    draw = random.Random(1)
    spread, times = Spread(), []
    for number in range(EXACT + 20_000):
        seconds = 0.0 if number % 10 == 0 else draw.lognormvariate(0.0, 2.0)
        times.append(seconds)
        spread.add(seconds)
    times.sort()
    assert sum(map(sys.getsizeof, (spread._known._exact, spread._known._buckets))) < 2_000_000
    assert len(spread._known._buckets) < 25_000
    for part in (0.05, 0.1, 0.5, 0.9, 0.99, 1.0):
        exact, told = times[math.ceil(part * len(times)) - 1], spread.quantile(part)
        assert told is not None
        assert exact <= told.seconds <= exact * 1.0011
    assert spread.mean() == pytest.approx(sum(times) / len(times))
    for seconds, part in spread.points():
        assert times[round(part * len(times)) - 1] == pytest.approx(seconds, rel=0.0011)
