from __future__ import annotations

import asyncio
import itertools

import pytest
from structlog.testing import capture_logs

from runtime.fifo import FifoScheduler
from runtime.stories import POLICY, Noting, stage, ticket, total
from tidegate.core import Drain, Evict, Lease, Outcome, Reason, Reject, Release, Seats
from tidegate.telemetry import Recorder
from tidegate.testing import run_virtual


def outcomes(recorder: Recorder) -> dict[str, int]:
    found: dict[str, int] = {}
    for account in recorder.accounts.values():
        for (_, outcome), count in account.requests.items():
            found[outcome] = found.get(outcome, 0) + count
    return found


def test_a_free_seat_is_given_before_submit_returns() -> None:
    async def story() -> None:
        driver, _ = stage(FifoScheduler())
        waiter = Noting()
        driver.submit(ticket(), waiter)
        assert waiter.answers == 1
        assert driver.running == 1

    run_virtual(story())


def test_a_waiting_ticket_expires_at_its_deadline_and_not_before() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        driver, recorder = stage(FifoScheduler(seats=0, ttl_s=3600.0))
        at: list[float] = []
        waiter = Noting(on_refusal=lambda _: at.append(loop.time()))
        await asyncio.sleep(5)
        driver.submit(ticket(), waiter)
        await asyncio.sleep(3599)
        assert waiter.answers == 0
        await asyncio.sleep(2)
        assert at == pytest.approx([3605.0])
        assert waiter.refusals[0].reason is Reason.EXPIRED
        assert outcomes(recorder) == {Outcome.EVICTED: 1}

    run_virtual(story())


def test_one_timer_is_armed_and_only_moves_earlier() -> None:
    async def story() -> None:
        scheduler = FifoScheduler(seats=0)
        driver, _ = stage(scheduler)
        loop = asyncio.get_running_loop()
        armed: list[float] = []
        plain = loop.call_later

        def call_later(delay: float, callback: object, *arguments: object, **more: object) -> object:
            armed.append(delay)
            return plain(delay, callback, *arguments, **more)  # type: ignore[arg-type]

        loop.call_later = call_later  # type: ignore[method-assign, assignment]
        for _ in range(50):
            driver.submit(ticket(), Noting())
        assert armed == [10.0]
        scheduler.ttl_s = 2.0
        driver.submit(ticket(), Noting())
        assert armed == [10.0, 2.0]

    run_virtual(story())


def test_a_timer_that_fires_early_does_not_spin() -> None:
    async def story() -> None:
        scheduler = FifoScheduler(seats=0, ttl_s=1.0)
        driver, _ = stage(scheduler)
        loop = asyncio.get_running_loop()
        plain = loop.call_later
        loop.call_later = lambda delay, *rest: plain(max(0.0, delay - 0.0007), *rest)  # type: ignore[method-assign]
        waiter = Noting()
        driver.submit(ticket(), waiter)
        await asyncio.sleep(2)
        assert waiter.answers == 1
        assert [name for name, _ in scheduler.calls].count("tick") == 1

    run_virtual(story())


def test_waiters_may_call_the_driver_from_inside_in_any_way() -> None:
    async def story() -> None:
        driver, recorder = stage(FifoScheduler(seats=1))
        order: list[str] = []

        def use(lease: Lease) -> None:
            order.append(lease.ticket.id)
            if lease.ticket.id == "a":
                driver.submit(ticket(name="d"), Noting(on_lease=use))
                assert driver.cancel("c")
            driver.release(lease, Release())

        blocker = Noting()
        driver.submit(ticket(), blocker)
        for name in "abc":
            driver.submit(ticket(name=name), Noting(on_lease=use))
        driver.release(blocker.leases[0], Release())
        assert order == ["a", "b", "d"]
        assert (driver.running, driver.waiting) == (0, 0)
        assert outcomes(recorder) == {Outcome.COMPLETED: 4, Outcome.CANCELLED: 1}

    run_virtual(story())


def test_a_long_chain_of_synchronous_releases_neither_recurses_nor_starves_the_loop() -> None:
    async def story() -> None:
        driver, recorder = stage(FifoScheduler(seats=1))
        blocker = Noting()
        driver.submit(ticket(), blocker)
        waiter = Noting(on_lease=lambda lease: driver.release(lease, Release()))
        for _ in range(2000):
            driver.submit(ticket(), waiter)
        driver.release(blocker.leases[0], Release())
        turns = 0
        while driver.waiting:
            assert len(waiter.leases) <= 64 * (turns + 1) + 1, "the first is carried out at once, beside the batch"
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 31
        assert outcomes(recorder) == {Outcome.COMPLETED: 2001}

    run_virtual(story())


def test_cancelling_a_ticket_whose_lease_is_on_its_way_gives_the_seat_back() -> None:
    async def story() -> None:
        scheduler = FifoScheduler(seats=0)
        driver, recorder = stage(scheduler)
        second, third = Noting(), Noting()
        first = Noting(on_lease=lambda _: driver.cancel("second"))
        driver.submit(ticket(name="first"), first)
        driver.submit(ticket(name="second"), second)
        driver.submit(ticket(name="third"), third)
        driver.observe(Seats("b", 2))
        assert (first.answers, second.answers, third.answers) == (1, 0, 1)
        assert len(scheduler.running) == driver.running == 2
        assert outcomes(recorder) == {Outcome.CANCELLED: 1}

    run_virtual(story())


def test_cancelling_a_ticket_whose_refusal_is_on_its_way_counts_it_once() -> None:
    async def story() -> None:
        driver, recorder = stage(FifoScheduler(seats=0))
        second = Noting()
        first = Noting(on_refusal=lambda _: driver.cancel("second"))
        driver.submit(ticket(name="first"), first)
        driver.submit(ticket(name="second"), second)
        driver.observe(Drain())
        assert (first.answers, second.answers) == (1, 0)
        assert outcomes(recorder) == {Outcome.EVICTED: 2}

    run_virtual(story())


def test_a_lease_is_released_once() -> None:
    async def story() -> None:
        scheduler = FifoScheduler(seats=1)
        driver, recorder = stage(scheduler)
        waiter = Noting()
        driver.submit(ticket(), waiter)
        with capture_logs() as lines:
            driver.release(waiter.leases[0], Release())
            driver.release(waiter.leases[0], Release())
        assert [name for name, _ in scheduler.calls].count("release") == 1
        assert [line["event"] for line in lines] == ["lease.released_twice"]
        assert total(recorder) == 1

    run_virtual(story())


def test_a_waiter_that_fails_costs_neither_its_seat_nor_the_others_their_answer() -> None:
    async def story() -> None:
        scheduler = FifoScheduler(seats=0)
        driver, recorder = stage(scheduler)

        def fail(_: object) -> None:
            raise KeyError("a bug of the waiter")

        others = [Noting() for _ in range(3)]
        driver.submit(ticket(), others[0])
        driver.submit(ticket(), Noting(on_lease=fail))
        driver.submit(ticket(), others[1])
        with capture_logs() as lines:
            driver.observe(Seats("b", 3))
            driver.submit(ticket(), others[2])
        assert [other.answers for other in others] == [1, 1, 1]
        assert len(scheduler.running) == 3
        assert [line["event"] for line in lines] == ["waiter.failed"]
        assert outcomes(recorder) == {Outcome.FAILED: 1}

    run_virtual(story())


def test_a_ticket_id_that_waits_already_is_refused_loudly() -> None:
    async def story() -> None:
        driver, _ = stage(FifoScheduler(seats=0))
        driver.submit(ticket(name="same"), Noting())
        with pytest.raises(ValueError, match="same"):
            driver.submit(ticket(name="same"), Noting())

    run_virtual(story())


def test_evictions_without_end_leave_the_loop_to_others() -> None:
    async def story() -> None:
        driver, recorder = stage(FifoScheduler(seats=0))
        waiter = Noting()
        for _ in range(2560):
            driver.submit(ticket(), waiter)
        driver.observe(Drain())
        seen = []
        while driver.waiting:
            seen.append(waiter.answers)
            await asyncio.sleep(0)
        assert len(seen) >= 9
        assert all(b - a <= 256 for a, b in itertools.pairwise(seen))
        assert outcomes(recorder) == {Outcome.EVICTED: 2560}

    run_virtual(story())


# acquire


def test_acquire_returns_the_lease_or_the_refusal() -> None:
    async def story() -> None:
        driver, _ = stage(FifoScheduler(seats=1, capacity=0))
        lease = await driver.acquire(ticket())
        assert isinstance(lease, Lease)
        refusal = await driver.acquire(ticket())
        assert isinstance(refusal, Reject)
        assert refusal.reason is Reason.QUEUE_FULL

    run_virtual(story())


def test_a_task_cancelled_while_it_queues_leaves_the_queue() -> None:
    async def story() -> None:
        scheduler = FifoScheduler(seats=0)
        driver, recorder = stage(scheduler)
        task = asyncio.create_task(driver.acquire(ticket()))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not scheduler.waiting
        assert outcomes(recorder) == {Outcome.CANCELLED: 1}

    run_virtual(story())


@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_task_cancelled_at_the_moment_of_its_dispatch_loses_no_seat(cancel_first: bool) -> None:
    async def story() -> None:
        scheduler = FifoScheduler(seats=0)
        driver, recorder = stage(scheduler)
        task = asyncio.create_task(driver.acquire(ticket()))
        await asyncio.sleep(1)
        if cancel_first:
            task.cancel()
        driver.observe(Seats("b", 1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not scheduler.running
        assert (driver.running, driver.waiting) == (0, 0)
        assert outcomes(recorder) == {Outcome.CANCELLED: 1}

    run_virtual(story())


# drain


def test_drain_refuses_what_waits_and_lets_running_work_finish() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        driver, recorder = stage(FifoScheduler(seats=1))
        runner, queued, late = Noting(), Noting(), Noting()
        driver.submit(ticket(), runner)
        driver.submit(ticket(), queued)
        loop.call_later(40, lambda: driver.release(runner.leases[0], Release()))
        loop.call_later(20, driver.submit, ticket(), late)
        before = driver.ready
        draining = asyncio.create_task(driver.drain(120))
        await asyncio.sleep(1)
        assert (before, driver.ready) == (True, False)
        assert queued.refusals[0].reason is Reason.DRAINING
        assert await draining == 0
        assert loop.time() == pytest.approx(40)
        assert late.refusals[0].reason is Reason.DRAINING
        assert total(recorder) == 3

    run_virtual(story())


def test_drain_gives_up_after_its_time_and_says_how_much_runs() -> None:
    async def story() -> None:
        driver, _ = stage(FifoScheduler(seats=2))
        for _ in range(2):
            driver.submit(ticket(), Noting())
        assert await driver.drain(120) == 2
        assert asyncio.get_running_loop().time() == pytest.approx(120)

    run_virtual(story())


def test_drain_returns_when_everybody_who_waited_has_heard() -> None:
    async def story() -> None:
        driver, _ = stage(FifoScheduler(seats=0))
        waiters = [Noting() for _ in range(600)]
        for waiter in waiters:
            driver.submit(ticket(), waiter)
        assert await driver.drain(120) == 0
        assert [waiter.answers for waiter in waiters] == [1] * 600

    run_virtual(story())


def test_drain_of_an_idle_driver_returns_at_once() -> None:
    async def story() -> None:
        driver, _ = stage(FifoScheduler())
        assert await driver.drain(120) == 0
        assert asyncio.get_running_loop().time() == 0

    run_virtual(story())


# faults


@pytest.mark.parametrize("call", ["submit", "release", "cancel", "observe", "set_policy", "tick"])
def test_after_a_fault_of_the_scheduler_everybody_is_answered_and_nobody_is_let_in(call: str) -> None:
    async def story() -> None:
        scheduler = FifoScheduler(seats=1)
        driver, recorder = stage(scheduler)
        runner, waiters, late = Noting(), [Noting() for _ in range(600)], Noting()
        driver.submit(ticket(), runner)
        for waiter in waiters:
            driver.submit(ticket(), waiter)
        driver.submit(ticket(name="leaves"), Noting())
        scheduler.fail_on = call
        with capture_logs() as lines:
            if call == "submit":
                driver.submit(ticket(), Noting())
            elif call == "release":
                driver.release(runner.leases[0], Release())
            elif call == "cancel":
                driver.cancel("leaves")
            elif call == "observe":
                driver.observe(Seats("b", 1))
            elif call == "set_policy":
                driver.set_policy(POLICY)
            await asyncio.sleep(11)
        made = len(scheduler.calls)
        driver.submit(ticket(), late)
        assert [line["log_level"] for line in lines] == ["critical"]
        assert all(isinstance(w.refusals[0], Evict) and w.answers == 1 for w in waiters)
        assert late.refusals[0].reason is Reason.DRAINING
        assert not driver.ready
        for lease in runner.leases if driver.running else []:
            driver.release(lease, Release())
        assert len(scheduler.calls) == made
        assert (driver.running, driver.waiting) == (0, 0)
        assert total(recorder) == 603 + (call == "submit")
        assert await driver.drain(10) == 0

    run_virtual(story())


def test_a_fault_in_the_middle_of_a_row_of_actions_answers_nobody_twice() -> None:
    async def story() -> None:
        scheduler = FifoScheduler(seats=0)
        driver, recorder = stage(scheduler)

        def trip(_: Lease) -> None:
            scheduler.fail_on = "observe"
            driver.observe(Seats("b", 3))

        waiters = [Noting(on_lease=trip), Noting(), Noting()]
        for waiter in waiters:
            driver.submit(ticket(), waiter)
        with capture_logs():
            driver.observe(Seats("b", 2))
        assert [(len(waiter.leases), len(waiter.refusals)) for waiter in waiters] == [(1, 0), (1, 0), (0, 1)]
        assert total(recorder) == 1

    run_virtual(story())
