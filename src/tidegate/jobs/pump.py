"""Keeps a small window of rows in the scheduler, sends them, and reports how they ended.

Lives in the process that serves clients, so it does little at a time: it reads no file, and a few rows in each turn of
the loop. A row that is here is held until the worker says that its end is on disk; if the worker dies, its successor
is told again.

Rows are *waiting* from their arrival here until they have a seat. Those of a batch that has no work any more
(cancelled, expired) go back unsent; those that have a seat end as they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

import structlog

from tidegate.core import Reason, Waiter
from tidegate.jobs.held import Caller, Held, result_of
from tidegate.jobs.messages import Report, Result, Rows, Want, Work
from tidegate.jobs.planning import Lane, Window, plan
from tidegate.jobs.rates import Rate
from tidegate.runtime import Driver
from tidegate.runtime.rows import PlacedRow, RowAnswer, RowBroken, RowEnd, RowRequest, RowReturned, RowSender
from tidegate.stores import BatchWork

A_TURN: Final = 4
"""Rows that are read and submitted in one turn of the loop (about 0.1 ms each)."""
REPORT_S: Final = 0.002
"""How long ends are collected: a commit costs the same for one as for hundreds."""
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
        lend_limit: most waiting rows that one caller lifts at a time.
    """

    def __init__(self, driver: Driver, sender: RowSender, say: Say, *, lend_limit: Callable[[], int]) -> None:
        self._driver = driver
        self._sender = sender
        self._say = say
        self._lend_limit = lend_limit
        self._work: dict[str, BatchWork] = {}
        self._left: dict[str, int] = {}
        self._lanes: dict[str, Lane] = {}
        self._asked: Counter[str] = Counter()
        self._held: dict[str, dict[int, Held]] = {}
        self._waiting: Counter[Lane] = Counter()
        self._windows: dict[Lane, Window] = {}
        self._new: deque[Held] = deque()
        self._feeding = False
        self._results: list[Result] = []
        self._reports: dict[int, Report] = {}
        self._ids = itertools.count(1)
        self._flush: asyncio.TimerHandle | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._rates: dict[str, Rate] = {}
        self._callers: dict[str, Caller] = {}
        self._arrived: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._chance = Random()
        self._stopping = False

    # What the worker says.

    def hello(self) -> tuple[list[int], list[Report]]:
        """A worker came up: what it has to know again. What was asked of the last one is forgotten."""
        self._asked.clear()
        self._left.clear()
        held = [each.out.row.token for rows in self._held.values() for each in rows.values()]
        unsettled = [result.row.token for report in self._reports.values() for result in report.results]
        return held + unsettled + [r.row.token for r in self._results], list(self._reports.values())

    def work(self, message: Work) -> None:
        """Batches that have rows to answer, as of now."""
        self._work = {batch.batch_id: batch for batch in message.batches}
        self._left = {batch.batch_id: batch.fresh + batch.due for batch in message.batches}
        for batch in message.batches:
            self._lanes.setdefault(batch.batch_id, (batch.tenant, batch.batch_id))
            self._rates.setdefault(batch.batch_id, Rate(self._driver.now()))
        for batch_id in [known for known in self._held if known not in self._work]:
            self._drop(batch_id)
        for batch_id in [known for known in self._lanes if known not in self._work and known not in self._held]:
            self._lanes.pop(batch_id)
            self._rates.pop(batch_id, None)
        self._ask()

    def rows(self, message: Rows) -> None:
        """Rows that were asked for."""
        batch_id = message.batch_id
        self._asked.pop(batch_id, None)
        lane = self._lanes.get(batch_id)
        if not message.rows:
            self._left[batch_id] = 0
        for out in message.rows:
            lane = self._lanes.setdefault(batch_id, (out.tenant, batch_id))
            held = Held(out, lane)
            self._held.setdefault(batch_id, {})[out.row.line] = held
            self._waiting[lane] += 1
            self._new.append(held)
        if self._stopping:
            self._drop(batch_id)
        self._feed_soon()
        self._ask()

    def settled(self, report_id: int) -> None:
        """A report is on disk."""
        self._reports.pop(report_id, None)

    # What others ask.

    def expected_s(self, batch_id: str, rows: int) -> float | None:
        """Seconds until ``rows`` more rows of a batch have ended, at its present rate; ``None``: unknown."""
        rate = self._rates.get(batch_id)
        return None if rate is None else rate.left_s(rows, self._driver.now())

    @contextlib.contextmanager
    def waited_for(self, caller: Caller) -> Iterator[None]:
        """Lend a caller's band to rows of the batch that it waits for."""
        self._callers[caller.id] = caller
        try:
            self._lend(caller.batch_id)
            yield
        finally:
            del self._callers[caller.id]
            for held in self._held.get(caller.batch_id, {}).values():
                if caller.id in held.lent_to:
                    held.lent_to.remove(caller.id)
                    self._tell(caller, held, waiting=False)

    async def stop(self) -> None:
        """Take no more rows, give back those that wait, and wait until those that run have ended and are reported."""
        self._stopping = True
        for batch_id in tuple(self._held):
            self._drop(batch_id)
        while tasks := [h.task for rows in self._held.values() for h in rows.values() if h.task is not None]:
            await asyncio.wait(tasks)
        self._report()
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

    @property
    def waiting(self) -> int:
        """Rows without a seat."""
        return sum(self._waiting.values())

    # The window.

    def _ask(self) -> None:
        """Ask for rows where there is room."""
        if self._stopping:
            return
        waiting = self._waiting.copy()
        for batch_id, count in self._asked.items():
            if batch_id in self._lanes:
                waiting[self._lanes[batch_id]] += count
        now = self._driver.now()
        # One question for each batch at a time, so that an answer always finds its question.
        left = {key: 0 if key in self._asked else value for key, value in self._left.items()}
        wanted = plan(
            self._work.values(), lanes=self._lanes, waiting=waiting, windows=self._windows, left=left, now=now
        )
        for batch_id, count in wanted:
            self._asked[batch_id] = count
            self._left[batch_id] -= count
            self._say(Want(batch_id, count))
        self._wake_up(now)

    def _wake_up(self, now: float) -> None:
        """Look again when the first lane that rests may go on."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        resting = [window.rests_until for window in self._windows.values() if window.rests_until > now]
        if resting:
            self._wake = asyncio.get_running_loop().call_later(min(resting) - now, self._ask)

    def _feed_soon(self) -> None:
        if self._new and not self._feeding:
            self._feeding = True
            asyncio.get_running_loop().call_soon(self._feed)

    def _feed(self) -> None:
        """Submit a few rows; the rest in the next turn."""
        self._feeding = False
        batches = set()
        for _ in range(min(A_TURN, len(self._new))):
            held = self._new.popleft()
            if held.waiting:
                self._submit(held)
                batches.add(held.out.row.batch_id)
        self._feed_soon()
        if self._callers:
            asyncio.get_running_loop().call_soon(self._lend_all, tuple(batches))

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
        self._move(held, (out.tenant, placed.pool))
        began = self._driver.now() if request.arrived is None else request.arrived
        held.task = asyncio.get_running_loop().create_task(self._run(held, placed, began))

    def _move(self, held: Held, lane: Lane) -> None:
        """Now that the pool is known."""
        self._lanes[held.out.row.batch_id] = lane
        if held.lane != lane:
            self._less(held.lane)
            held.lane = lane
            self._waiting[lane] += 1

    def _less(self, lane: Lane) -> None:
        self._waiting[lane] -= 1
        if self._waiting[lane] <= 0:
            del self._waiting[lane]

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

    def _seated(self, held: Held) -> None:
        if held.waiting:
            held.waiting = False
            self._less(held.lane)
            window = self._windows.get(held.lane)
            if window is not None:
                window.seated()
                if window == Window(rests_until=window.rests_until):
                    del self._windows[held.lane]
            if held.lent_to:
                self._lent_no_more(held)
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
            self._less(held.lane)
        if held.lent_to:
            self._lent_no_more(held)
        if isinstance(end, RowReturned):
            end_s = self._rest(held, end)
            result = Result(row=row, error=f"{end.reason}: {end.detail}"[:500], retry_after_s=end_s)
        else:
            if row.batch_id in self._rates:
                self._rates[row.batch_id].ended(self._driver.now())
            result = result_of(held, end)
        self._results.append(result)
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(REPORT_S, self._report)
        self._ask_soon()

    def _rest(self, held: Held, end: RowReturned) -> float | None:
        """Let a lane rest whose row the scheduler refused."""
        if not end.refused or self._stopping:
            return end.retry_after_s
        wait_s = min(max(end.retry_after_s or 0.0, REST_S), MOST_REST_S) * (1 + self._chance.random() / 4)
        self._windows.setdefault(held.lane, Window()).refused(self._driver.now(), wait_s)
        return wait_s

    def _report(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._results:
            report = Report(next(self._ids), self._results)
            self._results = []
            self._reports[report.id] = report
            self._say(report)

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

    # Lending.

    def _lend_all(self, batches: tuple[str, ...]) -> None:
        for batch_id in batches:
            self._lend(batch_id)

    def _lend(self, batch_id: str) -> None:
        """Let each caller lift as many waiting rows as it may, the first ones."""
        for caller in [each for each in self._callers.values() if each.batch_id == batch_id]:
            rows = self._held.get(batch_id, {})
            room = self._lend_limit() - sum(caller.id in held.lent_to for held in rows.values())
            for held in tuple(rows.values()):
                if room <= 0:
                    break
                if held.waiting and held.placed is not None and caller.band < held.band:
                    room -= self._lift(caller, held)

    def _lift(self, caller: Caller, held: Held) -> bool:
        if caller.id in held.lent_to or held.placed is None:
            return False
        held.lent_to.append(caller.id)
        if not held.placed.bear(held.name):
            held.lent_to.remove(caller.id)
            return False
        if held.waiting:
            self._tell(caller, held, waiting=True)
        return True

    def _tell(self, caller: Caller, held: Held, *, waiting: bool) -> None:
        full = f"{caller.tenant}/{held.name}"
        self._driver.observe(
            Waiter(f"{caller.id}.{held.out.row.line}", caller.tenant, caller.band, full, waiting=waiting)
        )

    def _lent_no_more(self, held: Held) -> None:
        """A lifted row has its seat: its callers lift the next ones."""
        callers = [self._callers[each] for each in held.lent_to if each in self._callers]
        held.lent_to.clear()
        for caller in callers:
            self._tell(caller, held, waiting=False)
        asyncio.get_running_loop().call_soon(self._lend, held.out.row.batch_id)
