"""Leases that came to nothing: their tickets wait again, are counted once, and nothing of them is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runtime.fifo import FifoScheduler
from runtime.stories import Noting, stage, ticket
from tidegate.core import (
    Action,
    BackendSpec,
    Drain,
    Outcome,
    Paused,
    Policy,
    PoolSpec,
    RateLimit,
    Reading,
    Reason,
    Release,
    Requeue,
    Scheduler,
)
from tidegate.runtime import replay
from tidegate.telemetry import Recorder
from tidegate.testing import run_virtual

ONE = Policy(pools=(PoolSpec("m", (BackendSpec("a", 1),)),))
TWO = Policy(pools=(PoolSpec("m", (BackendSpec("a", 1), BackendSpec("b", 1))),))


def ended(recorder: Recorder, outcome: Outcome) -> int:
    return sum(account.requests.get(("m", outcome), 0) for account in recorder.accounts.values())


def test_a_paused_ticket_goes_on_when_the_pause_is_over() -> None:
    async def story() -> None:
        driver, recorder = stage(Scheduler(ONE))
        first = Noting()
        driver.submit(ticket(), first)
        driver.observe(Paused("a", 7.0))
        driver.requeue(first.leases[0], Requeue(), first)
        assert (driver.running, driver.waiting) == (0, 1)
        assert recorder.accounts["p0"].running["a"].value == 0
        await asyncio.sleep(6.9)
        assert len(first.leases) == 1
        await asyncio.sleep(0.2)
        assert len(first.leases) == 2
        driver.release(first.leases[1], Release())
        assert ended(recorder, Outcome.COMPLETED) == 1
        assert sum(count for account in recorder.accounts.values() for count in account.requests.values()) == 1

    run_virtual(story())


def test_a_failed_ticket_takes_the_other_backend_and_then_it_is_over() -> None:
    async def story() -> None:
        driver, recorder = stage(Scheduler(TWO))
        waiter = Noting()
        driver.submit(ticket(), waiter)
        driver.requeue(waiter.leases[0], Requeue(avoid=True), waiter)
        assert {lease.backend for lease in waiter.leases} == {"a", "b"}
        driver.requeue(waiter.leases[1], Requeue(avoid=True, reason=Reason.UPSTREAM_TIMEOUT), waiter)
        assert [action.reason for action in waiter.refusals] == [Reason.UPSTREAM_TIMEOUT]
        assert ended(recorder, Outcome.FAILED) == 1
        assert (driver.running, driver.waiting) == (0, 0)

    run_virtual(story())


def test_a_lease_goes_back_once() -> None:
    async def story() -> None:
        driver, _ = stage(Scheduler(ONE))
        waiter = Noting()
        driver.submit(ticket(), waiter)
        driver.release(waiter.leases[0], Release())
        with pytest.raises(ValueError, match="released"):
            driver.requeue(waiter.leases[0], Requeue(), waiter)

    run_virtual(story())


def test_while_draining_it_is_refused() -> None:
    async def story() -> None:
        driver, _ = stage(Scheduler(ONE))
        waiter = Noting()
        driver.submit(ticket(), waiter)
        driver.observe(Drain())
        driver.requeue(waiter.leases[0], Requeue(), waiter)
        await asyncio.sleep(0.01)
        assert [action.reason for action in waiter.refusals] == [Reason.DRAINING]

    run_virtual(story())


def test_after_a_fault_of_the_scheduler_it_is_refused() -> None:
    class Broken(FifoScheduler):
        def observe(self, now: float, signal: object) -> list[Action]:
            raise RuntimeError("broken")

    async def story() -> None:
        driver, _ = stage(Broken())
        waiter = Noting()
        driver.submit(ticket(), waiter)
        driver.observe(Paused("b", 1.0))
        driver.requeue(waiter.leases[0], Requeue(), waiter)
        assert [action.reason for action in waiter.refusals] == [Reason.DRAINING]
        assert (driver.running, driver.waiting) == (0, 0)

    run_virtual(story())


def test_a_client_that_leaves_while_it_waits_again_is_gone() -> None:
    async def story() -> None:
        driver, recorder = stage(Scheduler(ONE))
        waiter = Noting()
        given = ticket()
        driver.submit(given, waiter)
        driver.observe(Paused("a", 7.0))
        driver.requeue(waiter.leases[0], Requeue(), waiter)
        assert driver.cancel(given.id)
        await asyncio.sleep(10)
        assert len(waiter.leases) == 1
        assert ended(recorder, Outcome.CANCELLED) == 1
        assert (driver.running, driver.waiting) == (0, 0)

    run_virtual(story())


def test_what_upstreams_say_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def story() -> None:
        driver, _ = stage(Scheduler(ONE), policy=ONE, log=path)
        waiter = Noting()
        driver.submit(ticket(), waiter)
        driver.observe(Reading("a", 0.0, kv_free=0.5, running=1))
        driver.observe(RateLimit("a", remaining_requests=3))
        driver.observe(Paused("a", 2.0))
        driver.requeue(waiter.leases[0], Requeue(), waiter)
        await asyncio.sleep(3)
        driver.release(waiter.leases[1], Release())
        driver.close()

    run_virtual(story())
    assert [(now, type(action).__name__) for now, action in replay(path)] == [(0.0, "Dispatch"), (2.0, "Dispatch")]
