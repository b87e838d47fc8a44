"""The seat controller in front of the engine model: it finds the knee, from below and from above."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tidegate.core import Band, Lease, Release, Ticket, Turn
from tidegate.core.adaptive import SeatController
from tidegate.core.policy import P0
from tidegate.core.signals import Reading
from tidegate.simulation import EngineModel, EngineSequence

pytestmark = pytest.mark.slow

Lengths = Callable[[random.Random], tuple[int, int]]


def lognormal(prompt: float, output: float) -> Lengths:
    """Lengths around e^prompt and e^output tokens."""
    return lambda draw: (int(draw.lognormvariate(prompt, 0.6)) + 1, int(draw.lognormvariate(output, 0.6)) + 1)


# Bound by the most sequences, by KV memory, and by the compute of prompts; with the best fixed settings to beat, found
# by trying all from 8 to 300 in steps of 16 (above the knee the throughput is flat).
MIXES = {
    "chat": (lognormal(6.0, 5.3), (256, 300)),
    "long answers": (lognormal(7.0, 7.3), (128, 144, 160, 192)),
    "long prompts": (lognormal(9.0, 4.0), (32, 64)),
}


@dataclass(slots=True)
class Seen:
    """Tokens per second and the engine's mean queue after the warm-up, and all numbers of seats."""

    tokens_per_s: float
    waiting: float
    seats: list[int]


def endless(
    lengths: Lengths,
    control: SeatController | None,
    *,
    seats: int = 0,
    band: Band = P0,
    span_s: float = 700.0,
    warm_s: float = 400.0,
) -> Seen:
    """Run an engine whose seats are always all taken; look at it once a second."""
    model, draw = EngineModel(), random.Random(1)
    coming: deque[tuple[float, EngineSequence]] = deque()
    started: dict[str, Lease] = {}
    first: dict[str, float] = {}
    now, look, number = 0.0, 1.0, 0
    queues: list[int] = []
    numbers: list[int] = []
    before = (0.0, 0)
    while now < span_s:
        seats = control.seats if control else seats
        while len(started) < seats:
            number += 1
            prompt, output = lengths(draw)
            started[str(number)] = Lease(number, Ticket(str(number), "m", 0, "t"), "b", Turn.TURN, 0, 0.0, now)
            coming.append((now + 0.005, EngineSequence(str(number), prompt, output)))
        while coming and coming[0][0] <= now:
            model.add(coming.popleft()[1], now)
        if model.idle:
            now = coming[0][0]
            continue
        step = model.step()
        while look <= now + step.duration_s:
            signals = model.signals()
            if look >= warm_s:
                queues.append(signals.waiting)
            if control:
                page = Reading("b", look, 1 - signals.kv_use, signals.running, signals.waiting, signals.preemptions)
                control.step(look, page, taken=len(started), limiting=True)
            numbers.append(seats)
            look += 1.0
        now += step.duration_s
        first.update((each.id, now) for each in step.prefilled if each.id not in first)
        for each in step.finished:
            lease, token_at = started.pop(each.id), first.pop(each.id)
            if control:
                tpot_s = (now - token_at) / max(1, each.output_tokens - 1)
                used = Release(
                    input_tokens=each.prompt_tokens,
                    output_tokens=each.output_tokens,
                    ttft_s=token_at - lease.started,
                    tpot_s=tpot_s,
                )
                control.answered(used, lease, band)
        done = model.counters.generated + model.counters.prompt
        if now < warm_s:
            before = (now, done)
    return Seen((done - before[1]) / (now - before[0]), sum(queues) / len(queues), numbers)


@pytest.fixture(scope="module", params=MIXES)
def mix(request: pytest.FixtureRequest) -> tuple[Lengths, float]:
    """One mix and the throughput of its best fixed setting."""
    lengths, settings = MIXES[request.param]
    return lengths, max(endless(lengths, None, seats=seats).tokens_per_s for seats in settings)


@pytest.mark.parametrize("start", [1, 1000])
def test_auto_finds_the_knee(mix: tuple[Lengths, float], start: int) -> None:
    lengths, best = mix
    seen = endless(lengths, SeatController(start))
    assert seen.tokens_per_s >= 0.97 * best
    assert seen.waiting <= 2.0


def test_a_fixed_number_above_the_knee_keeps_the_queue_in_the_engine() -> None:
    """What the controller is for."""
    assert endless(MIXES["long prompts"][0], None, seats=64).waiting > 20


def test_time_per_token_target_holds_the_seats_below_the_knee() -> None:
    """With 12 ms per token the engine may run about 90 of this mix; it could run 256."""
    lengths = MIXES["chat"][0]
    band = replace(P0, tpot_slo_s=0.012)
    seen = endless(lengths, SeatController(1), band=band, span_s=300.0, warm_s=150.0)
    assert 40 < sum(seen.seats[150:]) / 150 < 140
