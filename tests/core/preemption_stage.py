"""A pool whose p2 work may be stopped, for the tests of preemption."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tidegate.core import (
    Action,
    BackendSpec,
    Band,
    Began,
    Dispatch,
    Policy,
    PoolSpec,
    Preempt,
    Release,
    Requeue,
    Scheduler,
    Stoppable,
    Ticket,
    WorkEstimate,
)

ALL = Fraction(1)
HALF_S = 0.025


def bands(*, floor: Fraction = Fraction(0), p1: dict[str, Any] | None = None) -> tuple[Band, ...]:
    return (
        Band("p0", 100, 0.05, may_preempt=True, capacity=50, ttl_s=1000),
        Band("p1", 20, 0.02, ttl_s=1000, **(p1 or {})),
        Band("p2", 1, 0.005, floor=floor, preemptible=True),
    )


class Stage:
    """One pool; p2 fills its seats at 0.0 unless told otherwise."""

    def __init__(self, seats: int = 2, fill: bool = True, backends: tuple[BackendSpec, ...] = (), **more: Any) -> None:
        pools = (PoolSpec("m", backends or (BackendSpec("b", seats),)),)
        self.policy = Policy(**{"bands": bands(), "pools": pools, "preempt_rate": ALL, **more})
        self.core = Scheduler(self.policy)
        self.leases: dict[str, int] = {}
        if fill:
            for number in range(seats):
                self.submit(0.0, f"v{number}", 2)

    def note(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Dispatch):
                self.leases[action.ticket.id] = action.lease.id
        return actions

    def submit(
        self, now: float, id_: str, band: int, stoppable: Stoppable = Stoppable.ALWAYS, tokens: int = 100, **more: Any
    ) -> list[Action]:
        work = WorkEstimate(10, tokens)
        return self.note(
            self.core.submit(now, Ticket(id_, "m", band, more.pop("tenant", "t"), work, stoppable=stoppable, **more))
        )

    def tick(self, now: float) -> list[Action]:
        return self.note(self.core.tick(now))

    def began(self, now: float, id_: str) -> None:
        assert not self.core.observe(now, Began(self.leases[id_]))

    def back(self, now: float, id_: str, requeue: Requeue | None = None) -> list[Action]:
        return self.note(self.core.release(now, self.leases[id_], requeue or Requeue()))

    def done(self, now: float, id_: str, **more: Any) -> list[Action]:
        return self.note(self.core.release(now, self.leases[id_], Release(**more)))


def stops(actions: list[Action]) -> list[tuple[str, int]]:
    return [(action.ticket.id, action.by) for action in actions if isinstance(action, Preempt)]


def starts(actions: list[Action]) -> list[str]:
    return [action.ticket.id for action in actions if isinstance(action, Dispatch)]
