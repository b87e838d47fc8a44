"""Random commands, crashes between them included, against a model of plain dictionaries.

A crash is a new handle on the same data while the old one is left as it is: what is not committed is lost, and what was
leased is still under lease until its owner is given up. The model knows only what the store promises.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tidegate.stores import (
    Answer,
    BatchState,
    Bury,
    Conflict,
    Finish,
    GiveBack,
    JobStore,
    LeasedRow,
    NotFound,
    RecordKind,
    Retry,
    RowState,
    open_job_store,
)
from tidegate.testing.jobs import LEASE_S, NOW, assembling, ended, started

_RECORD = {RowState.COMPLETED: RecordKind.COMPLETED, RowState.FAILED: RecordKind.FAILED, RowState.DEAD: RecordKind.DEAD}
_UNANSWERED = {BatchState.CANCELLED: RecordKind.CANCELLED, BatchState.EXPIRED: RecordKind.EXPIRED}


@dataclasses.dataclass
class Row:
    state: RowState = RowState.READY
    token: int = 0
    until: float = 0.0
    due: float = 0.0
    attempts: int = 0
    returns: int = 0
    answer: Answer = dataclasses.field(default_factory=Answer)


@dataclasses.dataclass
class Model:
    """A batch as it should be."""

    rows: dict[int, Row]
    expires: float
    state: BatchState = BatchState.IN_PROGRESS
    ending: BatchState = BatchState.COMPLETED

    def count(self, *states: RowState) -> int:
        return sum(row.state in states for row in self.rows.values())

    @property
    def running(self) -> bool:
        return self.state is BatchState.IN_PROGRESS

    def settle_down(self) -> None:
        """A batch in progress ends when all rows have a record."""
        if self.running and not self.count(RowState.READY, RowState.LEASED):
            self.state = BatchState.FINALIZING

    def counts(self) -> tuple[int, int, int]:
        """Completed, failed, dead: letters are failures once the batch is no longer in progress."""
        dead = self.count(RowState.DEAD)
        failed = self.count(RowState.FAILED)
        return self.count(RowState.COMPLETED), failed + (0 if self.running else dead), dead if self.running else 0


class Jobs(RuleBasedStateMachine):
    """Commands on a store, and on the model."""

    where: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.url = type(self).where()
        self.handles: list[JobStore] = [open_job_store(self.url)]
        self.now = NOW
        self.owner = 0
        self.batches: dict[str, Model] = {}
        self.ended: dict[str, Model] = {}
        self.leases: list[LeasedRow] = []
        self.numbers = itertools.count(1)
        self.high: Counter[tuple[str, str]] = Counter()

    @property
    def store(self) -> JobStore:
        return self.handles[-1]

    @rule(rows=st.integers(0, 7), window=st.sampled_from([50.0, 1e6]))
    def start(self, rows: int, window: float) -> None:
        name = f"b{next(self.numbers)}"
        started(self.store, rows, name, window_s=self.now - NOW + window)
        self.batches[name] = Model({line: Row() for line in range(1, rows + 1)}, self.now + window)
        self.batches[name].settle_down()

    def _some_batch(self, choice: int) -> str:
        return sorted(self.batches)[choice % len(self.batches)]

    @precondition(lambda self: self.batches)
    @rule(choice=st.integers(0, 99), count=st.integers(1, 4))
    def lease(self, choice: int, count: int) -> None:
        name = self._some_batch(choice)
        model = self.batches[name]
        free = {n for n, row in model.rows.items() if row.state is RowState.READY and row.due <= self.now}
        until = self.now + LEASE_S
        rows = self.store.lease(name, count, owner=f"o{self.owner}", now_utc=self.now, until_utc=until)
        assert len(rows) == (min(count, len(free)) if model.running else 0)
        for leased in rows:
            row = model.rows[leased.line]
            assert leased.line in free
            assert (leased.attempts, leased.returns) == (row.attempts, row.returns)
            assert leased.custom_id == f"request-{leased.line}"
            row.state, row.token, row.until = RowState.LEASED, leased.token, until
        self.leases += rows

    @precondition(lambda self: self.leases)
    @rule(choices=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 4)), min_size=1, max_size=5))
    def settle(self, choices: list[tuple[int, int]]) -> None:
        """Also rows whose lease is lost, and the same row more than once."""
        verdicts = [self._verdict(self.leases[index % len(self.leases)], kind) for index, kind in choices]
        outcome = self.store.settle(verdicts, now_utc=self.now)
        stale = [verdict.row for verdict in verdicts if not self._decide(verdict)]
        assert list(outcome.stale) == stale
        assert outcome.accepted == len(verdicts) - len(stale)
        for model in self.batches.values():
            model.settle_down()

    def _verdict(self, row: LeasedRow, kind: int) -> Any:
        answer = Answer(status=200, body=b"%d" % next(self.numbers))
        later = self.now + 10
        return [
            Finish(row, RowState.COMPLETED, answer),
            Finish(row, RowState.FAILED, answer),
            Bury(row, answer),
            GiveBack(row, later),
            Retry(row, later),
        ][kind]

    def _decide(self, verdict: Any) -> bool:
        model = self.batches.get(verdict.row.batch_id)
        row = model.rows[verdict.row.line] if model else Row()
        if row.state is not RowState.LEASED or row.token != verdict.row.token:
            return False
        match verdict:
            case Finish():
                row.state, row.answer = verdict.state, verdict.answer
            case Bury():
                row.state, row.answer = RowState.DEAD, verdict.answer
            case GiveBack():
                row.state, row.due, row.returns = RowState.READY, verdict.not_before_utc, row.returns + 1
            case Retry():
                row.state, row.due, row.attempts = RowState.READY, verdict.not_before_utc, row.attempts + 1
        return True

    @rule(seconds=st.sampled_from([1.0, 10.0, 30.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def reap(self) -> None:
        lost = [
            row
            for model in self.batches.values()
            for row in model.rows.values()
            if row.state is RowState.LEASED and row.until <= self.now
        ]
        assert self.store.reap(self.now) == len(lost)
        self._give_up(lost)

    def _give_up(self, lost: list[Row]) -> None:
        for row in lost:
            row.state, row.due, row.returns = RowState.READY, self.now, row.returns + 1

    @precondition(lambda self: self.leases)
    @rule(choice=st.integers(0, 99))
    def renew(self, choice: int) -> None:
        token = self.leases[choice % len(self.leases)].token
        until = self.now + LEASE_S
        mine = [
            row
            for model in self.batches.values()
            for row in model.rows.values()
            if row.state is RowState.LEASED and row.token == token
        ]
        assert self.store.renew([token], until_utc=until) == ({token} if mine else set())
        for row in mine:
            row.until = max(row.until, until)

    @rule(known=st.booleans())
    def crash(self, known: bool) -> None:
        """A new process; it may or may not know that the one before is gone."""
        self.handles.append(open_job_store(self.url))
        lost = [row for model in self.batches.values() for row in model.rows.values() if row.state is RowState.LEASED]
        if known:
            held = [self.store.release_owner(owner, now_utc=self.now) for owner in self.store.owners()]
            assert sum(held) == len(lost)
            self._give_up(lost)
        self.owner += 1

    @precondition(lambda self: self.batches)
    @rule(choice=st.integers(0, 99))
    def cancel(self, choice: int) -> None:
        name = self._some_batch(choice)
        self.store.cancel_batch(name, tenant=None, now_utc=self.now)
        if self.batches[name].running:
            self.batches[name].state, self.batches[name].ending = BatchState.CANCELLING, BatchState.CANCELLED

    @rule()
    def expire(self) -> None:
        late = {name for name, model in self.batches.items() if model.running and model.expires <= self.now}
        assert {batch.id for batch in self.store.expire_batches(self.now)} == late
        for name in late:
            self.batches[name].state, self.batches[name].ending = BatchState.FINALIZING, BatchState.EXPIRED

    @precondition(lambda self: self.batches or self.ended)
    @rule(choice=st.integers(0, 99), again=st.booleans(), line=st.integers(1, 7))
    def letter(self, choice: int, again: bool, line: int) -> None:
        everything = {**self.batches, **self.ended}
        name = sorted(everything)[choice % len(everything)]
        model = everything[name]
        ending = not model.running and name in self.batches
        row = model.rows.get(line)
        if row is None or row.state is not RowState.DEAD or ending:
            with pytest.raises(Conflict) as raised:
                self._act_on_letter(name, line, again)
            assert raised.type is (Conflict if ending else NotFound)
            return
        target = self._act_on_letter(name, line, again)
        if again and model.running:
            model.rows[line] = Row(due=self.now)
        else:
            row.state = RowState.FAILED
        if target not in (None, name):
            self.batches[target] = Model({line: Row()}, self.now + 1e6)

    def _act_on_letter(self, name: str, line: int, again: bool) -> Any:
        if not again:
            assert self.store.discard(name, [line]) == 1
            return None
        new = f"r{next(self.numbers)}"
        return self.store.redrive(name, [line], now_utc=self.now, new_batch_id=new, window_s=1e6).batch_id

    @rule(crash=st.booleans())
    def assemble(self, crash: bool) -> None:
        ready = [name for name, model in self.batches.items() if not model.running and not model.count(RowState.LEASED)]
        if not ready:
            assert assembling(self.store, now=self.now) is None
            return
        if crash:
            # Its claim has run out already.
            lost = assembling(self.store, now=self.now - LEASE_S, names=f"n{next(self.numbers)}")
            assert lost is not None
            next(self.store.records(lost), None)
        batch, records = ended(self.store, now=self.now)
        model = self.batches.pop(batch.id)
        assert batch.state is model.ending
        assert [(record.line, record.kind, record.answer) for record in records] == [
            (line, _RECORD.get(row.state) or _UNANSWERED[model.ending], row.answer) for line, row in model.rows.items()
        ]
        model.state = model.ending
        self.ended[batch.id] = model

    @rule()
    def sweep(self) -> None:
        while self.store.sweep(ended_before_utc=0, limit=3):
            pass

    @invariant()
    def all_counts_are_those_of_the_model(self) -> None:
        for name, model in {**self.batches, **self.ended}.items():
            batch = self.store.get_batch(name, tenant=None)
            assert batch.state is model.state
            assert (batch.completed, batch.failed, batch.dead) == model.counts()
            for what, count in (("completed", batch.completed), ("failed", batch.failed)):
                assert count >= self.high[name, what], "counts never run backwards"
                self.high[name, what] = count
        work = {work.batch_id: work for work in self.store.work(self.now)}
        assert set(work) == {name for name, model in self.batches.items() if model.running}
        for name, seen in work.items():
            assert seen.leased == self.batches[name].count(RowState.LEASED)
            ready = self.batches[name].count(RowState.READY)
            assert seen.fresh + seen.due <= ready
            assert (seen.fresh + seen.due == ready) or seen.next_due_at_utc is not None

    @invariant()
    def all_letters_are_those_of_the_model(self) -> None:
        wanted = {
            (name, line)
            for name, model in {**self.batches, **self.ended}.items()
            for line, row in model.rows.items()
            if row.state is RowState.DEAD
        }
        assert {(letter.batch_id, letter.line) for letter in self.store.dead_letters()} == wanted

    def teardown(self) -> None:
        for handle in self.handles:
            handle.close()


def _run(where: Callable[[], str], *, examples: int) -> None:
    machine = type("JobsHere", (Jobs,), {"where": staticmethod(where)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],  # shrinking takes longer than a test may; add it to look into a failure
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_random_commands_and_crashes_sqlite(tmp_path: Path) -> None:
    memory = Path("/dev/shm")  # synchronising costs nothing there, which buys ten times the examples
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        _run(lambda: f"sqlite:///{tempfile.mkdtemp(dir=folder)}/jobs.db", examples=80)


@pytest.mark.services
def test_random_commands_and_crashes_postgres(empty_postgres: Callable[[], str]) -> None:
    _run(empty_postgres, examples=8)
