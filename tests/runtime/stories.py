"""What the runtime tests have in common: a policy, tickets, a stage with driver and recorder, a noting waiter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.core import BackendSpec, Lease, Policy, PoolSpec, Ticket, WorkEstimate
from tidegate.runtime import Driver, EventLog, Refusal
from tidegate.runtime.protocol import SchedulerLike
from tidegate.telemetry import Recorder
from tidegate.testing import LoopClock

POLICY = Policy(pools=(PoolSpec("m", (BackendSpec("b", 8),)),))
_ids = itertools.count()


def ticket(band: int = 0, *, name: str = "", output_tokens: int = 10) -> Ticket:
    """A ticket with an id of its own."""
    return Ticket(name or f"t{next(_ids)}", "m", band, "tenant", WorkEstimate(20, output_tokens))


@dataclass
class Noting:
    """A waiter that notes what it is told and may react to it."""

    on_lease: Callable[[Lease], object] | None = None
    on_refusal: Callable[[Refusal], object] | None = None
    leases: list[Lease] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def answers(self) -> int:
        return len(self.leases) + len(self.refusals)

    def dispatched(self, lease: Lease) -> None:
        self.leases.append(lease)
        if self.on_lease:
            self.on_lease(lease)

    def refused(self, action: Refusal) -> None:
        self.refusals.append(action)
        if self.on_refusal:
            self.on_refusal(action)


def stage(scheduler: SchedulerLike, *, policy: Policy = POLICY, log: Path | None = None) -> tuple[Driver, Recorder]:
    """A driver on the running loop's time."""
    recorder = Recorder(policy)
    event_log = EventLog(log, policy) if log else None
    return Driver(scheduler, LoopClock(), recorder, event_log=event_log), recorder


def total(recorder: Recorder) -> int:
    """Requests counted in all bands, models and outcomes."""
    return sum(sum(account.requests.values()) for account in recorder.accounts.values())
