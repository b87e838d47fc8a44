"""What an answer costs beside the model, where both share a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.simulation import EngineModel, EngineSequence, profile_named


def test_each_sequence_that_gets_a_token_costs_its_part_of_the_step() -> None:
    plain = replace(profile_named("cpu"), per_sequence=0.0)
    dear = replace(plain, per_sequence=3.0)
    durations = {}
    for profile in (plain, dear):
        model = EngineModel(profile)
        for number in range(4):
            model.add(EngineSequence(str(number), 20, 5))
        durations[profile.per_sequence] = [model.step().duration_s for _ in range(5)]
    added = [with_it - without for with_it, without in zip(durations[3.0], durations[0.0], strict=True)]
    assert added == pytest.approx([0.012] * 5)
    assert dear.least_s(20, 5) - plain.least_s(20, 5) == pytest.approx(0.015)
