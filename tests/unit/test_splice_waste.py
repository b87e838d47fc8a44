"""Waste is one fold: the live gateway and the simulator count the same story alike."""

from __future__ import annotations

import pytest

from tidegate.core import BackendSpec, Lease, Outcome, Policy, PoolSpec, Release, Ticket, Turn
from tidegate.simulation import Entry, Request
from tidegate.simulation.records import record_of
from tidegate.simulation.sequences import Work
from tidegate.splice import BROKEN, PREEMPTED, Waste
from tidegate.telemetry import Recorder

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 1),)),))


def test_what_is_computed_again_and_what_nobody_gets_count_once_each() -> None:
    waste = Waste()
    waste.again(PREEMPTED, 7)
    waste.again(BROKEN, 100)
    waste.again(PREEMPTED, 0)
    waste.ended(Outcome.COMPLETED, 500)
    waste.ended(Outcome.CANCELLED, 20)
    waste.ended(Outcome.FAILED, 0)
    assert waste.by_cause == {"preempted": 7, "broken": 100, "cancelled": 20}
    assert waste.total == 127
    assert waste.computed == 7 + 100 + 500 + 20
    assert waste.part == 127 / 627


def test_where_nothing_was_computed_no_part_of_it_is_wasted() -> None:
    assert Waste().part is None


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED])
@pytest.mark.parametrize("again", [0, 9])
def test_gateway_and_simulator_count_a_story_alike(outcome: Outcome, again: int) -> None:
    """300 tokens of prompt, 60 of answer, once stopped, with ``again`` of them computed a second time."""
    live = Recorder(POLICY)
    ticket = Ticket("t", "m", 2, "tenant")
    live.recomputed(PREEMPTED, again)
    live.finished(9.0, Lease(1, ticket, "b", Turn.TURN, 2, 0.0, 0.0), Release(outcome, 300, 60))
    entry = Entry(Request(0.0, 2, prompt_tokens=300, output_tokens=60), ticket, outcome=outcome, finished=9.0)
    simulated = record_of(0, entry, Work(0, 360 + again, again, 1))
    assert live.waste.computed == simulated.computed_tokens == 360 + again
    assert live.waste.total == simulated.wasted_tokens == again + (0 if outcome is Outcome.COMPLETED else 360)
