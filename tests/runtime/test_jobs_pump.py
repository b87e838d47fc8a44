"""The pump in virtual time, with a worker that deals rows from memory and a sender that obeys the story."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from runtime.fifo import FifoScheduler
from runtime.stories import stage
from tidegate.core import Reason
from tidegate.jobs.messages import Report, Result, RowOut, Rows, Want, Work
from tidegate.jobs.planning import PROBE, SMALL, WINDOW
from tidegate.jobs.pump import Pump
from tidegate.jobs.retry import RetryPolicy
from tidegate.runtime.rows import RowAnswer, RowEnd, RowRequest, RowReturned
from tidegate.stores import BatchWork, GiveBack, LeasedRow, Retry
from tidegate.telemetry.request_line import RequestLine
from tidegate.testing import run_virtual


class Worker:
    """Deals rows, takes reports back, and confirms them when ``commits`` is true."""

    def __init__(self, **batches: int) -> None:
        self.left = {name: list(range(1, count + 1)) for name, count in batches.items()}
        self.ended: Counter[tuple[str, int]] = Counter()
        self.returned: Counter[tuple[str, int]] = Counter()
        self.wants: list[Want] = []
        self.reports: list[Report] = []
        self.lines: list[RequestLine] = []
        self.commits = True
        self.pad = 0
        self.policy, self.chance = RetryPolicy(2), random.Random(1)
        self.attempts: Counter[tuple[str, int]] = Counter()
        self.pump: Pump

    def say(self, message: Want | Report) -> None:
        asyncio.get_running_loop().call_later(0.005, self.take, message)

    def take(self, message: Want | Report) -> None:
        if isinstance(message, Want):
            self.wants.append(message)
            lines = [self.left[message.batch_id].pop(0) for _ in range(message.count) if self.left[message.batch_id]]
            batch = message.batch_id
            self.pump.rows(Rows(batch, [out(batch, line, self.attempts[batch, line], self.pad) for line in lines]))
            return
        self.reports.append(message)
        if self.commits:
            for result in message.results:
                self.settle(result)
            self.pump.settled(message.id)
            self.tell()

    def settle(self, result: Result) -> None:
        place = (result.row.batch_id, result.row.line)
        if result.status is None and not result.broken:
            self.returned[place] += 1
            self.left[result.row.batch_id].append(result.row.line)
        elif isinstance(verdict := self.policy.verdict(result, 0.0, self.chance), Retry | GiveBack):
            self.attempts[place] += isinstance(verdict, Retry)
            self.left[result.row.batch_id].append(result.row.line)
        else:
            self.ended[place] += 1

    def tell(self, *gone: str) -> None:
        self.pump.work(Work([work(name, len(lines)) for name, lines in self.left.items() if name not in gone]))


def work(name: str, fresh: int) -> BatchWork:
    return BatchWork(
        batch_id=name,
        tenant="t",
        band="p2",
        endpoint="/v1/chat/completions",
        input_file_id="f",
        created_at_utc=0,
        expires_at_utc=0,
        fresh=fresh,
        due=0,
        leased=0,
        next_due_at_utc=None,
    )


def out(batch_id: str, line: int, attempts: int = 0, pad: int = 0) -> RowOut:
    row = LeasedRow(batch_id, line, line, f"r{line}", 0, 1, attempts, 0)
    return RowOut(row, "t", "p2", "/v1/chat/completions", b"%d" % line + b" " * pad)


def line_of(status: int) -> RequestLine:
    at_utc = datetime(2026, 1, 1, tzinfo=UTC)
    return RequestLine(at_utc=at_utc, level="info", request_id="x", status=status, outcome="completed")


class Placed:
    pool = "m"
    band = 2

    def __init__(self, sender: Sender, line: int) -> None:
        self._sender = sender
        self._line = line

    async def send(self, seated: Callable[[], None]) -> RowEnd:
        sender = self._sender
        sender.waiting += 1
        sender.most = max(sender.most, sender.waiting)
        try:
            refusal = sender.refuses()
            if refusal is not None:
                sender.refused += 1
                return refusal
            async with sender.seats:
                seated()
                sender.calls += 1
                await asyncio.sleep(sender.takes_s)
        finally:
            sender.waiting -= 1
        status = sender.answers(self._line)
        return RowAnswer(status=status, body=b"{}", line=line_of(status))

    def bear(self, name: str) -> bool:
        return False


class Sender:
    def __init__(self, seats: int = 4, takes_s: float = 0.1) -> None:
        self.seats = asyncio.Semaphore(seats)
        self.takes_s = takes_s
        self.waiting = self.most = self.calls = self.refused = 0
        self.refuses: Callable[[], RowEnd | None] = lambda: None
        self.answers: Callable[[int], int] = lambda _: 200

    def place(self, row: RowRequest) -> Placed:
        return Placed(self, int(row.body))


def pump_of(worker: Worker, sender: Sender) -> Pump:
    driver, _ = stage(FifoScheduler())
    worker.pump = Pump(driver, sender, worker.say, lend_limit=lambda: 8, policy=worker.policy, log=worker.lines.append)
    return worker.pump


def test_every_row_ends_once_and_few_wait_at_a_time() -> None:
    async def story() -> None:
        worker, sender = Worker(a=1000, b=500), Sender()
        pump_of(worker, sender)
        worker.tell()
        await asyncio.sleep(200)
        assert len(worker.ended) == 1500
        assert set(worker.ended.values()) == {1}
        assert sender.most <= WINDOW + PROBE
        first = [want.batch_id for want in worker.wants]
        assert first.index("b") > first.index("a")
        assert worker.pump.waiting == 0

    run_virtual(story())


def test_few_large_rows_wait_at_a_time() -> None:
    """A mebibyte each: eight of them fill the window, after the first few that show how large they are."""

    async def story() -> None:
        worker, sender = Worker(a=100), Sender(seats=1)
        worker.pad = 2**20
        pump_of(worker, sender)
        worker.tell()
        await asyncio.sleep(2.5)  # the first ones are done
        sender.most = sender.waiting
        await asyncio.sleep(20)
        assert len(worker.ended) == 100
        assert sender.most <= 10

    run_virtual(story())


def test_a_limit_is_felt_out_with_few_refusals() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        worker, sender = Worker(a=300), Sender()
        sender.refuses = lambda: (
            None if loop.time() > 100 else RowReturned(reason=Reason.TENANT_LIMIT, refused=True, retry_after_s=1.0)
        )
        pump_of(worker, sender)
        worker.tell()
        await asyncio.sleep(100)
        assert not worker.ended
        assert sender.refused <= WINDOW + 100 * SMALL
        await asyncio.sleep(100)
        assert len(worker.ended) == 300

    run_virtual(story())


def test_rows_of_a_batch_that_is_gone_are_not_sent() -> None:
    async def story() -> None:
        worker, sender = Worker(a=100), Sender(seats=2, takes_s=10.0)
        pump_of(worker, sender)
        worker.tell()
        await asyncio.sleep(1)
        assert sender.calls == 2
        worker.commits = False
        worker.tell("a")
        await asyncio.sleep(1)
        returned = sum(len(report.results) for report in worker.reports)
        assert returned == sender.most - 2  # all that waited
        await asyncio.sleep(20)
        assert sender.calls == 2

    run_virtual(story())


def test_what_was_not_confirmed_is_said_again_to_the_next_worker() -> None:
    async def story() -> None:
        worker, sender = Worker(a=8), Sender(seats=8, takes_s=1.0)
        pump = pump_of(worker, sender)
        worker.commits = False
        worker.tell()
        await asyncio.sleep(0.5)
        held, again = pump.hello()
        assert (len(held), again) == (8, [])
        await asyncio.sleep(1)
        held, again = pump.hello()
        assert sorted(held) == list(range(1, 9))
        assert sorted(result.row.line for report in again for result in report.results) == list(range(1, 9))
        for report in again:
            pump.settled(report.id)
        assert pump.hello() == ([], [])

    run_virtual(story())


def test_stopping_gives_back_what_waits_and_waits_for_what_runs() -> None:
    async def story() -> None:
        worker, sender = Worker(a=100), Sender(seats=2, takes_s=5.0)
        pump = pump_of(worker, sender)
        worker.tell()
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await pump.stop()
        await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - began < 5.1
        assert len(worker.ended) == 2
        assert sum(worker.returned.values()) >= 60
        calls = sender.calls
        await asyncio.sleep(100)
        assert sender.calls == calls

    run_virtual(story())


def test_rows_that_were_submitted_this_moment_go_back_with_the_others() -> None:
    """Their tasks have not taken a step yet: a batch ends, or the gateway, between submitting and the first step."""

    async def story(*, stops: bool) -> None:
        worker, sender = Worker(a=100), Sender(takes_s=10.0)
        loop, place = asyncio.get_running_loop(), sender.place
        pump = pump_of(worker, sender)
        ended: list[asyncio.Task[None]] = []

        async def end() -> None:
            if stops:
                await pump.stop()
            else:
                worker.tell("a")

        def place_and_end(row: RowRequest) -> Placed:
            sender.place = place  # type: ignore[method-assign]
            ended.append(loop.create_task(end()))  # its first step comes before that of the row's task
            return place(row)

        sender.place = place_and_end  # type: ignore[method-assign]
        worker.commits = False
        worker.tell()
        await asyncio.sleep(1)
        assert sender.calls == 0
        assert all(task.done() for task in ended)
        returned = [result.row.line for report in worker.reports for result in report.results]
        assert sorted(returned) == list(range(1, PROBE + 1))
        assert pump.waiting == 0

    run_virtual(story(stops=False))
    run_virtual(story(stops=True))


def test_a_row_that_is_tried_again_has_no_line_until_its_end() -> None:
    """Two attempts: of the first failure nothing is said, of the second and of answers one line each."""

    async def story() -> None:
        worker, sender = Worker(a=3), Sender(takes_s=0.1)
        ends = {1: [500, 500], 2: [500, 200], 3: [429, 200]}
        sender.answers = lambda line: ends[line].pop(0)
        pump_of(worker, sender)
        worker.tell()
        await asyncio.sleep(10)
        assert sorted((line.row, line.status) for line in worker.lines) == [("a.1", 500), ("a.2", 200), ("a.3", 200)]

    run_virtual(story())
