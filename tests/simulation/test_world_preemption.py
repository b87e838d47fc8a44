"""Running work is stopped for a higher band, waits again in its old place, and goes on where it was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tidegate.core import BackendSpec, Outcome, Policy, PoolSpec, Reason, Stoppable
from tidegate.simulation import (
    EngineModel,
    EngineSequence,
    EngineServer,
    FixedServer,
    Fleeting,
    Record,
    Request,
    Scrape,
    Server,
    World,
    merged,
    poisson,
    requests,
    stream_random,
)


def policy(*backends: BackendSpec, **bands: object) -> Policy:
    """The defaults without reserves, of which p0 may stop p2, on the given backends."""
    given = [
        replace(band, reserve=0, kv_watermark=0.0, kv_resume=0.0, ttl_s=1e6, capacity=10**6, **bands)  # type: ignore[arg-type]
        for band in Policy().bands
    ]
    return replace(Policy(), bands=tuple(given), pools=(PoolSpec("m", backends),))


def play(
    rule: Policy, servers: dict[str, Server], load: Iterable[Request], stoppable: Stoppable = Stoppable.ALWAYS
) -> list[Record]:
    told: list[Record] = []
    world = World(rule, servers, load, scrape=Scrape(), sink=told.append, log=Fleeting(), stoppable=stoppable)
    world.run()
    assert not world._legs
    return sorted(told, key=lambda record: record.id)


def crowd(count: int, output_tokens: int) -> list[Request]:
    return [Request(n * 0.001, 2, "batch", 1000, output_tokens) for n in range(count)]


def test_a_p0_gets_the_seat_of_a_p2_which_goes_on_and_loses_little() -> None:
    """20 dispatches earn one stop at 5 %; the seats are held for some 9 s each."""
    rule = policy(BackendSpec("b", 25))
    load = [*crowd(25, 1200), Request(5.0, 0, "vip", 200, 50)]
    with_, without = (
        play(rule, {"b": EngineServer(EngineModel())}, load, stoppable)
        for stoppable in (Stoppable.ALWAYS, Stoppable.NEVER)
    )
    assert without[25].wait_s is not None
    assert without[25].wait_s > 2.0
    assert with_[25].wait_s is not None
    assert with_[25].wait_s < 0.1
    assert all(record.outcome is Outcome.COMPLETED for record in with_)
    (stopped,) = (record for record in with_ if record.preempted)
    assert stopped.band == 2
    assert stopped.computed_tokens - stopped.wasted_tokens == 1000 + 1200
    assert 0 < stopped.wasted_tokens < 16  # the rest of its text is found in the cache again
    assert stopped.first_token_s is not None
    assert stopped.first_token_s < 5.0


def test_what_goes_on_elsewhere_is_computed_again() -> None:
    """The first engine is kept full by p0, so the stopped p2 goes on at the second one, which knows nothing of it."""
    rule = policy(BackendSpec("a", 25), BackendSpec("b", 1))
    servers: dict[str, Server] = {name: EngineServer(EngineModel()) for name in "ab"}
    load = [*crowd(26, 900), Request(5.0, 0, "vip", 200, 2000)]
    told = play(rule, servers, load)
    (stopped,) = (record for record in told if record.preempted)
    assert stopped.outcome is Outcome.COMPLETED
    assert stopped.computed_tokens - stopped.wasted_tokens == 1900


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_answer_is_whole_and_every_token_is_accounted_for(seed: int) -> None:
    rule = policy(BackendSpec("a", 12), BackendSpec("b", 12))
    servers: dict[str, Server] = {
        name: EngineServer(EngineModel(noise=0.1, seed=seed, kv_tokens=20_000)) for name in "ab"
    }

    def stream(band: int, rate: float, low: int, high: int) -> Iterable[Request]:
        chance = stream_random(seed, f"p{band}")
        return requests(poisson(rate, chance), band=band, until=60.0, lengths=lambda: (500, chance.randint(low, high)))

    told = play(rule, servers, merged(stream(0, 1.0, 1, 60), stream(2, 4.0, 500, 1100)))
    assert {record.outcome for record in told} == {Outcome.COMPLETED}
    assert sum(record.preempted for record in told) >= 3
    for record in told:
        assert record.computed_tokens - record.wasted_tokens == record.prompt_tokens + record.output_tokens
        assert record.first_token_s is not None
        assert record.finished_s is not None
        assert record.arrival_s < record.first_token_s <= record.finished_s
    engines = [server.model.counters for server in servers.values() if isinstance(server, EngineServer)]
    assert sum(record.output_tokens for record in told) <= sum(each.generated for each in engines)
    lasts = len(told)  # the last token of an answer is written, but goes through no model
    assert sum(record.computed_tokens for record in told) == sum(each.computed for each in engines) + lasts


def test_a_server_that_cannot_pause_goes_on() -> None:
    load = [*crowd(25, 100), Request(0.5, 0, "vip", 200, 50)]
    told = play(policy(BackendSpec("b", 25)), {"b": FixedServer(3.0)}, load)
    assert told[25].dispatched_s == pytest.approx(3.0)
    assert sum(record.preempted for record in told) == 0


def test_a_client_that_leaves_while_its_answer_is_paused_is_gone() -> None:
    patient = [replace(each, patience_s=7.0) for each in crowd(25, 1200)]
    vips = [Request(5.0, 0, "vip", 200, 2000)]
    told = play(policy(BackendSpec("b", 25)), {"b": EngineServer(EngineModel())}, [*patient, *vips])
    (stopped,) = (record for record in told if record.preempted)
    assert (stopped.outcome, stopped.reason) == (Outcome.CANCELLED, Reason.CANCELLED)
    assert stopped.wasted_tokens == stopped.computed_tokens > 1000


def test_a_sequence_preempted_by_the_engine_before_its_first_token_has_one() -> None:
    """The pool holds the one that decodes and not, besides, the prompt of the other, which comes in small chunks."""
    model = EngineModel(kv_tokens=4096, token_budget=16, max_sequences=8)
    first: list[int] = []

    class Noting:
        def first_token(self, now: float, number: int) -> None:
            first.append(number)

        def finished(self, now: float, number: int) -> None: ...

        def paused(self, now: float, number: int, leg: object) -> None: ...

    server = EngineServer(model)
    server.start(0.0, 0, Request(0.0, 2, "t", 2000, 1500))
    server.start(0.0, 1, Request(0.0, 2, "t", 1990, 10))
    seen: list[EngineSequence] = []
    while server.next_event() < float("inf"):
        server.advance(server.next_event(), Noting())
        if (other := model.find("1")) is not None and not seen:
            seen.append(other)
    assert sorted(first) == [0, 1]
    assert seen[0].preemptions > 0
