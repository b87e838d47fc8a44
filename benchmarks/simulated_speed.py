"""How fast and how large a simulated run is: the scheduler alone, a rush on four replicas, and millions of requests.

All on one core. The scheduler alone is the one of the gateway on a virtual clock, with nothing that runs the work but
a heap of ends: three times as much as the seats can do, so that requests wait, are dispatched and are refused.
"""

from __future__ import annotations

import gc
import heapq
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.workloads import TRACES
from tidegate.core import BackendSpec, Dispatch, Outcome, Policy, PoolSpec, Release, Scheduler, Ticket, WorkEstimate
from tidegate.core.policy import Full
from tidegate.simulation import FixedServer, Fleeting, Record, Request, World

Row = tuple[str, str, str]
SEATS, SERVICE_S = 64, 0.25
RATE = 3 * SEATS / SERVICE_S
MILLIONS = float(os.environ.get("TIDEGATE_SPEED_MILLIONS", "10"))


def policy(*, plain: bool) -> Policy:
    """Return the default bands with short queues; ``plain``: without promotion and hopeless arrivals refused."""
    p0, p1, p2 = (replace(band, capacity=200) for band in Policy().bands)
    if plain:
        p1, p2 = replace(p1, shed_hopeless=False), replace(p2, promote_after_s=None)
    bands = (p0, p1, replace(p2, full=Full.EVICT_OLDEST))
    return Policy(bands=bands, pools=(PoolSpec("m", (BackendSpec("b", SEATS),)),))


def scheduler_rate(rule: Policy, count: int = 200_000) -> tuple[float, int]:
    """Return requests per second of wall time through the scheduler alone, and how many were dispatched."""
    tickets = [
        Ticket(str(n), "m", (0, 1, 1, 2, 2, 2)[n % 6], f"t{n % 20}", WorkEstimate(300, 100)) for n in range(count)
    ]
    scheduler, ends, done = Scheduler(rule), list[tuple[float, int]](), 0
    used = Release(Outcome.COMPLETED, 300, 100)
    gc.collect()
    began = time.process_time()
    for number, ticket in enumerate(tickets):
        now = number / RATE
        while ends and ends[0][0] <= now:
            at, lease = heapq.heappop(ends)
            done += 1
            for action in scheduler.release(at, lease, used):
                if isinstance(action, Dispatch):
                    heapq.heappush(ends, (at + SERVICE_S, action.lease.id))
        for action in scheduler.submit(now, ticket):
            if isinstance(action, Dispatch):
                heapq.heappush(ends, (now + SERVICE_S, action.lease.id))
    return count / (time.process_time() - began), done


def resident_bytes() -> int:
    """Return how much memory the process holds now."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def long_run(count: int) -> tuple[float, float]:
    """Play ``count`` requests through a world; return those per second, and MiB that the process grew after a tenth."""
    seen, sizes = 0, list[int]()

    def sink(_: Record) -> None:
        nonlocal seen
        seen += 1
        if seen % (count // 10) == 0:
            sizes.append(resident_bytes())

    def load() -> Iterator[Request]:
        for number in range(count):
            yield Request(number / RATE, (0, 1, 1, 2, 2, 2)[number % 6], f"t{number % 20}", 300, 100)

    world = World(policy(plain=True), {"b": FixedServer(SERVICE_S)}, load(), sink=sink, log=Fleeting())
    began = time.process_time()
    world.run()
    assert seen == count
    return count / (time.process_time() - began), (max(sizes) - sizes[0]) / 2**20


def rush_seconds() -> tuple[float, int]:
    """Return the wall seconds of 30 minutes of the shipped ``rush`` on four replicas, and its requests."""
    from tidegate.cli.scenario import GatewayEstimator, load_scenario
    from tidegate.simulation.run import run_one
    from tidegate.simulation.sources import Load

    scenario = load_scenario("rush", traces=(TRACES,))
    load = Load(scenario)
    began = time.process_time()
    report = run_one(scenario, load, estimator=GatewayEstimator())
    return time.process_time() - began, report.total.sent


def run() -> list[Row]:
    """Measure everything; the millions last."""
    rows: list[Row] = []
    for name, rule in (("plain", policy(plain=True)), ("flash-sale", policy(plain=False))):
        rate, done = scheduler_rate(rule)
        goal = "≥ 100,000 a second" if name == "plain" else ""
        rows.append((f"scheduler alone, virtual clock, {name}", f"{rate:,.0f} requests/s ({done:,} served)", goal))
    if TRACES.is_dir():
        seconds, sent = rush_seconds()
        rows.append(("30 minutes of rush, 4 replicas", f"{seconds:.1f} s ({sent:,} requests)", "< 60 s"))
    for count in (1_000_000, int(MILLIONS * 1e6)):
        rate, grown = long_run(count)
        rows.append((f"{count:,} requests simulated", f"{rate:,.0f} a second; memory {grown:+.1f} MiB", "flat"))
    return rows


if __name__ == "__main__":
    for row in run():
        print(" | ".join(row), flush=True)
