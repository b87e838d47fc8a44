"""The promises about capacity, each played out in virtual time on the very scheduler of the gateway."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from tidegate.core import (
    AUTO,
    Auto,
    BackendSpec,
    Dispatch,
    Outcome,
    Policy,
    PoolSpec,
    Reading,
    Release,
    Scheduler,
    Signal,
    Ticket,
    WorkEstimate,
)
from tidegate.simulation import (
    EngineModel,
    EngineServer,
    FixedServer,
    Log,
    Request,
    Server,
    World,
    fixed,
    gamma,
    merged,
    poisson,
    requests,
    stream_random,
)
from tidegate.simulation.servers import Leg, Progress


def policy(backend: BackendSpec, *, reserve: int | Auto = 0) -> Policy:
    """The default bands with room and patience over one backend."""
    p0, p1, p2 = Policy().bands
    bands = (
        replace(p0, ttl_s=86_400.0, capacity=10**6, reserve=reserve),
        replace(p1, ttl_s=86_400.0, capacity=10**6, shed_hopeless=False),
        replace(p2, ttl_s=86_400.0, capacity=10**6),
    )
    return Policy(bands=bands, pools=(PoolSpec("m", (backend,)),), queue_capacity=10**7)


class Watched(World):
    """A world with someone who looks once in ``every_s``, and may tell the scheduler a fact."""

    def __init__(
        self, rule: Policy, servers: Mapping[str, Server], arrivals: Iterable[Request], *, every_s: float = 1.0
    ) -> None:
        self.core = Scheduler(rule)
        super().__init__(self.core, {**servers, "watcher": Watcher(self, every_s)}, arrivals)

    def tell(self, now: float, signal: Signal) -> None:
        self._obey(now, self.core.observe(now, signal))

    def look(self, now: float) -> None:
        """Called once in ``every_s``."""


class Watcher:
    """Takes part as a server that nothing is sent to."""

    def __init__(self, world: Watched, every_s: float) -> None:
        self._world, self._every_s, self._at = world, every_s, every_s

    def start(self, now: float, number: int, request: Request, after: Leg | None = None) -> None:
        raise AssertionError("nothing runs here")

    def pause(self, number: int) -> bool:
        raise AssertionError("nothing runs here")

    def stop(self, number: int) -> None:
        raise AssertionError("nothing runs here")

    def work(self, number: int) -> None:
        return None

    def next_event(self) -> float:
        return self._at

    def advance(self, now: float, progress: Progress) -> None:
        self._at = now + self._every_s
        self._world.look(now)


def waits(log: Log) -> list[float]:
    return sorted(entry.wait_s for entry in log.of_band(0) if entry.dispatched is not None)


def quantile(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))]


# -- the automatic reserve -----------------------------------------------------------------------------------------

SEATS, SERVICE_S, SPAN_S = 64, 5.0, 1200.0


class Reserving(Watched):
    """64 seats of 5 s at three times their capacity, p0 at 40 %; ``seen`` is the reserve once a second."""

    def __init__(self, times: Iterable[float], *, reserve: int | Auto = AUTO, seed: int = 1) -> None:
        draw = stream_random(seed, "service")
        capacity = SEATS / SERVICE_S
        lower = (
            requests(poisson(1.3 * capacity, stream_random(seed, f"p{band}")), band=band, until=SPAN_S)
            for band in (1, 2)
        )
        super().__init__(
            policy(BackendSpec("b", SEATS), reserve=reserve),
            {"b": FixedServer(lambda _: draw.expovariate(1 / SERVICE_S))},
            merged(requests(times, band=0, until=SPAN_S), *lower),
        )
        self.seen: list[tuple[int, bool]] = []

    def look(self, now: float) -> None:
        row = self.core.snapshot(now).bands[0]
        self.seen.append((row.reserve, row.reserve_short))


P0_RATE = 0.4 * SEATS / SERVICE_S


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_p0_does_not_wait_with_an_automatic_reserve_of_eight_seats(seed: int) -> None:
    world = Reserving(poisson(P0_RATE, stream_random(seed, "p0")), seed=seed)
    log = world.run(until=SPAN_S)
    assert len(waits(log)) > 5500
    assert quantile(waits(log), 0.99) <= 0.010
    reserves = [reserve for reserve, _ in world.seen[60:]]
    assert max(reserves) <= 8
    assert not any(short for _, short in world.seen[60:])
    assert len(log.dispatched) >= 0.88 * SEATS / SERVICE_S * SPAN_S  # only the reserve is idle, and not all of it


@pytest.mark.slow
def test_mildly_bunched_p0_does_not_wait_either() -> None:
    mild = Reserving(gamma(P0_RATE, 1.5, stream_random(1, "p0")))
    log = mild.run(until=900.0)
    late = sorted(e.wait_s for e in log.of_band(0) if e.dispatched is not None and e.request.at > 120)
    assert quantile(late, 0.99) <= 0.050


@pytest.mark.slow
def test_bursts_get_what_a_quarter_of_the_seats_can_give() -> None:
    """With gaps of CV 3 no reserve can do it: with 48 of the 64 seats the 99th percentile is still 0.3 s.

    So the quarter is taken, ``short`` says that only preemption helps further, and far fewer wait than without.
    """
    bursts = Reserving(gamma(P0_RATE, 3.0, stream_random(1, "p0")))
    late = sum(wait > 0 for wait in waits(bursts.run(until=500.0)))
    assert world_is_short(bursts)
    unguarded = Reserving(gamma(P0_RATE, 3.0, stream_random(1, "p0")), reserve=0)
    assert late < 0.2 * sum(wait > 0 for wait in waits(unguarded.run(until=500.0)))


def world_is_short(world: Reserving) -> bool:
    return sum(short for _, short in world.seen[120:]) > 0.9 * len(world.seen[120:])


# -- quotas --------------------------------------------------------------------------------------------------------


def test_a_hundred_clients_stay_within_the_quota() -> None:
    """6,000 tokens a minute, 100 requests of 200 tokens at a time for ten minutes, a third aborted half way."""
    scheduler = Scheduler(policy(BackendSpec("b", 100, tokens_per_minute=6000)))
    draw = random.Random(1)
    now, number, waiting = 0.0, 0, 0
    running: list[tuple[float, int]] = []
    started: dict[int, float] = {}
    used: list[tuple[float, int]] = []
    while now < 600.0:
        actions = []
        while waiting + len(running) < 100:
            number += 1
            waiting += 1
            actions += scheduler.submit(now, Ticket(str(number), "m", number % 3, "t", WorkEstimate(50, 150)))
        actions += scheduler.tick(now)
        for end in [each for each in running if each[0] <= now]:
            running.remove(end)
            aborted = draw.random() < 1 / 3
            spent = 100 if aborted else 200
            used.append((started[end[1]], spent))
            outcome = Outcome.CANCELLED if aborted else Outcome.COMPLETED
            actions += scheduler.release(now, end[1], Release(outcome, 50, spent - 50))
        for action in actions:
            if isinstance(action, Dispatch):
                waiting -= 1
                started[action.lease.id] = now
                running.append((now + draw.uniform(1.0, 5.0), action.lease.id))
        level = scheduler.snapshot(now).backends[0].budget_level
        assert level is not None
        assert 0.0 <= level <= 1.0
        now += 0.25
    for start, _ in used:
        assert sum(spent for at, spent in used if start <= at < start + 60.0) <= 6000 + 200
    assert sum(spent for _, spent in used) > 0.9 * 600 / 60 * 6000
    for _, lease in running:
        scheduler.release(now, lease, Release(Outcome.CANCELLED, 0, 0))
    rest = scheduler.snapshot(now + 60.0).backends[0]
    assert rest.budget_level == 1.0


# -- engines -------------------------------------------------------------------------------------------------------


class Scraped(Watched):
    """An engine whose page is read once a second; ``queues`` is what it had waiting for longer than a prefill."""

    def __init__(
        self, backend: BackendSpec, model: EngineModel, arrivals: Iterable[Request], *, scrape: bool = True
    ) -> None:
        super().__init__(policy(backend), {"b": EngineServer(model)}, arrivals)
        self.model = model
        self._scrape = scrape
        self.queues: list[int] = []
        self.seats: list[int] = []

    def look(self, now: float) -> None:
        signals = self.model.signals()
        self.queues.append(signals.waiting)
        self.seats.append(self.core.snapshot(now).backends[0].seats)
        if self._scrape:
            tokens = self.model.kv.total * 16
            self.tell(
                now,
                Reading("b", now, 1 - signals.kv_use, signals.running, signals.waiting, signals.preemptions, tokens),
            )


def burst(rate: float, *, start: float, count: int, band: int) -> Iterable[Request]:
    return requests(fixed(rate, start=start), band=band, count=count, lengths=lambda: (400, 200))


def burst_run(*, scrape: bool) -> Scraped:
    """200 requests of 600 tokens within half a second before an engine that has room for about 66."""
    arrivals = merged(burst(2.0, start=0.0, count=4, band=1), burst(400.0, start=3.1, count=200, band=1))
    world = Scraped(BackendSpec("b", 250), EngineModel(kv_tokens=40_000), arrivals, scrape=scrape)
    log = world.run(until=40.0)
    assert all(entry.outcome is Outcome.COMPLETED for entry in log.entries)
    return world


def test_a_burst_between_two_scrapes_does_not_fill_the_engine() -> None:
    world = burst_run(scrape=True)
    assert max(world.queues) <= 2
    bare = burst_run(scrape=False)
    assert max(bare.queues) > 50
    assert world.model.counters.preemptions <= 0.2 * bare.model.counters.preemptions


@pytest.mark.slow
@pytest.mark.parametrize("seats", [1, 300])
def test_auto_seats_find_the_knee_through_the_scheduler(seats: int) -> None:
    """Twice the load that the engine can do: as many tokens as with the best number, and the queue stays here."""

    def load() -> Iterable[Request]:
        draw = stream_random(1, "lengths")
        return requests(
            poisson(70.0, stream_random(1, "p1")),
            band=1,
            until=240.0,
            lengths=lambda: (int(draw.lognormvariate(6.0, 0.6)) + 1, int(draw.lognormvariate(5.3, 0.6)) + 1),
        )

    best = EngineModel()
    Scraped(BackendSpec("b", 256), best, load()).run(until=240.0)
    model = EngineModel()
    world = Scraped(BackendSpec("b", seats), model, load())
    world.core.set_policy(0.0, policy(BackendSpec("b", AUTO)))
    world.run(until=240.0)
    assert model.counters.generated >= (0.94 if seats == 1 else 0.97) * best.counters.generated  # 1: climbs for 30 s
    assert sum(world.queues[60:]) / len(world.queues[60:]) <= 2.0
    assert 200 < world.seats[-1] < 300


def test_auto_seats_stay_while_the_gateway_has_no_more_work() -> None:
    model = EngineModel()
    light = requests(poisson(2.0, stream_random(1, "p1")), band=1, until=120.0, lengths=lambda: (400, 100))
    world = Scraped(BackendSpec("b", AUTO), model, light)
    world.run(until=120.0)
    assert set(world.seats) == {16}
