"""Each request of a run becomes one record, whatever becomes of it."""

from __future__ import annotations

import pytest

from tidegate.core import BackendSpec, Outcome, Policy, PoolSpec, Reason
from tidegate.simulation import EngineModel, EngineServer, FixedServer, Record, Request, Ungated, World, fixed, requests


def policy(seats: int) -> Policy:
    return Policy(pools=(PoolSpec("m", (BackendSpec("b", seats),)),))


def test_every_request_is_told_once_and_the_open_ones_last() -> None:
    told: list[Record] = []
    load = [*requests(fixed(1.0), band=0, count=3), Request(2.5, 2, "u", patience_s=2.0), Request(2.6, 2, "v")]
    World(policy(1), {"b": FixedServer(2.0)}, load, sink=told.append).run(until=5.5)
    assert [(record.id, record.outcome) for record in told] == [
        (0, Outcome.COMPLETED),
        (1, Outcome.COMPLETED),
        (3, Outcome.CANCELLED),
        (2, None),
        (4, None),
    ]
    first, second, left, running, waiting = told
    assert (first.wait_s, first.ttft_s, first.turn, first.backend) == (0.0, 2.0, 0, "b")
    assert (second.wait_s, second.turn) == (1.0, 1)
    assert (left.reason, left.wait_s, left.finished_s) == (Reason.CANCELLED, None, 4.5)
    assert (running.turn, running.finished_s) == (2, None)
    assert (waiting.turn, waiting.tenant, waiting.band) == (None, "v", 2)


def test_records_tell_what_the_engine_computed() -> None:
    told: list[Record] = []
    chain = tuple(range(10))
    load = [
        Request(0.0, 0, prompt_tokens=165, output_tokens=11, chain=chain),
        Request(9.0, 0, prompt_tokens=165, output_tokens=11, chain=chain),
    ]
    World(policy(4), {"b": EngineServer(EngineModel())}, load, sink=told.append).run()
    first, second = told
    assert (first.cached_tokens, first.computed_tokens, first.wasted_tokens) == (0, 176, 0)
    assert (second.cached_tokens, second.computed_tokens) == (160, 16)
    assert first.finished_s is not None
    assert first.first_token_s is not None
    assert first.tpot_s == pytest.approx((first.finished_s - first.first_token_s) / 10)


def test_work_that_a_preemption_or_a_client_threw_away_is_waste() -> None:
    told: list[Record] = []
    model = EngineModel(kv_tokens=1024, max_sequences=8)
    load = [Request(0.0, 0, prompt_tokens=480, output_tokens=520 - 420 * number) for number in range(2)]
    load.append(Request(30.0, 0, prompt_tokens=100, output_tokens=900, patience_s=1.0))
    World(Ungated("b"), {"b": EngineServer(model)}, load, sink=told.append).run()
    assert sum(record.preempted for record in told) == model.counters.preemptions == 1
    again = [record for record in told if record.preempted]
    assert [record.wasted_tokens for record in again] == [model.counters.recomputed]
    assert again[0].computed_tokens == 480 + again[0].output_tokens + model.counters.recomputed
    gone = told[-1]
    assert gone.outcome is Outcome.CANCELLED
    assert 200 < gone.wasted_tokens == gone.computed_tokens < 1000


def test_a_sink_may_offer_the_next_request() -> None:
    """As a pump does: rows are there from the start, at most one is in the gateway."""
    rows = [Request(0.0, 2, source="rows") for _ in range(3)]
    told: list[Record] = []

    def sink(record: Record) -> None:
        told.append(record)
        if rows:
            world.offer(0.0, rows.pop())

    world = World(policy(4), {"b": FixedServer(2.0)}, [rows.pop(), Request(5.0, 0)], sink=sink)
    world.run()
    assert [(record.source, record.arrival_s, record.dispatched_s) for record in told] == [
        ("rows", 0.0, 0.0),
        ("rows", 0.0, 2.0),
        ("rows", 0.0, 4.0),
        ("", 5.0, 5.0),
    ]
