"""Keeps a small window of rows in the scheduler, sends them, and reports how they ended.

Lives in the process that serves clients, so it does little at a time: it reads no file, and a few rows in each turn of
the loop. A row that is here is held until the worker says that its end is on disk; if the worker dies, its successor
is told again.

Rows are *waiting* from their arrival here until they have a seat. Those of a batch that has no work any more
(cancelled, expired) go back unsent; those that have a seat end as they end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from random import Random
from typing import Final

import structlog

from tidegate.core import Reason
from tidegate.jobs.held import Held, result_of
from tidegate.jobs.lending import Lending
from tidegate.jobs.messages import Report, Result, Rows, Want, Work
from tidegate.jobs.rates import Rate
from tidegate.jobs.reports import Reports
from tidegate.jobs.retry import RetryPolicy
from tidegate.jobs.room import Room
from tidegate.runtime import Driver
from tidegate.runtime.rows import PlacedRow, RowAnswer, RowBroken, RowEnd, RowRequest, RowReturned, RowSender
from tidegate.stores import BatchWork
from tidegate.telemetry.request_line import RequestLine

A_TURN: Final = 4
"""Rows that are read and submitted in one turn of the loop (about 0.1 ms each)."""
REST_S: Final = 1.0
MOST_REST_S: Final = 60.0
MOST_REMEMBERED: Final = 10_000

log = structlog.get_logger("tidegate.jobs")
Say = Callable[[Want | Report], None]


class Pump:
    """See the module docstring.

    Args:
        driver: the scheduler.
        sender: sends rows.
        say: tells the worker.
        lend_limit: most waiting rows that one who waits lifts at a time.
        policy: knows which ends are final.
        log: takes the line of a row that has ended for good.
    """

    def __init__(
        self,
        driver: Driver,
        sender: RowSender,
        say: Say,
        *,
        lend_limit: Callable[[], int],
        policy: RetryPolicy,
        log: Callable[[RequestLine], None],
    ) -> None:
        self._driver = driver
        self._sender = sender
        self._say = say
        self._policy = policy
        self._log = log
        self.lending = Lending(
            driver, limit=lend_limit, rows_of=lambda batch_id: self._held.get(batch_id, {}), changed=self._ask_soon
        )
        self._work: dict[str, BatchWork] = {}
        self._left: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._held: dict[str, dict[int, Held]] = {}
        self._room = Room()
        self._new: deque[Held] = deque()
        self._feeding = False
        self._reports = Reports(say)
        self._wake: asyncio.TimerHandle | None = None
        self._rates: dict[str, Rate] = {}
        self._arrived: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._chance = Random()
        self._stopping = False

    # What the worker says.

    def hello(self) -> tuple[list[int], list[Report]]:
        """A worker came up: what it has to know again. What was asked of the last one is forgotten."""
        self._asked.clear()
        self._left.clear()
        held = [each.out.row.token for rows in self._held.values() for each in rows.values()]
        unsettled, reports = self._reports.again()
        return held + unsettled, reports

    def work(self, message: Work) -> None:
        """Batches that have rows to answer, as of now."""
        self._work = {batch.batch_id: batch for batch in message.batches}
        self._left = {batch.batch_id: batch.fresh + batch.due for batch in message.batches}
        for batch in message.batches:
            self._room.know(batch)
            self._rates.setdefault(batch.batch_id, Rate(self._driver.now()))
        for batch_id in [known for known in self._held if known not in self._work]:
            self._drop(batch_id)
        for batch_id in [known for known in self._room.lanes if known not in self._work and known not in self._held]:
            self._room.forget(batch_id)
            self._rates.pop(batch_id, None)
        self._ask()

    def rows(self, message: Rows) -> None:
        """Rows that were asked for."""
        batch_id = message.batch_id
        self._asked.pop(batch_id, None)
        if not message.rows:
            self._left[batch_id] = 0
        new = [Held(out, self._room.lanes.setdefault(batch_id, (out.tenant, batch_id))) for out in message.rows]
        self._room.weigh(batch_id, new)
        for held in new:
            self._held.setdefault(batch_id, {})[held.out.row.line] = held
            self._room.enter(held)
        self._new.extend(new)
        if self._stopping:
            self._drop(batch_id)
        self._feed_soon()
        self._ask()

    def settled(self, report_id: int) -> None:
        """A report is on disk."""
        self._reports.settled(report_id)

    # What others ask.

    def expected_s(self, batch_id: str, rows: int) -> float | None:
        """Seconds until ``rows`` more rows of a batch have ended, at its present rate; ``None``: unknown."""
        rate = self._rates.get(batch_id)
        return None if rate is None else rate.left_s(rows, self._driver.now())

    async def stop(self) -> None:
        """Take no more rows, give back those that wait, and wait until those that run have ended and are reported."""
        self._stopping = True
        for batch_id in tuple(self._held):
            self._drop(batch_id)
        while tasks := [h.task for rows in self._held.values() for h in rows.values() if h.task is not None]:
            await asyncio.wait(tasks)
        self._reports.flush()
        if self._wake is not None:
            self._wake.cancel()

    def cancel(self) -> None:
        """End the rows that still run; they go back."""
        for rows in self._held.values():
            for held in rows.values():
                if held.task is not None:
                    held.task.cancel()

    @property
    def unsettled(self) -> int:
        """Reports that the worker has not confirmed."""
        return len(self._reports)

    def waiting_by_band(self) -> Counter[int]:
        """Rows that wait in the scheduler, by the index of their band; there are at most as many as fit the windows."""
        rows = (held for batch in self._held.values() for held in batch.values())
        return Counter(held.band for held in rows if held.waiting and held.task is not None)

    @property
    def waiting(self) -> int:
        """Places of the rows without a seat."""
        return self._room.places

    # The window.

    def _ask(self) -> None:
        """Ask for rows where there is room."""
        if self._stopping:
            return
        now = self._driver.now()
        wanted = self._room.plan(
            list(self._work.values()), asked=self._asked, left=self._left, awaited=self._awaited(), now=now
        )
        for batch_id, count in wanted:
            self._asked[batch_id] = count
            self._left[batch_id] -= count
            self._say(Want(batch_id, count))
        self._wake_up(now)

    def _awaited(self) -> dict[str, int]:
        """Rows of batches that somebody waits for, as far as they do not wait for a seat yet."""
        wanted = self.lending.wanted()
        for batch_id in wanted:
            rows = self._held.get(batch_id, {}).values()
            wanted[batch_id] = max(0, wanted[batch_id] - sum(held.waiting for held in rows))
        return wanted

    def _wake_up(self, now: float) -> None:
        """Look again when the first lane that rests may go on."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        rests_until = self._room.rests_until(now)
        if rests_until is not None:
            self._wake = asyncio.get_running_loop().call_later(rests_until - now, self._ask)

    def _feed_soon(self) -> None:
        if self._new and not self._feeding:
            self._feeding = True
            asyncio.get_running_loop().call_soon(self._feed)

    def _feed(self) -> None:
        """Submit a few rows; the rest in the next turn."""
        self._feeding = False
        batches: set[str] = set()
        for _ in range(min(A_TURN, len(self._new))):
            held = self._new.popleft()
            if held.waiting:
                self._submit(held)
                batches.add(held.out.row.batch_id)
        self._feed_soon()
        self.lending.arrived(batches)

    def _submit(self, held: Held) -> None:
        out = held.out
        row = out.row
        request = RowRequest(
            tenant=out.tenant,
            band=out.band,
            path=out.endpoint,
            body=out.body,
            arrived=self._arrived.pop((row.batch_id, row.line), None),
        )
        placed = self._sender.place(request)
        if isinstance(placed, RowAnswer | RowReturned):
            self._end(held, placed)
            return
        held.placed, held.band = placed, placed.band
        self._room.move(held, (out.tenant, placed.pool))
        began = self._driver.now() if request.arrived is None else request.arrived
        held.task = asyncio.get_running_loop().create_task(self._run(held, placed, began))
        held.task.add_done_callback(lambda task: self._run_over(held, task))

    async def _run(self, held: Held, placed: PlacedRow, arrived: float) -> None:
        try:
            end = await placed.send(lambda: self._seated(held))
        except asyncio.CancelledError:
            end = RowReturned(reason=Reason.CANCELLED)
        except Exception as error:  # a task's top: one row must not end the pump, and is not lost either
            log.exception("jobs.row_fault", batch=held.out.row.batch_id, line=held.out.row.line)
            end = RowBroken(reason=Reason.UPSTREAM_ERROR, detail=f"the gateway failed: {type(error).__name__}")
        if isinstance(end, RowReturned):
            row = held.out.row
            self._arrived[row.batch_id, row.line] = arrived
            while len(self._arrived) > MOST_REMEMBERED:
                self._arrived.popitem(last=False)
        self._end(held, end)

    def _run_over(self, held: Held, task: asyncio.Task[None]) -> None:
        """A task that was cancelled before its first step has run nothing of ``_run``: its row goes back here."""
        if task.cancelled():
            self._end(held, RowReturned(reason=Reason.CANCELLED))

    def _seated(self, held: Held) -> None:
        if held.waiting:
            held.waiting = False
            self._room.leave(held)
            self._room.seated(held.lane)
            self.lending.left(held)
            self._ask_soon()

    # Ends.

    def _end(self, held: Held, end: RowEnd) -> None:
        row = held.out.row
        rows = self._held.get(row.batch_id, {})
        if rows.pop(row.line, None) is None:
            return
        if not rows:
            self._held.pop(row.batch_id, None)
        if held.waiting:
            held.waiting = False
            self._room.leave(held)
        self.lending.left(held)
        if isinstance(end, RowReturned):
            end_s = self._rest(held, end)
            result = Result(row=row, error=f"{end.reason}: {end.detail}"[:500], retry_after_s=end_s)
        else:
            if row.batch_id in self._rates:
                self._rates[row.batch_id].ended(self._driver.now())
            result = result_of(held, end)
            if end.line is not None and self._policy.is_final(result):
                end.line.row = held.name
                self._log(end.line)
        self._reports.add(result)
        self._ask_soon()

    def _rest(self, held: Held, end: RowReturned) -> float | None:
        """Let a lane rest whose row the scheduler refused."""
        if not end.refused or self._stopping:
            return end.retry_after_s
        wait_s = min(max(end.retry_after_s or 0.0, REST_S), MOST_REST_S) * (1 + self._chance.random() / 4)
        self._room.refused(held.lane, self._driver.now(), wait_s)
        return wait_s

    _asking = False

    def _ask_soon(self) -> None:
        """Ask once for all that happens in this turn of the loop."""
        if not self._asking:
            self._asking = True
            asyncio.get_running_loop().call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._asking = False
        self._ask()

    def _drop(self, batch_id: str) -> None:
        """Give back the rows of a batch that have no seat."""
        for held in tuple(self._held.get(batch_id, {}).values()):
            if not held.waiting:
                continue
            if held.task is None:
                self._end(held, RowReturned(reason=Reason.CANCELLED))
            else:
                held.task.cancel()
