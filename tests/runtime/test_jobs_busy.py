"""An engine that answers 429 for a whole minute, in virtual time: the real store, retries, pump and scheduler."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.stories import stage
from tidegate.core import (
    BackendSpec,
    Band,
    Lease,
    Paused,
    Policy,
    PoolSpec,
    Reason,
    Release,
    Requeue,
    Scheduler,
    Ticket,
)
from tidegate.jobs.messages import Report, RowOut, Rows, Want, Work
from tidegate.jobs.pump import Pump
from tidegate.jobs.retry import RetryPolicy
from tidegate.runtime import Driver
from tidegate.runtime.rows import RowAnswer, RowEnd, RowRequest, RowReturned
from tidegate.stores import BatchState, BatchWork, JobStore, open_job_store
from tidegate.testing import run_virtual
from tidegate.testing.jobs import NOW, OWNER, started

BUSY_S = 60.0
PAUSE_S = 1.0
SEATS = 8
COUNT = 40


def scheduler() -> Scheduler:
    bands = (Band("p0", 100, 0.05), Band("p1", 20, 0.02), Band("p2", 1, 0.005, ttl_s=86_400.0))
    return Scheduler(Policy(bands, pools=(PoolSpec("m", (BackendSpec("b", SEATS),)),)))


class Worker:
    """What the worker process does between socket and store, on the clock of the loop."""

    def __init__(self, store: JobStore) -> None:
        self.store = store
        self.policy, self.chance = RetryPolicy(max_attempts=1), random.Random(1)
        self.work: dict[str, BatchWork] = {}
        self.pump: Pump

    def utc(self) -> float:
        return NOW + asyncio.get_running_loop().time()

    def say(self, message: Want | Report) -> None:
        asyncio.get_running_loop().call_later(0.002, self._take, message)

    async def look(self) -> None:
        while True:
            found = self.store.work(self.utc())
            self.work = {batch.batch_id: batch for batch in found}
            self.pump.work(Work(found))
            await asyncio.sleep(0.25)

    def _take(self, message: Want | Report) -> None:
        now_utc = self.utc()
        if isinstance(message, Want):
            batch = self.work[message.batch_id]
            rows = self.store.lease(
                batch.batch_id, message.count, owner=OWNER, now_utc=now_utc, until_utc=now_utc + 3600
            )
            out = [RowOut(row, batch.tenant, "p2", batch.endpoint, b"%d" % row.line) for row in rows]
            self.pump.rows(Rows(batch.batch_id, out))
        else:
            verdicts = [self.policy.verdict(result, now_utc, self.chance) for result in message.results]
            self.store.settle(verdicts, now_utc=now_utc)
            self.pump.settled(message.id)


class Sender:
    """Sends as the gateway does: through the scheduler, and a 429 pauses the backend and returns the row."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.tried: dict[int, list[float]] = defaultdict(list)

    def place(self, row: RowRequest) -> Placed:
        return Placed(self, int(row.body), row.arrived)


class Placed:
    pool = "m"
    band = 2

    def __init__(self, sender: Sender, line: int, arrived: float | None) -> None:
        self._sender = sender
        self._line = line
        self._arrived = arrived

    async def send(self, seated: Callable[[], None]) -> RowEnd:
        sender, now = self._sender, asyncio.get_running_loop().time()
        name = f"{self._line}-{len(sender.tried[self._line])}"
        ticket = Ticket(name, "m", 2, "t", arrived=self._arrived, patient=True)
        lease = await sender.driver.acquire(ticket)
        assert isinstance(lease, Lease), lease
        seated()
        await asyncio.sleep(0.02)
        now = asyncio.get_running_loop().time()
        sender.tried[self._line].append(now)
        if now >= BUSY_S:
            sender.driver.release(lease, Release())
            return RowAnswer(status=200, body=b"{}")
        sender.driver.observe(Paused("b", sender.driver.now() + PAUSE_S))
        sender.driver.requeue(lease, Requeue(), Nobody())
        sender.driver.cancel(ticket.id)
        return RowReturned(reason=Reason.UPSTREAM_BUSY, retry_after_s=PAUSE_S)

    def bear(self, name: str) -> bool:
        return False


class Nobody:
    """Waits for a ticket that is taken back at once."""

    def dispatched(self, lease: Lease) -> None:
        raise AssertionError("a paused backend dispatches nothing")

    def refused(self, action: object) -> None:
        raise AssertionError(action)


@pytest.mark.slow
def test_a_minute_of_429_kills_no_row_and_tries_each_a_few_times(tmp_path: Path) -> None:
    async def story() -> None:
        store = open_job_store(f"sqlite:///{tmp_path}/jobs.db")
        started(store, COUNT)
        driver, _ = stage(scheduler())
        worker, sender = Worker(store), Sender(driver)
        worker.pump = Pump(driver, sender, worker.say, lend_limit=lambda: 8, policy=worker.policy, log=lambda _: None)
        looking = asyncio.create_task(worker.look())
        await asyncio.sleep(50)
        tries = [sum(at <= 50 for at in times) for times in sender.tried.values()]
        assert len(tries) == COUNT
        assert max(tries) <= 10
        batch = store.get_batch("batch-1", tenant=None)
        assert (batch.completed, batch.failed, batch.dead) == (0, 0, 0)
        await asyncio.sleep(200)
        batch = store.get_batch("batch-1", tenant=None)
        assert (batch.state, batch.completed, batch.failed, batch.dead) == (BatchState.FINALIZING, COUNT, 0, 0)
        assert max(len(times) for times in sender.tried.values()) <= 12
        looking.cancel()
        store.close()

    run_virtual(story())
