"""The demo's timetable: the right load, the trace's own order, the same for the same seed."""

from __future__ import annotations

import csv
import gzip
from importlib.resources import files

import pytest

from tidegate.cli.demo._plan import BANDS, LOAD, SHORT_PROMPT, Question, prompt_text, timetable
from tidegate.simserver.text import tokens_of


@pytest.mark.parametrize("seconds", [20.0, 36.0, 90.0])
def test_each_band_asks_for_its_part_of_the_capacity(seconds: float) -> None:
    plan = timetable(seconds, seed=1)
    for band in range(len(BANDS)):
        asked = sum(q.engine_ms for q in plan.questions if q.band == band) / (1000 * seconds)
        assert LOAD[band] * 0.85 < asked <= LOAD[band]


def test_the_whole_load_is_two_and_a_half_times_capacity() -> None:
    assert sum(LOAD) == pytest.approx(2.5)


def test_questions_are_in_order_and_inside_the_run() -> None:
    plan = timetable(30.0, seed=1)
    times = [q.at_s for q in plan.questions]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= 30.0
    assert [q.number for q in plan.questions] == list(range(len(times)))


def test_checkout_questions_are_the_short_azure_requests_with_the_trace_spacing() -> None:
    plan = timetable(30.0, seed=1)
    name = files("tidegate.cli") / "data" / "azure2023_conv_10min.csv.gz"
    with name.open("rb") as raw, gzip.open(raw, "rt") as text:
        short = [row for row in csv.DictReader(text) if int(row["prompt_tokens"]) <= SHORT_PROMPT]
    mine = [q for q in plan.questions if q.band == 0]
    speed = plan.speed[0]
    assert speed is not None
    origin = int(short[0]["arrival_ms"]) / 1e3
    for question, row in zip(mine, short, strict=False):
        assert question.prompt_tokens == int(row["prompt_tokens"])
        assert question.output_tokens == int(row["output_tokens"])
        assert question.at_s == pytest.approx((int(row["arrival_ms"]) / 1e3 - origin) / speed)


def test_a_run_longer_than_the_excerpt_goes_on() -> None:
    plan = timetable(600.0, seed=1)
    assert max(q.at_s for q in plan.questions if q.band == 0) > 590.0


def test_the_seed_moves_only_the_drawn_arrivals() -> None:
    one, same, other = (timetable(20.0, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    azure = [[(q.at_s, q.prompt_tokens) for q in plan.questions if q.band < 2] for plan in (one, other)]
    assert azure[0] == azure[1]


def test_prompts_have_the_length_that_the_engine_counts_and_differ() -> None:
    first, second = (prompt_text(Question(n, 0, 0.0, 50, 1), seed=1) for n in (0, 1))
    assert len(tokens_of(first)) == 50
    assert first != second
