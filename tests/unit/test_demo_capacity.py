"""The demo's idea of capacity, in virtual time: a full engine does one second of its own work per second."""

from __future__ import annotations

import random

import pytest

from tidegate.cli.demo._plan import engine_ms, timetable
from tidegate.cli.demo._setup import ENGINE_PROFILE, SEATS
from tidegate.simulation.engine_model import EngineModel
from tidegate.simulation.sequences import EngineSequence


def test_a_full_engine_does_one_second_of_work_per_second() -> None:
    mix = list(timetable(120.0, seed=1).questions)
    random.Random(1).shuffle(mix)
    engine = EngineModel(ENGINE_PROFILE, noise=0.05, seed=1)
    now = done_ms = 0.0
    while now < 40.0:
        while engine.running + engine.waiting < SEATS:
            question = mix.pop()
            sequence = EngineSequence(
                id=str(question.number), prompt_tokens=question.prompt_tokens, output_tokens=question.output_tokens
            )
            engine.add(sequence, now)
        result = engine.step()
        now += result.duration_s
        done_ms += engine_ms(sum(s.prompt_tokens for s in result.prefilled), result.decoded + len(result.prefilled))
    assert done_ms / 1000 / now == pytest.approx(1.0, abs=0.1)
