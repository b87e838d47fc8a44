"""Leases that the scheduler wants stopped: who is asked, what is counted, and that a recorded run replays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from runtime.stories import Noting, stage
from tidegate.core import (
    BackendSpec,
    Began,
    Lease,
    Outcome,
    Policy,
    PoolSpec,
    Preempt,
    Release,
    Requeue,
    Scheduler,
    Stoppable,
    Ticket,
)
from tidegate.runtime import replay
from tidegate.testing import run_virtual

ALL = Policy(pools=(PoolSpec("m", (BackendSpec("a", 1),)),), preempt_rate=Fraction(1))


def ticket(name: str, band: int) -> Ticket:
    return Ticket(name, "m", band, "t", stoppable=Stoppable.ALWAYS)


@dataclass
class Stopping(Noting):
    """Notes that it was asked to stop, and says what it is told to say."""

    stops: bool = True
    fails: bool = False
    asked: list[Lease] = field(default_factory=list)

    def preempt(self, lease: Lease) -> bool:
        self.asked.append(lease)
        if self.fails:
            raise RuntimeError("no")
        return self.stops


def test_a_stopped_ticket_waits_is_counted_and_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "events"

    async def story() -> None:
        driver, recorder = stage(Scheduler(ALL), policy=ALL, log=log)
        low, high = Stopping(), Noting()
        driver.submit(ticket("low", 2), low)
        driver.observe(Began(low.leases[0].id))
        driver.submit(ticket("high", 0), high)
        await asyncio.sleep(0.02)
        assert low.asked == []
        await asyncio.sleep(0.01)
        assert low.asked == low.leases
        assert high.leases == []
        driver.requeue(low.leases[0], Requeue(), low)
        assert len(high.leases) == 1
        assert recorder.preemptions == {(2, 0): 1}
        driver.release(high.leases[0], Release())
        assert len(low.leases) == 2
        driver.release(low.leases[1], Release())
        waits = recorder.accounts["p2"].queue_wait.counts
        assert sum(waits) == 1, "the wait of a ticket counts once, however often it is dispatched"
        assert sum(account.requests["m", Outcome.COMPLETED] for account in recorder.accounts.values()) == 2
        driver.close()

    run_virtual(story())
    assert [action.ticket.id for _, action in replay(log) if isinstance(action, Preempt)] == ["low"]


def test_one_that_says_no_or_fails_or_cannot_is_left_alone() -> None:
    async def story() -> None:
        for waiter in (Stopping(stops=False), Stopping(fails=True), Noting()):
            driver, recorder = stage(Scheduler(ALL), policy=ALL)
            driver.submit(ticket("low", 2), waiter)
            high = Noting()
            driver.submit(ticket("high", 0), high)
            await asyncio.sleep(1.0)
            if isinstance(waiter, Stopping):
                assert len(waiter.asked) == 1
            driver.release(waiter.leases[0], Release())
            assert len(high.leases) == 1
            assert not recorder.preemptions
            driver.release(high.leases[0], Release())
            driver.close()

    run_virtual(story())


def test_one_that_ends_by_itself_meanwhile_was_not_preempted() -> None:
    async def story() -> None:
        driver, recorder = stage(Scheduler(ALL), policy=ALL)
        low, high = Stopping(), Noting()
        driver.submit(ticket("low", 2), low)
        driver.submit(ticket("high", 0), high)
        await asyncio.sleep(0.05)
        assert len(low.asked) == 1
        driver.release(low.leases[0], Release())
        assert len(high.leases) == 1
        assert not recorder.preemptions
        driver.release(high.leases[0], Release())
        driver.close()

    run_virtual(story())
