"""Hours of traffic through the driver and the real scheduler, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from runtime.stories import POLICY, Noting, stage, ticket
from tidegate.core import Outcome, Policy, PoolSpec, Reason, Scheduler, Seats
from tidegate.runtime import Refusal
from tidegate.testing import FakeBackend, run_virtual


@pytest.mark.slow
def test_an_hour_at_twice_the_capacity_leaves_p0_fast_and_every_ticket_ended() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        driver, recorder = stage(Scheduler(POLICY))
        rng = random.Random(7)
        backend = FakeBackend(driver, lambda _: rng.uniform(1.0, 3.0))  # 8 seats: 4 requests/s
        sent = 0
        while loop.time() < 3600:
            backend.submit(ticket(rng.choices([0, 1, 2], [2, 6, 8])[0]))
            sent += 1
            await asyncio.sleep(rng.expovariate(8))
        assert await driver.drain(60) == 0
        assert len(backend.done_at) + len(backend.refusals) == sent
        p0 = recorder.accounts["p0"]
        assert p0.requests["m", Outcome.COMPLETED] == sum(p0.requests.values())
        waits = sorted(lease.waited_s for lease in backend.leases if lease.ticket.band == 0)
        assert waits[int(len(waits) * 0.99)] < 3.0  # at most about one service time
        assert all(wait_s <= 15.0 for wait_s in (lease.waited_s for lease in backend.leases if lease.ticket.band == 1))
        assert 13_800 < len(backend.done_at) < 15_000  # no seat idled: an hour of 4 requests/s is 14,400

    run_virtual(story())


def test_a_backlog_without_seats_expires_band_by_band_at_its_ttl() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        driver, _ = stage(Scheduler(POLICY))
        driver.observe(Seats("b", 0))
        ended: dict[int, set[float]] = {0: set(), 1: set(), 2: set()}

        def note(refusal: Refusal) -> None:
            assert refusal.reason is Reason.EXPIRED
            ended[refusal.ticket.band].add(round(loop.time(), 6))

        waiters = [Noting(on_refusal=note) for _ in range(900)]
        for number, waiter in enumerate(waiters):
            driver.submit(ticket(number % 3), waiter)
        await asyncio.sleep(100_000)
        assert all(waiter.answers == 1 for waiter in waiters)
        assert ended == {0: {10.0}, 1: {15.0}, 2: {86_400.0}}

    run_virtual(story())


def test_a_drain_with_twenty_thousand_waiting_keeps_the_loop_alive() -> None:
    async def story() -> None:
        driver, _ = stage(Scheduler(Policy(pools=(PoolSpec("m", POLICY.pools[0].backends),))))
        backend = FakeBackend(driver, lambda _: 30.0)
        for _ in range(20_000):
            backend.submit(ticket(2))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while driver.waiting:
                turns += 1
                await asyncio.sleep(0)

        others = asyncio.create_task(other())
        assert await driver.drain(60) == 0
        await others
        assert turns >= 19_992 // 64
        assert len(backend.refusals) == 20_000 - 8
        assert len(backend.done_at) == 8

    run_virtual(story())
