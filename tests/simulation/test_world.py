"""The world: every request ends once, arrivals are open loop, the same seed gives the same log."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tidegate.core import BackendSpec, Outcome, Policy, PoolSpec, Reason
from tidegate.simulation import (
    EngineModel,
    EngineServer,
    FixedServer,
    Log,
    Request,
    World,
    fixed,
    gamma,
    merged,
    poisson,
    requests,
    stream_random,
)
from tidegate.simulation.servers import Leg


def policy(seats: int, backends: int = 1) -> Policy:
    specs = tuple(BackendSpec(f"b{number}", seats) for number in range(backends))
    return Policy(pools=(PoolSpec("m", specs),))


def overloaded(seed: int, *, replicas: int = 2) -> Log:
    """Two small engines at some three times their capacity, for a minute."""

    def stream(band: int) -> Iterator[Request]:
        draw = stream_random(seed, f"lengths {band}")
        times = poisson(5, stream_random(seed, f"times {band}"))
        return requests(times, band=band, lengths=lambda: (draw.randint(50, 1500), draw.randint(5, 200)), until=60)

    servers = {
        f"b{number}": EngineServer(EngineModel("slow", kv_tokens=20_000, noise=0.1, seed=seed + number))
        for number in range(replicas)
    }
    return World(policy(16, replicas), servers, merged(*(stream(band) for band in range(3)))).run()


def printed(log: Log) -> list[object]:
    return [
        (entry.request, entry.dispatched, entry.first_token, entry.finished, entry.outcome, entry.reason, entry.kind)
        for entry in log.entries
    ]


def test_same_seed_same_log() -> None:
    assert printed(overloaded(1)) == printed(overloaded(1))
    assert printed(overloaded(1)) != printed(overloaded(2))


def test_every_request_ends_in_one_outcome() -> None:
    log = overloaded(3)
    assert len(log.entries) > 700
    assert {entry.outcome for entry in log.entries} == {Outcome.COMPLETED, Outcome.REJECTED}
    for entry in log.entries:
        if entry.outcome is Outcome.COMPLETED:
            assert entry.dispatched is not None
            assert entry.first_token is not None
            assert entry.finished is not None
            assert entry.request.at <= entry.dispatched < entry.first_token <= entry.finished
        else:
            assert entry.dispatched is None
            assert entry.reason is not None
    assert {entry.backend for entry in log.dispatched} == {"b0", "b1"}


def test_higher_bands_wait_less_on_a_real_cost_model() -> None:
    log = overloaded(4)
    vip = [entry.wait_s for entry in log.of_band(0) if entry.dispatched is not None]
    assert len(vip) > 0.9 * len(log.of_band(0))
    late = [entry for entry in log.of_band(2) if entry.dispatched is not None]
    assert statistics.median(vip) < 0.5 < statistics.median(entry.wait_s for entry in late)


def test_single_request_through_an_idle_engine_takes_what_the_model_says() -> None:
    engine = EngineModel("h100-8b")
    world = World(policy(4), {"b0": EngineServer(engine, http_s=0.005)}, [Request(1.0, 0, "t", 1000, 101)])
    (entry,) = world.run().entries
    assert entry.dispatched == 1.0
    assert entry.first_token is not None
    assert entry.first_token - 1.0 == pytest.approx(0.005 + engine.profile.step_s(1000, 0, 500_000))
    assert entry.total_s - (entry.first_token - 1.0) == pytest.approx(100 * 0.00656, rel=0.01)


def test_arrivals_do_not_wait_for_answers() -> None:
    log = World(policy(1), {"b0": FixedServer(10.0)}, requests(fixed(10), band=2, count=50)).run(until=20)
    assert [entry.request.at for entry in log.entries] == [number / 10 for number in range(50)]
    assert sum(entry.finished is not None for entry in log.entries) == 1


def test_expired_tickets_leave_when_their_time_is_up() -> None:
    rule = policy(1)
    bands = (replace(rule.bands[0], ttl_s=2.0), *rule.bands[1:])
    log = World(replace(rule, bands=bands), {"b0": FixedServer(100.0)}, requests(fixed(1), band=0, count=3)).run(50)
    assert [entry.reason for entry in log.entries] == [None, Reason.EXPIRED, Reason.EXPIRED]
    assert [entry.finished for entry in log.entries[1:]] == pytest.approx([3.0, 4.0])


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_mean_and_variation_asked_for(cv: float) -> None:
    times = list(itertools.islice(gamma(4.0, cv, stream_random(5, "gaps")), 40_000))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(0.25, rel=0.1)
    assert statistics.stdev(gaps) / mean == pytest.approx(cv, rel=0.1)


def test_one_more_stream_leaves_the_others_draws_alone() -> None:
    alone = list(itertools.islice(poisson(3, stream_random(1, "a")), 100))
    list(itertools.islice(poisson(3, stream_random(1, "b")), 100))
    assert alone == list(itertools.islice(poisson(3, stream_random(1, "a")), 100))
    assert alone != list(itertools.islice(poisson(3, stream_random(2, "a")), 100))


class Noting:
    """Notes what a server says."""

    def __init__(self) -> None:
        self.first: list[int] = []
        self.ended: list[int] = []

    def first_token(self, now: float, number: int) -> None:
        self.first.append(number)

    def finished(self, now: float, number: int) -> None:
        self.ended.append(number)

    def paused(self, now: float, number: int, leg: Leg) -> None:
        raise AssertionError("nobody asked for it")


def test_first_token_of_a_preempted_request_is_told_once() -> None:
    server, noting = EngineServer(EngineModel(kv_tokens=1024, max_sequences=8)), Noting()
    for number in range(2):
        server.start(0.0, number, Request(0.0, 0, "t", 480, 520 - 420 * number))
    while (now := server.next_event()) < float("inf"):
        server.advance(now, noting)
    assert server.model.counters.preemptions == 1
    assert noting.first == [0, 1]
    assert sorted(noting.ended) == [0, 1]
