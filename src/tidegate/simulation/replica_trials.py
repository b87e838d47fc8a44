"""One fault of ``replica_faults`` under 2.5 times the load, and what came of it in figures.

What runs at once is counted where it runs, whatever the gateways believe. All of p0 comes to the first gateway and all
of the last band to the last one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tidegate.core import BackendSpec, Order, Outcome, Policy, PoolSpec
from tidegate.core.policy import P0, P1, P2
from tidegate.simulation.arrivals import Request
from tidegate.simulation.log import Entry, Log
from tidegate.simulation.replica_faults import FaultyReplicas, where
from tidegate.simulation.replicas import by_band
from tidegate.simulation.servers import FixedServer
from tidegate.simulation.world import World

LOAD = (0.40, 0.50, 1.60)
BEGINS_S = 15.0
NORMAL_S = 10.0
"""After a fault, until which the order is to be as before."""
LOOK_S = 15.0
TTL_S, HEARTBEAT_S = 5.0, 0.5
WINDOW = 100


@dataclass(slots=True, frozen=True)
class Trial:
    """What is tried.

    Attributes:
        name: of the fault, a key of ``FAULTS``; empty for none.
        seconds: it lasts.
        count: of gateways.
        one_way_s: to the store.
        seats: of the pool, each held for ``hold_s`` at the mean.
        load: 1 is 2.5 times the capacity.
    """

    name: str
    seconds: float = 20.0
    count: int = 3
    one_way_s: float = 0.0005
    seats: int = 16
    hold_s: float = 1.0
    load: float = 1.0
    seed: int = 1

    @property
    def ended_s(self) -> float:
        """When the fault is over."""
        return BEGINS_S + self.seconds

    @property
    def until_s(self) -> float:
        """When the run is."""
        return self.ended_s + NORMAL_S + LOOK_S

    @property
    def policy(self) -> Policy:
        """Without what would leave seats free on purpose."""
        return Policy(
            bands=(
                replace(P0, order=Order.FIFO, may_preempt=False, reserve=0),
                replace(P1, floor=Fraction(0), shed_hopeless=False, reserve=0),
                replace(P2, capacity=10**6),
            ),
            pools=(PoolSpec("m", (BackendSpec("b", self.seats),)),),
            overtake_cap=Fraction(1, 10),
            queue_capacity=10**6,
        )

    def arrivals(self) -> list[Request]:
        """Return the requests, the same for every fault."""
        rng = random.Random(self.seed)
        found = []
        for band, load in enumerate(LOAD):
            at = 0.0
            while (at := at + rng.expovariate(self.load * load * self.seats / self.hold_s)) < self.until_s:
                found.append(Request(at=at, band=band, tenant=f"t{band}", pool="m", prompt_tokens=10, output_tokens=10))
        return sorted(found, key=lambda request: request.at)

    def service_s(self, request: Request) -> float:
        """Return how long a request takes: from half to one and a half of the mean."""
        return self.hold_s * (0.5 + random.Random(request.at).random())


Story = Callable[[FaultyReplicas, Trial], None]


def _hang(replicas: FaultyReplicas, trial: Trial) -> None:
    replicas.plan(BEGINS_S, replicas.hang_store)
    replicas.plan(trial.ended_s, replicas.wake_store)


def _wipe(replicas: FaultyReplicas, _: Trial) -> None:
    replicas.plan(BEGINS_S, replicas.kill_store)
    replicas.plan(BEGINS_S + 1.0, replicas.start_store)


def _kill(replicas: FaultyReplicas, _: Trial) -> None:
    replicas.plan(BEGINS_S, where(1, replicas.kill))


def _freeze(replicas: FaultyReplicas, trial: Trial) -> None:
    replicas.plan(BEGINS_S, where(1, replicas.freeze))
    replicas.plan(trial.ended_s, where(1, replicas.wake))


def _cut(replicas: FaultyReplicas, trial: Trial) -> None:
    replicas.plan(BEGINS_S, where(0, replicas.cut))
    replicas.plan(trial.ended_s, where(0, replicas.mend))


def _stumble(replicas: FaultyReplicas, trial: Trial) -> None:
    at = BEGINS_S
    while at < trial.ended_s:
        replicas.plan(at, replicas.hang_store)
        replicas.plan(at + 0.2, replicas.wake_store)
        at += 0.5


FAULTS: dict[str, Story] = {
    "": lambda _replicas, _trial: None,
    "store stopped": _hang,
    "store killed, back empty": _wipe,
    "gateway killed": _kill,
    "gateway frozen": _freeze,
    "gateway of p0 cut off": _cut,
    "store stumbles twice a second": _stumble,
}


@dataclass(slots=True)
class Figures:
    """What came of a trial.

    Attributes:
        most: that ran at once from the beginning of the fault to ``NORMAL_S`` after its end.
        most_after: that ran at once later.
        most_before_ttl: that ran at once before others were given the seats of a gateway, whose lease is counted from
            when it was heard last, at most a heartbeat before the fault.
        used: part of the seats that was used during the fault; ``used_late`` once the lease of a gateway is over.
        used_after: from ``NORMAL_S`` after it.
        waits: of p0 during the fault, in order; ``waits_after`` later.
        least: of the last band in any 100 dispatches, later; ``passed`` part of those past higher work.
        lost: requests that died with their gateway; ``gone``: of which nobody knows; ``twice`` sent more than once.
        refused: that ended with an answer that says no.
        longest_s: see ``FaultyReplicas``.
        shares: as dealt when the fault began.
    """

    most: int = 0
    most_after: int = 0
    most_before_ttl: int = 0
    used: float = 0.0
    used_late: float = 0.0
    used_after: float = 0.0
    waits: list[float] = field(default_factory=list)
    waits_after: list[float] = field(default_factory=list)
    least: int = 0
    passed: float = 0.0
    lost: int = 0
    gone: int = 0
    twice: int = 0
    refused: int = 0
    longest_s: list[float] = field(default_factory=list)
    shares: tuple[int, ...] = ()
    log: Log = field(default_factory=Log)


def run(trial: Trial) -> Figures:
    """Run a trial and return its figures."""
    replicas = FaultyReplicas(
        trial.policy, trial.count, one_way_s=trial.one_way_s, place=by_band(trial.count), seed=trial.seed
    )
    FAULTS[trial.name](replicas, trial)
    log = World(replicas, {"b": FixedServer(trial.service_s)}, trial.arrivals()).run(trial.until_s)
    after_s = trial.ended_s + NORMAL_S
    late_s = BEGINS_S + TTL_S + HEARTBEAT_S
    later = [entry for entry in log.dispatched if (entry.dispatched or 0.0) >= after_s]
    bands = [entry.request.band for entry in later]
    sent = [entry.ticket.id for entry in log.dispatched]
    known = replicas.waiting() | set(sent) | replicas.lost
    known |= {entry.ticket.id for entry in log.entries if entry.reason is not None}
    return Figures(
        most=most_running(trial, log, BEGINS_S, after_s),
        most_after=most_running(trial, log, after_s, trial.until_s),
        most_before_ttl=most_running(trial, log, BEGINS_S, BEGINS_S + TTL_S - HEARTBEAT_S),
        used=used(trial, log, BEGINS_S, trial.ended_s),
        used_late=used(trial, log, late_s, trial.ended_s),
        used_after=used(trial, log, after_s, trial.until_s),
        waits=waits(log, 0, BEGINS_S, trial.ended_s),
        waits_after=waits(log, 0, after_s, trial.until_s - trial.hold_s),
        least=min((bands[at : at + WINDOW].count(2) for at in range(max(1, len(bands) - WINDOW))), default=0),
        passed=sum(entry.passed for entry in later) / max(1, len(later)),
        lost=len(replicas.lost),
        gone=sum(entry.ticket.id not in known for entry in log.entries),
        twice=len(sent) - len(set(sent)),
        refused=sum(entry.outcome in (Outcome.REJECTED, Outcome.EVICTED) for entry in log.entries) - len(replicas.lost),
        longest_s=replicas.longest_s,
        shares=replicas.shares,
        log=log,
    )


def most_running(trial: Trial, log: Log, since: float, until: float) -> int:
    """Return the most that ran at once in a time."""
    now = most = 0
    for at, step in _steps(trial, log.dispatched):
        if at >= until:
            break
        if at > since:
            most = max(most, now)
        now += step
    return max(most, now)


def used(trial: Trial, log: Log, since: float, until: float) -> float:
    """Return the part of the seats that was used in a time."""
    if until <= since:
        return 1.0
    busy = last = 0.0
    now = 0
    for at, step in [*_steps(trial, log.dispatched), (until, 0)]:
        busy += max(0.0, min(at, until) - max(last, since)) * min(now, trial.seats)
        now, last = now + step, at
    return busy / trial.seats / (until - since)


def waits(log: Log, band: int, since: float, until: float) -> list[float]:
    """Return the waits of a band's requests that came in a time and were sent, in order."""
    return sorted(
        entry.wait_s for entry in log.dispatched if entry.request.band == band and since <= entry.request.at < until
    )


def quantile(values: Sequence[float], part: float) -> float:
    """Return a quantile of sorted values; 0 of none."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def _steps(trial: Trial, entries: list[Entry]) -> list[tuple[float, int]]:
    """Return when one more runs, and when one less; an end comes before a beginning at the same time."""
    steps = []
    for entry in entries:
        assert entry.dispatched is not None
        steps += [(entry.dispatched, 1), (entry.dispatched + trial.service_s(entry.request), -1)]
    return sorted(steps)
