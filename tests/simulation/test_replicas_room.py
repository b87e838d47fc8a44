"""Little KV memory, queues in place of shedding: several gateways keep the size rule of one, so p0 is as soon."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks import kv_plan
from benchmarks.kv_plan import ENGINE, MAX_SEQUENCES, NOISE, GatewayWorld

from tidegate.core import Policy, Saturated, Scheduler
from tidegate.simulation.engine_model import EngineModel
from tidegate.simulation.replicas import Replicas, by_band
from tidegate.simulation.world import SchedulerLike

pytestmark = pytest.mark.slow

SECONDS = 40.0


def plan() -> Policy:
    settings = kv_plan.policy()
    return replace(settings, bands=tuple(replace(band, when_saturated=Saturated.QUEUE) for band in settings.bands))


def first_token_s(gate: SchedulerLike, start: int) -> float:
    """In which nine of ten p0 have their first token."""
    model = EngineModel(ENGINE.profile, kv_tokens=ENGINE.kv_tokens, max_sequences=MAX_SEQUENCES, noise=NOISE, seed=1)
    world = GatewayWorld(gate, model, kv_plan.requests(SECONDS, start=start), seed=1)
    world.run(until=SECONDS)
    entries = world.run(until=SECONDS + 15.0).of_band(0)
    times = sorted(each.first_token - each.request.at for each in entries if each.first_token is not None)
    assert len(times) >= 0.98 * len(entries) >= 60
    return times[int(0.9 * len(times))]


@pytest.mark.parametrize("start", [0, 900])
def test_p0_does_not_wait_in_the_engine_behind_long_prompts_of_another_gateway(start: int) -> None:
    alone = first_token_s(Scheduler(plan()), start)
    together = first_token_s(Replicas(plan(), 3, one_way_s=0.0005, place=by_band(3)), start)
    assert alone < 0.5
    assert together < alone + 1.0
