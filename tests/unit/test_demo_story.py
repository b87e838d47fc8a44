"""The demo's story in virtual time: its own settings, timetable and report, with the real scheduler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.cli.demo._plan import TENANTS, timetable
from tidegate.cli.demo._record import Record
from tidegate.cli.demo._report import Code, RunReport, judge, report_run
from tidegate.cli.demo._setup import ENGINE_PROFILE, Ports, Setup, fifo_setup, tidegate_setup
from tidegate.config import parse_settings
from tidegate.simulation import EngineModel, EngineServer, Request, WaitingOrder, World


def replay(setup: Callable[[Ports], Setup], *, seconds: float, seed: int) -> RunReport:
    """Run the demo's timetable through one of its settings files, on a virtual clock."""
    made = setup(Ports(1, 2, 3))
    questions = timetable(seconds, seed=seed).questions
    tenants = TENANTS if made.name == "tidegate" else ("everyone",) * 3
    bands = (0, 1, 2) if made.name == "tidegate" else (2, 2, 2)
    arrivals = [
        Request(q.at_s, bands[q.band], tenants[q.band], q.prompt_tokens, q.output_tokens, pool="demo")
        for q in questions
    ]
    engine = EngineModel(ENGINE_PROFILE, order=WaitingOrder.PRIORITY, noise=0.08, seed=seed)
    log = World(parse_settings(made.text).core_policy(), {"engine": EngineServer(engine)}, arrivals).run(seconds)
    records = []
    for question, entry in zip(questions, log.entries, strict=True):
        record = Record(question, sent_s=0.0, refused=entry.reason)
        if entry.dispatched is not None:
            record.queue_s = entry.dispatched - question.at_s
        if entry.first_token is not None:
            record.first_s = entry.first_token - question.at_s
        if entry.finished is not None and entry.reason is None:
            record.done_s = entry.finished - question.at_s
            record.pieces = question.output_tokens
        records.append(record)
    return report_run(made.name, records, seconds=seconds, lag=0.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_verdict_does_not_hang_on_the_seed(seed: int) -> None:
    fifo = replay(fifo_setup, seconds=33.0, seed=seed)
    relieved = replay(tidegate_setup, seconds=33.0, seed=seed)
    verdict = judge(fifo, relieved)
    assert verdict.code is Code.KEPT, verdict.sentence


@pytest.mark.slow
def test_minutes_of_overload_neither_slow_p0_nor_starve_p2() -> None:
    short, long = (replay(tidegate_setup, seconds=seconds, seed=1) for seconds in (60.0, 300.0))
    assert long.bands[0].in_slo is not None
    assert long.bands[0].in_slo >= 0.95
    assert long.bands[0].ttft_p99 is not None
    assert long.bands[0].ttft_p99.seconds < 1.5
    assert long.bands[2].answered > 2 * short.bands[2].answered


def test_the_baseline_serves_in_the_order_of_arrival() -> None:
    made = fifo_setup(Ports(1, 2, 3))
    arrivals = [
        Request(q.at_s, 2, "everyone", q.prompt_tokens, q.output_tokens, "demo")
        for q in timetable(20.0, seed=1).questions
    ]
    engine = EngineServer(EngineModel(ENGINE_PROFILE, seed=1))
    log = World(parse_settings(made.text).core_policy(), {"engine": engine}, arrivals).run(60.0)
    served = [entry.request.at for entry in log.dispatched]
    assert served == sorted(served)
    assert len(served) > 40
