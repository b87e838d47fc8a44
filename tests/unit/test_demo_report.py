"""The demo's arithmetic: what counts, what is only a lower bound, and when it refuses to judge."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from tidegate.cli.demo._plan import OUTPUT_MS, PROMPT_MS, Question
from tidegate.cli.demo._record import Record, Tally
from tidegate.cli.demo._report import Code, Quantile, Result, RunReport, judge, quantile, report_run
from tidegate.cli.demo._screen import Screen, notes, show_result


def record(band: int, at_s: float = 0.0, **fields: object) -> Record:
    made = Record(Question(0, band, at_s, 100, 50), sent_s=0.0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def run(*records: Record, name: str = "FIFO", lag: float = 0.0, seconds: float = 30.0) -> RunReport:
    return report_run(name, records, seconds=seconds, lag=lag)


def answered(band: int, first_s: float, queue_s: float = 0.0) -> Record:
    return record(band, queue_s=queue_s, first_s=first_s, done_s=first_s + 1, pieces=50)


@pytest.mark.parametrize(
    ("values", "q", "wanted"),
    [
        ([(1.0, False)], 0.5, Quantile(1.0)),
        ([(float(n), False) for n in range(1, 101)], 0.5, Quantile(50.0)),
        ([(float(n), False) for n in range(1, 101)], 0.99, Quantile(99.0)),
        ([(1.0, False), (9.0, True)], 0.99, Quantile(9.0, at_least=True)),
        ([(1.0, True), (9.0, False)], 0.99, Quantile(9.0)),
    ],
)
def test_quantile_is_nearest_rank_and_marks_those_still_waiting(
    values: list[tuple[float, bool]], q: float, wanted: Quantile
) -> None:
    assert quantile(values, q) == wanted


def test_quantile_of_nothing_is_nothing() -> None:
    assert quantile([], 0.5) is None


def test_unanswered_requests_count_with_their_age_so_far() -> None:
    band = run(answered(0, 0.5), record(0, at_s=10.0)).bands[0]
    assert band.ttft_p99 == Quantile(20.0, at_least=True)
    assert band.queue_p99 == Quantile(20.0, at_least=True)
    assert (band.sent, band.answered, band.unfinished) == (2, 1, 1)
    assert band.in_slo == 0.5


def test_a_request_that_is_younger_than_its_target_is_not_decided() -> None:
    band = run(answered(1, 0.5), record(1, at_s=25.0)).bands[1]
    assert band.in_slo == 1.0


def test_a_late_first_token_and_a_refusal_both_miss_the_target() -> None:
    band = run(answered(0, 0.9), answered(0, 1.1), record(0, refused="expired"), record(0, refused="shed")).bands[0]
    assert band.in_slo == 0.25
    assert band.refused == {"expired": 1, "shed": 1}
    assert band.ttft_p99 == Quantile(1.1)


def test_p2_counts_what_was_answered_of_what_was_sent() -> None:
    band = run(answered(2, 20.0), record(2, first_s=1.0), record(2), record(2, refused="queue_full")).bands[2]
    assert band.in_slo == 0.25


def test_work_counts_prompts_begun_and_text_received() -> None:
    report = run(answered(0, 0.5), record(0, first_s=3.0, pieces=10), record(0), seconds=10.0)
    assert report.work == pytest.approx((200 * PROMPT_MS + 60 * OUTPUT_MS) / 10_000)
    assert report.offered == pytest.approx(3 * (100 * PROMPT_MS + 50 * OUTPUT_MS) / 10_000)
    assert report.output_tokens_per_s == pytest.approx(6.0)


def overloaded() -> RunReport:
    return run(answered(0, 0.5), *(answered(0, 9.0) for _ in range(9)), *(record(2) for _ in range(5)))


def relieved() -> RunReport:
    return run(*(answered(0, 0.3) for _ in range(10)), *(record(2) for _ in range(5)), name="tidegate")


def test_verdict_is_kept_when_p0_meets_its_target_at_the_same_work() -> None:
    verdict = judge(overloaded(), relieved())
    assert verdict.code is Code.KEPT
    assert f"{overloaded().offered:.1f} times" in verdict.sentence
    assert "100% of the checkout questions" in verdict.sentence
    assert "10% through one FIFO queue" in verdict.sentence
    assert "100% of the work" in verdict.sentence


@pytest.mark.parametrize(
    "worse",
    [
        overloaded(),
        replace(relieved(), work=relieved().work * 0.8),
    ],
)
def test_verdict_is_not_kept_without_the_target_or_at_less_work(worse: RunReport) -> None:
    assert judge(overloaded(), worse).code is Code.NOT_KEPT


def test_a_fault_is_not_taken_for_a_refusal() -> None:
    failed = run(*(answered(0, 0.3) for _ in range(10)), record(2, refused="http_500"), name="tidegate")
    verdict = judge(overloaded(), failed)
    assert verdict.code is Code.NOT_KEPT
    assert "during the tidegate run (1 http_500)" in verdict.sentence


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (replace(overloaded(), lag=0.051), relieved()),
        (overloaded(), replace(relieved(), lag=0.2)),
        (overloaded(), replace(relieved(), late_p99_s=0.3)),
    ],
)
def test_a_busy_machine_gets_no_verdict(before: RunReport, after: RunReport) -> None:
    verdict = judge(before, after)
    assert verdict.code is Code.NO_VERDICT
    assert "too busy" in verdict.sentence


def test_a_lag_of_five_percent_is_still_judged() -> None:
    assert judge(replace(overloaded(), lag=0.05), relieved()).code is Code.KEPT


def test_too_short_a_run_gets_no_verdict() -> None:
    assert judge(run(), run()).code is Code.NO_VERDICT
    assert judge(relieved(), relieved()).code is Code.NO_VERDICT


def test_the_table_and_the_json_show_both_runs() -> None:
    fifo, after = overloaded(), relieved()
    refused = [record(2, refused="queue_full") for _ in range(100)]
    waiting = [record(2, at_s=at, queue_s=12.3) for at in (10.0, 10.5)]
    fifo = replace(fifo, bands=(*fifo.bands[:2], run(*refused, *waiting).bands[2]))
    result = Result(fifo, after, judge(fifo, after), notes(fifo, after))
    console = Console(width=80, record=True, file=io.StringIO())
    show_result(console, result)
    text = console.export_text()
    for wanted in ("p0", "p1", "p2", "FIFO", "tidegate", "SLO", "queue wait", "≥30.0", "Kept: at 0.0 times"):
        assert wanted in text
    assert "…" not in text, "a column is cut at 80 columns"
    assert json.loads(json.dumps(result.as_dict()))["tidegate"]["bands"][0]["in_slo"] == 1.0


def test_the_live_screen_counts_states() -> None:
    tally = Tally()
    tally.open(Question(0, 0, 0.0, 1, 1))
    tally.open(Question(1, 0, 0.0, 1, 1)).first_s = 0.1
    done = tally.open(Question(2, 0, 0.0, 1, 1))
    done.first_s, done.done_s = 0.1, 0.2
    tally.open(Question(3, 2, 0.0, 1, 1)).refused = "shed"
    assert tally.counts()[0] == {"sent": 3, "waiting": 1, "answering": 1, "answered": 1, "refused": 0}
    assert tally.counts()[2] == {"sent": 1, "waiting": 0, "answering": 0, "answered": 0, "refused": 1}
    screen = Screen(30.0)
    screen.add_run("FIFO", tally, lambda: 12.0)
    assert screen.line().startswith("FIFO 12/30 s: p0 sent 3 waiting 1 answered 1 refused 0;")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(screen)
    assert "12 / 30 s" in console.export_text()
