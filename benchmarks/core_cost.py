"""What one request costs in the scheduler: submit, dispatch and release, by how much already waits.

Beside it, in the same run, ``queue.PriorityQueue`` put and get of the same tickets at the same depth. Every figure is
the least of several rounds of CPU time, because whatever else runs on the machine only ever adds.

Both builds of the scheduler are measured, each in a process of its own: the compiled one
(``make build/compiled/.built``,
which ``make bench`` makes first) and the one that Python interprets.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from queue import PriorityQueue

from benchmarks import _ratios
from tidegate.core import (
    BackendSpec,
    Band,
    Dispatch,
    Drain,
    Policy,
    PoolSpec,
    Release,
    Scheduler,
    Ticket,
    WorkEstimate,
)

Row = tuple[str, str, str]
ROOT = Path(__file__).resolve().parent.parent
BUILDS = {"compiled": ROOT / "build" / "compiled", "interpreted": ROOT / "src"}
SEATS, TENANTS, ROUNDS, STEPS = 64, 100, 20, 1000
DEPTHS = (100, 10_000, 1_000_000)
FLOOR = Fraction(1, 20)
BANDS = (
    Band("p0", 100, 0.05, capacity=10**7),
    Band("p1", 20, 0.02, floor=FLOOR, capacity=10**7),
    Band("p2", 1, 0.005, floor=FLOOR, capacity=10**7),
)
HEAD_START_S = [band.weight / (BANDS[0].aging_per_ms * 1000.0) for band in BANDS]
POLICY = Policy(
    bands=BANDS, pools=(PoolSpec("m", (BackendSpec("b", SEATS),)),), queue_capacity=10**7, queue_bytes=10**12
)


def tickets(count: int, rng: random.Random, prefix: str = "") -> list[Ticket]:
    """Make tickets of many tenants in all bands."""
    return [
        Ticket(
            f"{prefix}{number}",
            "m",
            rng.randrange(3),
            f"t{rng.randrange(TENANTS)}",
            WorkEstimate(rng.randrange(1, 500), rng.randrange(1, 500)),
        )
        for number in range(count)
    ]


def scheduler_us(depth: int) -> float:
    """Return µs of CPU per request at a depth: each round submits one and releases one, which dispatches one."""
    rng = random.Random(1)
    scheduler, now, held = Scheduler(POLICY), 0.0, deque[int]()
    for ticket in tickets(depth + SEATS, rng, "w"):
        now += 1e-3
        held.extend(action.lease.id for action in scheduler.submit(now, ticket) if isinstance(action, Dispatch))
    coming = iter(tickets(ROUNDS * STEPS, rng))
    release, best = Release(), float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(STEPS):
            now += 1e-3
            scheduler.submit(now, next(coming))
            for action in scheduler.release(now, held.popleft(), release):
                held.append(action.lease.id)  # type: ignore[union-attr]
        best = min(best, time.process_time() - began)
    return best / STEPS * 1e6


def priority_queue_us(depth: int) -> float:
    """Return µs of CPU for one put and one get at a depth.

    The same tickets at the same times as above. The key is age with a head start by band, the nearest that a heap can
    come to ageing (its keys cannot change with time), and is made when the ticket comes, as the scheduler has to.
    """
    rng = random.Random(1)
    queue: PriorityQueue[tuple[float, int, Ticket]] = PriorityQueue()
    now, number = 0.0, 0
    for ticket in tickets(depth, rng, "w"):
        now += 1e-3
        number += 1
        queue.put((now - HEAD_START_S[ticket.band], number, ticket))
    coming = iter(tickets(ROUNDS * STEPS, rng))
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(STEPS):
            now += 1e-3
            number += 1
            ticket = next(coming)
            queue.put((now - HEAD_START_S[ticket.band], number, ticket))
            queue.get()
        best = min(best, time.process_time() - began)
    return best / STEPS * 1e6


def story_calls(depth: int) -> Iterator[tuple[str, float]]:
    """Play a story with ``depth`` live tickets; yield each call's name and CPU seconds."""
    rng = random.Random(2)
    policy = replace(POLICY, bands=tuple(replace(band, ttl_s=500.0) for band in BANDS))
    scheduler, now, held = Scheduler(policy), 0.0, deque[int]()

    def timed(what: str, call: Callable[[], object]) -> tuple[str, float]:
        began = time.process_time()
        actions = call()
        spent = time.process_time() - began
        if isinstance(actions, list):
            held.extend(action.lease.id for action in actions if isinstance(action, Dispatch))
        return what, spent

    for ticket in tickets(depth, rng, "w"):
        now += 1e-3
        yield timed("submit", partial(scheduler.submit, now, ticket))
    for number in range(0, depth, 7):
        yield timed("cancel", partial(scheduler.cancel, now, f"w{number}"))
    for _ in range(20_000):
        yield timed("release", partial(scheduler.release, now, held.popleft(), Release()))
    yield timed("set_policy", partial(scheduler.set_policy, now, replace(policy, overtake_cap=Fraction(1, 5))))
    yield timed("snapshot", partial(scheduler.snapshot, now))
    yield timed("drain", partial(scheduler.observe, now + 520.0, Drain()))
    while (due := scheduler.next_wakeup()) is not None:
        yield timed("tick", partial(scheduler.tick, due))


def slowest_call_ms(depth: int) -> tuple[str, float]:
    """Return the slowest call of the story. It is played three times alike; the least of the three counts."""
    plays = zip(*(list(story_calls(depth)) for _ in range(3)), strict=True)
    what, spent = max((min(same, key=lambda call: call[1]) for same in plays), key=lambda call: call[1])
    return what, spent * 1e3


def run() -> list[Row]:
    """Measure every build that is there."""
    rows: list[Row] = []
    for build, folder in BUILDS.items():
        if not (folder / "tidegate").is_dir():
            rows.append((f"{build} scheduler", "not built: make build/compiled/.built", ""))
            continue
        found = subprocess.run(
            [sys.executable, "-m", "benchmarks.core_cost"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        )
        for line in found.stdout.splitlines():
            what, figure, goal = line.split(" | ")
            rows.append((f"{build}: {what}", figure, goal))
            if "ratio " in figure:
                _ratios.note(
                    f"{build} scheduler over PriorityQueue, {what.partition(', ')[2]}", float(figure.split()[-1])
                )
    return rows


def measure() -> list[Row]:
    """Measure this process's build; the garbage collector rests, as the running product has it rest during a burst."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        rows: list[Row] = []
        costs = {}
        for depth in DEPTHS:
            costs[depth], beside = scheduler_us(depth), priority_queue_us(depth)
            figure = f"{costs[depth]:.1f} µs; PriorityQueue {beside:.1f} µs; ratio {costs[depth] / beside:.1f}"
            rows.append((f"submit + dispatch + release, {depth:,} waiting", figure, "ratio ≤ 3"))
        flat = max(costs.values()) / min(costs.values())
        rows.append(("the same, dearest depth over cheapest", f"{flat:.2f}", "≤ 2"))
        what, worst_ms = slowest_call_ms(200_000)
        rows.append(("slowest single call with 200,000 live tickets", f"{worst_ms:.2f} ms ({what})", "≤ 5 ms"))
        return rows
    finally:
        gc.enable()
        gc.unfreeze()


if __name__ == "__main__":
    for row in measure():
        print(" | ".join(row))
