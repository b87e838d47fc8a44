"""Many gateways on one pool, by their own code on a simulated wire, beside one scheduler: order, waits, calls, seats.

All of p0 comes to one gateway, all of p2 to another, p1 to all; 2.5 times what the seats can do. What is counted is the
order in which gateways dispatch, so tickets that arrive while a grant is on its way count as passed. In the order of
grants floors and cap are exact (tests/conformance/test_ledger_order.py).

The last rows compare like with like: gateways and one scheduler are sent the same requests, and seats come back at the
same times, so that the difference of the waits of p0 is what coordination costs.

``python -m benchmarks.replicas_wire [--seconds S] [--only GATEWAYS ...]`` prints the table of docs/scale.md.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tidegate.core import BackendSpec, Order, Policy, PoolSpec, Scheduler
from tidegate.core.policy import P0, P1, P2
from tidegate.simulation import Request
from tidegate.simulation.replicas import Replicas, by_band
from tidegate.simulation.servers import FixedServer, RhythmServer
from tidegate.simulation.world import World
from tidegate.testing.replica_course import Course, course, difference, overload

Row = tuple[str, str, str]
LOAD = (0.40, 0.50, 1.60)
WARM_S = 20.0
WINDOW = 100
MOST = 30_000
BANDS = (
    replace(P0, order=Order.FIFO, may_preempt=False),
    replace(P1, floor=Fraction(0), shed_hopeless=False),
    replace(P2, capacity=10**6),
)


@dataclass(slots=True, frozen=True)
class Case:
    """``gateways`` is 0 for one scheduler without a ledger. Times in seconds."""

    gateways: int
    one_way_s: float
    seats: int = 64
    hold_s: float = 5.0

    @property
    def name(self) -> str:
        """As in the table."""
        who = f"{self.gateways}, {1000 * self.one_way_s:g} ms" if self.gateways else "one alone"
        return f"{who}, {self.seats:,} seats of {self.hold_s:g} s"


CASES = (
    Case(0, 0.0),
    Case(2, 0.0002),
    Case(4, 0.0005),
    Case(16, 0.0002),
    Case(16, 0.002),
    Case(64, 0.002),
    Case(0, 0.0, seats=1000),
    Case(64, 0.0005, seats=1000),
    Case(16, 0.0003, seats=256, hold_s=0.125),
)
PAIRS = (
    Case(3, 0.0005, seats=16, hold_s=1.0),
    Case(3, 0.001, seats=16, hold_s=1.0),
    Case(3, 0.002, seats=16, hold_s=1.0),
    Case(3, 0.004, seats=16, hold_s=1.0),
    Case(16, 0.001, seats=16, hold_s=1.0),
)


def run() -> Iterator[Row]:
    """Give the rows of the table of all benchmarks."""
    for case in CASES:
        yield measure(case, 60.0)
    for case in PAIRS:
        yield compare(case, 60.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", nargs="*", type=int, help="these of the cases, by number from 0")
    options = parser.parse_args()
    works = [(measure, case) for case in CASES] + [(compare, case) for case in PAIRS]
    for number, (work, case) in enumerate(works):
        if options.only is None or number in options.only:
            sys.stdout.write("  ".join(work(case, options.seconds)) + "\n")
            sys.stdout.flush()


def measure(case: Case, seconds: float) -> Row:
    """Simulate one case, of at most ``MOST`` dispatches; return its row."""
    seconds = min(seconds, WARM_S + MOST * case.hold_s / case.seats)
    policy = _policy(case)
    replicas = None
    if case.gateways:
        replicas = Replicas(policy, case.gateways, one_way_s=case.one_way_s, place=by_band(case.gateways))
    world = World(
        replicas or Scheduler(policy), {"b": FixedServer(lambda each: _service_s(case, each))}, _arrivals(case, seconds)
    )
    log = world.run(seconds)
    found = [entry for entry in log.dispatched if (entry.dispatched or 0.0) >= WARM_S]
    waits = sorted(entry.wait_s for entry in found if entry.request.band == 0)
    batch = [entry.request.band == 2 for entry in found]
    passed = [entry.passed for entry in found]
    busy = sum(_busy_s(case, entry.request, entry.dispatched or 0.0, seconds) for entry in log.dispatched)
    note = (
        f"p2 in any {WINDOW} at least {min(_windows(batch))}; "
        f"{100 * sum(passed) / len(passed):.1f} % past higher work, worst {WINDOW} {max(_windows(passed))}; "
        f"{100 * busy / case.seats / (seconds - WARM_S):.1f} % used; "
        f"{len(found) / (seconds - WARM_S):,.0f} dispatches/s"
    )
    if replicas is not None:
        note += f", {replicas.calls / len(log.dispatched):.2f} calls for each"
    cuts = [1000 * waits[int(part * (len(waits) - 1))] for part in (0.5, 0.99)]
    return (case.name, f"p0 waits {cuts[0]:.1f} / {cuts[1]:.0f} ms", note)


def compare(case: Case, seconds: float) -> Row:
    """Simulate one case and one scheduler alike; return by how much the waits of p0 differ."""
    plan = course(overload(case.gateways), seats=case.seats, hold_s=case.hold_s, seconds=seconds)
    place = iter([each.gateway for each in plan.arrivals])
    policy = _policy(case)
    shared = Replicas(policy, case.gateways, one_way_s=case.one_way_s, place=lambda _ticket: next(place))
    found = difference(p0_waits(plan, shared), p0_waits(plan, Scheduler(policy)))
    cuts = " / ".join(f"{1000 * each:+.1f}" for each in found.by_quantile)
    note = (
        f"p50 / p90 / p99 {cuts} ms, median of {found.count} pairs {1000 * found.median:+.1f}; at most "
        f"{found.most / (2 * case.one_way_s):.2f} round trips"
    )
    return (f"{case.name}, like with like", f"p0 waits {1000 * found.mean:+.2f} ms", note)


def p0_waits(plan: Course, scheduler: Replicas | Scheduler) -> dict[int, float]:
    """Return the waits of p0 by the number of the request, where seats come back at the times of the plan."""
    requests = [
        Request(at=each.at, band=each.band, tenant=f"t{each.band}", pool="m", prompt_tokens=10, output_tokens=10)
        for each in plan.arrivals
    ]
    log = World(scheduler, {"b": RhythmServer(plan.ends)}, requests).run(plan.seconds)
    return {int(each.ticket.id): each.wait_s for each in log.dispatched if each.request.band == 0}


def _policy(case: Case) -> Policy:
    return Policy(
        bands=BANDS,
        pools=(PoolSpec("m", (BackendSpec("b", case.seats),)),),
        overtake_cap=Fraction(1, 10),
        queue_capacity=10**6,
    )


def _arrivals(case: Case, seconds: float) -> list[Request]:
    rng = random.Random(1)
    found = []
    for band, load in enumerate(LOAD):
        at = 0.0
        while (at := at + rng.expovariate(load * case.seats / case.hold_s)) < seconds:
            found.append(Request(at=at, band=band, tenant=f"t{band}", pool="m", prompt_tokens=10, output_tokens=10))
    return sorted(found, key=lambda request: request.at)


def _service_s(case: Case, request: Request) -> float:
    return case.hold_s * (0.5 + random.Random(request.at).random())


def _busy_s(case: Case, request: Request, began: float, end: float) -> float:
    return max(0.0, min(end, began + _service_s(case, request)) - max(began, WARM_S))


def _windows(kinds: list[bool]) -> list[int]:
    return [sum(kinds[at : at + WINDOW]) for at in range(max(1, len(kinds) - WINDOW))]


if __name__ == "__main__":
    main()
