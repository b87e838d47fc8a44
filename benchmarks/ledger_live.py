"""What a live pool of 16 gateways asks of its store: calls for a dispatch, and dispatches per second of a store core.

Here nothing is assumed: each replica is the gateway's own scheduler, driver and link, with a connection of its own to a
real Valkey; only the engine is a timer. p0 and p1 arrive at 0.4 and 0.5 of what the seats can do, and p2 always waits,
at every replica. Replicas run in two processes and take most of the machine, so the store is never full: what it
carries is dispatches per second of *its* processor time.

``python -m benchmarks.ledger_live [--replicas N] [--seats N] [--hold-s S] [--seconds S]``
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from tidegate.core import BackendSpec, Lease, Policy, PoolSpec, Release, Scheduler, TenantSpec, Ticket, WorkEstimate
from tidegate.runtime import Driver
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.replica_pools import Replica, ReplicaTerms
from tidegate.runtime.waiters import Refusal
from tidegate.stores.ledger_protocol import PoolView
from tidegate.stores.open_ledger import open_ledger
from tidegate.telemetry import Recorder
from tidegate.testing.valkey import ValkeyProcess, valkey_process

Row = tuple[str, str, str]
Worker = tuple[multiprocessing.process.BaseProcess, multiprocessing.connection.Connection]
SETTLE_S = 5.0
LOADS = (0.4, 0.5)
"""Of what the seats can do, in p0 and p1."""
BACKLOG = 12
"""Of p2 at each replica."""
TENANTS = [f"tenant-{index}" for index in range(20)]
POOL = "default:m"


@dataclass(slots=True, frozen=True)
class Plan:
    """What runs. Times in seconds."""

    replicas: int
    seats: int
    hold_s: float
    seconds: float

    @property
    def policy(self) -> Policy:
        """Of all replicas."""
        backends = tuple(BackendSpec(name, self.seats // 2) for name in ("gpu-a", "gpu-b"))
        return Policy(pools=(PoolSpec("m", backends),), tenants=tuple(TenantSpec(name) for name in TENANTS))


def run() -> Iterator[Row]:
    """Give the rows of the table of all benchmarks."""
    yield measure(Plan(16, 128, 0.2, 10.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--seats", type=int, default=128)
    parser.add_argument("--hold-s", type=float, default=0.2)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    plan = Plan(options.replicas, options.seats, options.hold_s, options.seconds)
    sys.stdout.write("  ".join(measure(plan)) + "\n")


class Gateway:
    """One replica under load."""

    def __init__(self, name: str, url: str, plan: Plan) -> None:
        self.plan, self.rng = plan, random.Random(name)
        self._names = (f"{name}-{count}" for count in itertools.count())
        self._loop = asyncio.get_running_loop()
        clock = SystemClock()
        self.replica = Replica(ReplicaTerms(name), open_ledger(url), Scheduler(plan.policy), clock)
        self.driver = Driver(self.replica.scheduler, clock, Recorder(plan.policy))
        self.replica.join(self.driver.observe)
        self._feeds: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Join the pool and load it."""
        self.replica.start()
        for _ in range(BACKLOG):
            self._send(2)
        self._feeds = [self._loop.create_task(self._feed(band, load)) for band, load in enumerate(LOADS)]

    async def stop(self) -> None:
        """End it."""
        for feed in self._feeds:
            feed.cancel()
        await asyncio.gather(*self._feeds, return_exceptions=True)
        await self.replica.stop()

    async def _feed(self, band: int, load: float) -> None:
        rate, due = load * self.plan.seats / self.plan.hold_s / self.plan.replicas, time.monotonic()
        while True:
            due += self.rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._send(band)

    def _send(self, band: int) -> None:
        work = WorkEstimate(self.rng.randint(50, 800), 100)
        self.driver.submit(Ticket(next(self._names), "m", band, self.rng.choice(TENANTS), work), self)

    def dispatched(self, lease: Lease) -> None:
        """Hold the seat for a while; p2 has always more."""
        self._loop.call_later(self.plan.hold_s * self.rng.uniform(0.5, 1.5), self.driver.release, lease, Release())
        if lease.ticket.band == 2:
            self._loop.call_soon(self._send, 2)

    def refused(self, action: Refusal) -> None:
        """What expires is not sent again."""


async def _gateways(
    url: str, names: list[str], plan: Plan, parent: multiprocessing.connection.Connection
) -> tuple[int, float, float]:
    """Run replicas; return their calls in the time that the parent measures, their seconds, and those alone."""
    gateways = [Gateway(name, url, plan) for name in names]
    for each in gateways:
        each.start()
    await asyncio.sleep(SETTLE_S)
    began = [each.replica.counts() for each in gateways]
    parent.send(None)
    await asyncio.sleep(plan.seconds)
    ended = [each.replica.counts() for each in gateways]
    pairs = list(zip(began, ended, strict=True))
    found = (
        sum(after.calls - before.calls for before, after in pairs),
        sum(after.call_s - before.call_s for before, after in pairs),
        sum(after.solo_s - before.solo_s for before, after in pairs),
    )
    await asyncio.gather(*(each.stop() for each in gateways))
    return found


def _worker(url: str, names: list[str], plan: Plan, parent: multiprocessing.connection.Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    parent.send(asyncio.run(_gateways(url, names, plan, parent)))


def measure(plan: Plan) -> Row:
    """Give one row."""
    with valkey_process() as store:
        asyncio.run(_with_pool(store.url, plan))
        names = [f"r{index}" for index in range(plan.replicas)]
        context = multiprocessing.get_context("spawn")
        workers: list[Worker] = []
        for part in (names[::2], names[1::2]):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_worker, args=(store.url, part, plan, theirs))
            worker.start()
            theirs.close()  # so that a worker that fails is noticed
            workers.append((worker, ours))
        for _, ours in workers:
            ours.recv()
        return _between(store, plan, workers)


def _between(store: ValkeyProcess, plan: Plan, workers: list[Worker]) -> Row:
    spent, granted = store.cpu_s(), _granted(store.url, plan)
    time.sleep(plan.seconds)
    spent, granted = store.cpu_s() - spent, _granted(store.url, plan) - granted
    found = []
    for worker, ours in workers:
        found.append(ours.recv())
        worker.join()
    calls, call_s, solo_s = (sum(each[part] for each in found) for part in range(3))
    note = (
        f"{granted / plan.seconds:,.0f} dispatches/s of {plan.seats / plan.hold_s:,.0f} asked, "
        f"{calls / granted:.2f} calls for each, {1e6 * spent / calls:.0f} µs of the store for a call, "
        f"which took {1000 * call_s / calls:.1f} ms; "
        f"{100 * solo_s / plan.seconds / plan.replicas:.1f} % of the time alone"
    )
    return (
        f"live pool, {plan.replicas} gateways, {plan.seats} seats",
        f"{granted / spent:,.0f} dispatches per store core",
        note,
    )


async def _with_pool(url: str, plan: Plan) -> PoolView | None:
    store = open_ledger(url)
    ledger = store.pool(POOL)
    if await ledger.configuration() is None:
        replica = Replica(ReplicaTerms("bench"), store, Scheduler(plan.policy), SystemClock())
        await ledger.configure(replica.config(plan.policy.pools[0], version=1, mode="", document=""))
    view = await ledger.view()
    await store.close()
    return view


def _granted(url: str, plan: Plan) -> int:
    view = asyncio.run(_with_pool(url, plan))
    return view.granted if view else 0


if __name__ == "__main__":
    main()
