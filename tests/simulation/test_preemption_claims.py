"""What preemption promises, over minutes of virtual time: p0 does not wait, nothing is thrown away, and no storms."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from tidegate.core import (
    AUTO,
    Action,
    Auto,
    BackendSpec,
    Dispatch,
    Order,
    Outcome,
    Policy,
    PoolSpec,
    Preempt,
    Stoppable,
)
from tidegate.simulation import (
    EngineModel,
    EngineServer,
    Request,
    World,
    gamma,
    merged,
    poisson,
    requests,
    stream_random,
)
from tidegate.simulation.sequences import Work
from tidegate.simulation.servers import Leg, Progress, Server

pytestmark = pytest.mark.slow

SEATS, SERVICE_S, ABORT_S = 64, 5.0, 0.005
CAPACITY = SEATS / SERVICE_S


class PausingServer:
    """Holds each request for a drawn time in all; one that is asked to stop lets go after ``ABORT_S``."""

    def __init__(self, service_s: Callable[[], float]) -> None:
        self._service_s = service_s
        self._left: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._events: list[tuple[float, int, bool]] = []
        self.now: Callable[[], float] = lambda: 0.0

    def start(self, now: float, number: int, request: Request, after: Leg | None = None) -> None:
        end = self._ends[number] = now + (self._service_s() if after is None else self._left.pop(number))
        heapq.heappush(self._events, (end, number, False))

    def pause(self, number: int) -> bool:
        now = self.now()
        left = self._left[number] = self._ends.pop(number) - now
        assert left >= 0
        heapq.heappush(self._events, (now + ABORT_S, number, True))
        return True

    def stop(self, number: int) -> None:
        del self._ends[number]

    def work(self, number: int) -> Work | None:
        return None

    def next_event(self) -> float:
        events = self._events
        while events and not events[0][2] and self._ends.get(events[0][1]) != events[0][0]:
            heapq.heappop(events)
        return events[0][0] if events else float("inf")

    def advance(self, now: float, progress: Progress) -> None:
        while self.next_event() <= now:
            _, number, paused = heapq.heappop(self._events)
            if paused:
                progress.paused(now, number, Leg(self, 0, Work(0, 0, 0, 0), 0, 0))
            else:
                del self._ends[number]
                progress.first_token(now, number)
                progress.finished(now, number)


class Counting(World):
    """Counts dispatches and stops."""

    def __init__(self, rule: Policy, servers: dict[str, Server], load: Iterator[Request]) -> None:
        super().__init__(rule, servers, load, stoppable=Stoppable.ALWAYS)
        self.dispatches = self.stops = 0

    def _obey(self, now: float, actions: list[Action]) -> None:
        self.dispatches += sum(isinstance(action, Dispatch) for action in actions)
        self.stops += sum(isinstance(action, Preempt) for action in actions)
        assert self.stops <= self.scheduler.policy.preempt_rate * self.dispatches  # type: ignore[attr-defined]
        super()._obey(now, actions)


def policy(seats: int, rate: Fraction, *, reserve: int | Auto = 0, middle: bool = False) -> Policy:
    """The defaults without gates and limits; ``middle``: p1 may stop others too, and may be stopped."""
    bands = [
        replace(band, kv_watermark=0.0, kv_resume=0.0, ttl_s=1e6, capacity=10**6, order=Order.FIFO, shed_hopeless=False,
                reserve=0)
        for band in Policy().bands
    ]  # fmt: skip
    bands[0] = replace(bands[0], reserve=reserve)
    bands[1] = replace(bands[1], may_preempt=middle, preemptible=middle)
    pools = (PoolSpec("m", (BackendSpec("b", seats),)),)
    return replace(Policy(), bands=tuple(bands), pools=pools, queue_capacity=10**6, preempt_rate=rate)


def flood(times: Iterable[float], rate: Fraction, reserve: int | Auto, until: float) -> tuple[Counting, list[float]]:
    """p0 at 40 % of 64 seats of 5 s, p2 at 260 %; return the waits of p0 after the first minute."""
    draw = stream_random(1, "service")
    server = PausingServer(lambda: draw.expovariate(1 / SERVICE_S))
    lower = requests(poisson(2.6 * CAPACITY, stream_random(1, "p2")), band=2, until=until)
    load = merged(requests(times, band=0, until=until), lower)
    world = Counting(policy(SEATS, rate, reserve=reserve), {"b": server}, load)
    server.now = lambda: world.log.ended_at
    log = world.run(until=until)
    return world, sorted(e.wait_s for e in log.of_band(0) if e.dispatched is not None and e.request.at > 60)


def quantile(waits: list[float], part: float) -> float:
    return waits[min(len(waits) - 1, int(part * len(waits)))]


P0_RATE = 0.4 * CAPACITY


def test_p0_waits_for_half_of_its_target_and_a_round_trip_with_no_reserve() -> None:
    """Every seat is taken when a p0 comes, so every one has another stopped: far more than one in twenty."""
    _, waits = flood(poisson(P0_RATE, stream_random(1, "p0")), Fraction(1, 2), 0, 300.0)
    assert quantile(waits, 0.5) <= 0.031
    assert quantile(waits, 0.99) <= 0.05


def test_with_an_automatic_reserve_one_in_twenty_is_enough_and_seats_idle_less() -> None:
    done = {}
    for rate in (Fraction(0), Fraction(1, 20)):
        world, waits = flood(poisson(P0_RATE, stream_random(1, "p0")), rate, AUTO, 600.0)
        assert quantile(waits, 0.99) <= 0.05
        done[rate] = sum(entry.outcome is Outcome.COMPLETED for entry in world.log.entries)
    assert done[Fraction(1, 20)] > 1.04 * done[Fraction(0)], "running work is reserve beyond two seats"


@pytest.mark.parametrize("seed", [1, 2])
def test_bursts_that_no_reserve_can_take_are_served_by_stopping_one_in_five(seed: int) -> None:
    """Gaps of CV 3: a quarter of the seats in reserve leaves a p99 of most of a second.

    With stops it is half of the target and a round trip, but for the moments in which p0 alone wants more seats than
    there are: that is so in one of a hundred arrivals of some seeds, whatever is stopped.
    """
    waits = {}
    for rate in (Fraction(0), Fraction(1, 5)):
        _, waits[rate] = flood(gamma(P0_RATE, 3.0, stream_random(seed, "p0")), rate, AUTO, 600.0)
    reserved, stopping = waits.values()
    assert quantile(reserved, 0.95) > 0.15
    assert quantile(reserved, 0.99) > 0.5
    assert quantile(stopping, 0.95) <= 0.05
    assert sum(wait > 0.05 for wait in stopping) < 0.4 * sum(wait > 0.05 for wait in reserved)


def storm(rate: Fraction) -> tuple[Counting, int]:
    """Ten minutes of a saturated engine in which p0 and p1 may both have others stopped; return the useful tokens."""
    until = 600.0
    sizes = {0: (200, 60), 1: (400, 150), 2: (800, 400)}
    load = merged(
        *(
            (replace(each, prompt_tokens=sizes[band][0], output_tokens=sizes[band][1])
             for each in requests(poisson(times, stream_random(7, f"p{band}")), band=band, until=until))
            for band, times in ((0, 2.0), (1, 6.0), (2, 12.0))
        )
    )  # fmt: skip
    world = Counting(policy(32, rate, middle=True), {"b": EngineServer(EngineModel("a100-8b"))}, load)
    log = world.run(until=until)
    useful = sum(
        entry.request.prompt_tokens + entry.request.output_tokens
        for entry in log.entries
        if entry.outcome is Outcome.COMPLETED
    )
    return world, useful


def test_two_bands_that_both_may_stop_others_make_no_storm() -> None:
    without, plain = storm(Fraction(0))
    with_, useful = storm(Fraction(1, 20))
    assert without.stops == 0
    assert 50 < with_.stops <= with_.dispatches / 20
    assert useful >= 0.97 * plain
