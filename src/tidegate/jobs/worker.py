"""The jobs' worker process: everything that parses, commits or assembles, away from the process that serves clients.

One thread, one store, one socket to the gateway that started it. It ends when the gateway does, and then gives back
what the gateway held. All that matters is on disk, so that it may die at any moment; the gateway starts the next one
and says again what was not answered.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec
import structlog

from tidegate.jobs import owners
from tidegate.jobs.desk import Desk
from tidegate.jobs.folder import OWNERS, Folder, new_file_id
from tidegate.jobs.inputs import Inputs
from tidegate.jobs.messages import (
    Ask,
    Ended,
    FromWorker,
    Hello,
    Reply,
    Report,
    Result,
    RowOut,
    Rows,
    Settled,
    Setup,
    ToWorker,
    Unframer,
    Want,
    Work,
    frame,
)
from tidegate.jobs.retry import RetryPolicy
from tidegate.jobs.steady import SteadyClock
from tidegate.jobs.tasks import Step, Task, assemble, validate
from tidegate.runtime import SystemClock
from tidegate.stores import (
    BatchState,
    BatchWork,
    Claim,
    Conflict,
    JobStore,
    LeasedRow,
    StoreError,
    Unavailable,
)

LOOK_S: Final = 0.25
"""Time between two looks at what there is to do."""
REST_S: Final = 0.5
"""Pause after the store could not do something."""
TELL_S: Final = 60.0
"""Time after which the same reason is told in the log again."""
GONE_S: Final = 2.0
"""Time between two looks for gateways that died: their rows have waited so long at most."""
SWEEP_S: Final = 60.0
RUBBISH_AGE_S: Final = 86_400.0
MOST_GROUP_BYTES: Final = 8 * 2**20

log = structlog.get_logger("tidegate.jobs")
decoder = msgspec.msgpack.Decoder(ToWorker)


class Worker:
    """See the module docstring. ``run`` returns when the gateway is gone."""

    def __init__(self, connection: socket.socket, hello: Hello, store: JobStore, folder: Folder) -> None:
        self._connection = connection
        self._setup: Setup = hello.setup
        self._store = store
        self._folder = folder
        self._clock = SystemClock()
        self._utc = SteadyClock(self._clock, start_utc=hello.utc or None, reference=self._reference)
        self._desk = Desk(store, folder, self._utc)
        self._inputs = Inputs(folder)
        self._policy = RetryPolicy(hello.setup.max_attempts)
        self._chance = Random()
        self._unframer = Unframer()
        self._tokens = Counter(hello.held)
        self._asks: deque[Ask] = deque()
        self._reports: list[Report] = []
        self._wants: deque[Want] = deque()
        self._work: dict[str, BatchWork] = {}
        self._told: list[BatchWork] | None = None
        self._tasks: dict[str, tuple[Claim, Task]] = {}
        self._rest_until = self._look_at = self._gone_at = self._renew_at = self._sweep_at = 0.0
        self._why, self._why_told = "", 0.0
        # A store on PostgreSQL may have gateways of other machines, whose locks tell nothing here.
        self._absent: set[str] = set()
        self._judged = owners.kernel() if hello.setup.store.startswith("postgres") else None
        self._alive = True

    def run(self) -> None:
        """Work until the gateway is gone."""
        self._start()
        while self._alive:
            self._listen()
            self._reply()
            now = self._clock.now()
            if now >= self._rest_until:
                try:
                    self._turn(now)
                except Unavailable as error:
                    self._rest(now, str(error))
        self._connection.close()
        with contextlib.suppress(StoreError):
            self._store.release_owner(self._setup.owner, now_utc=self._utc())

    def _rest(self, now: float, why: str) -> None:
        """Let the store be for a moment; say why, and the same again only after a while."""
        self._rest_until = now + REST_S
        if why != self._why or now >= self._why_told + TELL_S:
            self._why, self._why_told = why, now
            log.warning("jobs.store", error=why)

    def _start(self) -> None:
        """Where the clock is this machine's own, it may have been set back since the last run."""
        with contextlib.suppress(Unavailable):
            if self._store.utc() is None:
                self._store.bring_forward(self._utc(), most_s=1.5 * self._policy.most_s)

    def _turn(self, now: float) -> None:
        self._settle()
        if now >= self._look_at:
            self._look(now)
        self._serve()
        self._step()

    def _reference(self) -> float | None:
        """What the clock leans to: that of the store, so that several gateways have one."""
        try:
            utc = self._store.utc()
        except StoreError:
            return None
        return self._clock.utc_now().timestamp() if utc is None else utc

    def _until(self) -> float:
        return self._utc() + self._setup.lease_s

    # The socket.

    def _listen(self) -> None:
        """Take in what has come; wait for it when there is nothing else to do."""
        wake = None
        with contextlib.suppress(StoreError):  # whoever needs the store will say so
            wake = self._store.wake_fd
        now = self._clock.now()
        if now < self._rest_until:
            timeout = self._rest_until - now
        else:
            timeout = 0.0 if self._tasks or self._wants or self._reports else max(0.0, self._look_at - now)
        sources: list[int] = [self._connection.fileno(), *([] if wake is None else [wake])]
        ready = select.select(sources, [], [], timeout)[0]
        if wake is not None and wake in ready:
            with contextlib.suppress(StoreError):
                self._store.drain_wakeups()
            self._look_at = 0.0
        if sources[0] in ready:
            data = self._connection.recv(2**20)
            if not data:
                self._alive = False
            for body in self._unframer.feed(data):
                self._take(decoder.decode(body))

    def _take(self, message: ToWorker) -> None:
        if isinstance(message, Ask):
            self._asks.append(message)
        elif isinstance(message, Report):
            self._reports.append(message)
        elif isinstance(message, Want):
            self._wants.append(message)

    def _say(self, message: FromWorker) -> None:
        try:
            self._connection.sendall(frame(message))
        except OSError:
            self._alive = False

    def _reply(self) -> None:
        while self._asks:
            ask = self._asks.popleft()
            try:
                reply = self._desk.answer(ask)
            except Exception as error:  # whatever it is, one question must not end all batches
                log.exception("jobs.fault", method=ask.method)
                reply = Reply(ask.id, error="Fault", message=f"{type(error).__name__}: see the log of the gateway")
            if ask.method in _CHANGES:
                self._look_at = 0.0
            if ask.method == "cancel_batch" and reply.error is None:
                self._look_for_end(reply)
            self._say(reply)

    def _look_for_end(self, reply: Reply) -> None:
        batch = msgspec.msgpack.decode(reply.result)
        if BatchState(batch["state"]).ended:
            self._say(Ended(batch["id"]))

    # Rows.

    def _settle(self) -> None:
        """Commit all reports that are there as one."""
        if not self._reports:
            return
        now_utc = self._utc()
        results = [result for report in self._reports for result in report.results]
        verdicts = [self._policy.verdict(result, now_utc, self._chance) for result in results]
        settled = self._store.settle(verdicts, now_utc=now_utc)
        for verdict in verdicts:
            self._forget(verdict.row.token)
        for report in self._reports:
            self._say(Settled(report.id))
        self._reports.clear()
        if settled.left:
            self._look_at = 0.0

    def _forget(self, token: int) -> None:
        self._tokens[token] -= 1
        if self._tokens[token] <= 0:
            del self._tokens[token]

    def _serve(self) -> None:
        while self._wants:
            want = self._wants[0]
            batch = self._work.get(want.batch_id)
            rows: list[LeasedRow] = []
            if batch is not None:
                rows = self._store.lease(
                    want.batch_id,
                    want.count,
                    owner=self._setup.owner,
                    now_utc=self._utc(),
                    until_utc=self._until(),
                )
            self._wants.popleft()
            self._tokens.update(row.token for row in rows)
            self._hand_over(want.batch_id, batch, rows)

    def _hand_over(self, batch_id: str, batch: BatchWork | None, rows: list[LeasedRow]) -> None:
        out: list[RowOut] = []
        unreadable: list[Result] = []
        size = 0
        for row in rows:
            assert batch is not None
            if size > MOST_GROUP_BYTES:  # large lines: the rest another time
                unreadable.append(Result(row=row, error="put off", retry_after_s=0.0))
                continue
            try:
                body = self._inputs.body(batch.input_file_id, row)
            except (OSError, ValueError) as error:
                unreadable.append(Result(row=row, broken=True, error=f"the input file cannot be read: {error}"))
                continue
            size += len(body)
            out.append(RowOut(row, batch.tenant, batch.band, batch.endpoint, body))
        self._say(Rows(batch_id, out))
        if unreadable:
            self._reports.append(Report(0, unreadable))

    # Looking after everything.

    def _look(self, now: float) -> None:
        """See what there is to do."""
        self._look_at = now + LOOK_S
        now_utc = self._utc()
        self._store.expire_batches(now_utc)
        if now >= self._renew_at:
            self._renew_at = now + self._setup.lease_s / 4
            self._renew(now_utc)
        if now >= self._gone_at:
            self._gone_at = now + GONE_S
            self._take_back(now_utc)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._sweep(now_utc)
        self._claim(now_utc)
        work = self._store.work(now_utc)
        self._work = {batch.batch_id: batch for batch in work}
        if work != self._told:
            self._told = work
            self._say(Work(work))

    def _renew(self, now_utc: float) -> None:
        tokens = {*self._tokens, *(claim.token for claim, _ in self._tasks.values())}
        if tokens:
            held = self._store.renew(tokens, until_utc=self._until())
            for token in tokens - held:
                self._tokens.pop(token, None)
        self._store.reap(now_utc)
        if self._judged is not None:
            self._look_for_strangers()

    def _look_for_strangers(self) -> None:
        """Say when somebody has rows of this store and, twice in a row, no lock file here: the folder is not shared."""
        place = self._folder.path / OWNERS
        absent = {owner for owner in self._store.owners() if not (place / owner).exists()}
        for owner in absent & self._absent:
            log.error("jobs.files_not_shared", owner=owner, folder=str(self._folder.path))
        self._absent = absent

    def _take_back(self, now_utc: float) -> None:
        """Take the rows of gateways that are known to be gone, without waiting for their leases to run out."""
        place = self._folder.path / OWNERS
        for owner in owners.all_gone(place, under=self._judged):
            self._store.release_owner(owner, now_utc=now_utc)
            owners.forget(place, owner)

    def _claim(self, now_utc: float) -> None:
        owner, until_utc = self._setup.owner, self._until()
        if "validate" not in self._tasks:
            claim = self._store.claim_validation(owner, now_utc=now_utc, until_utc=until_utc)
            if claim is not None:
                self._begin("validate", claim, validate)
        if "assemble" not in self._tasks:
            ids = (new_file_id(), new_file_id())
            claim = self._store.claim_assembly(owner, now_utc=now_utc, until_utc=until_utc, file_ids=ids)
            if claim is not None:
                self._begin("assemble", claim, assemble)

    def _begin(self, name: str, claim: Claim, make: Callable[..., Task]) -> None:
        self._tasks[name] = (claim, make(self._store, self._folder, claim, self._setup, self._utc))

    def _step(self) -> None:
        for name, (claim, task) in tuple(self._tasks.items()):
            try:
                step = next(task)
            except StopIteration as end:
                del self._tasks[name]
                self._look_at = 0.0
                if end.value.state.ended:
                    self._say(Ended(claim.batch.id))
            except Conflict as error:
                log.warning("jobs.claim_lost", batch=claim.batch.id, task=name, error=str(error))
                del self._tasks[name]
            except StoreError:
                raise
            except Exception:  # whatever it is, one batch must not end the others; it is tried again in a while
                log.exception("jobs.fault", batch=claim.batch.id, task=name)
                del self._tasks[name]
            else:
                if step is Step.LATER:
                    self._rest_until = self._clock.now() + REST_S

    def _sweep(self, now_utc: float) -> None:
        """One bounded step of housekeeping: what is older than it is kept, and what nobody knows."""
        store = self._store
        store.sweep(ended_before_utc=now_utc - self._setup.keep_s)
        for file in store.expired_files(now_utc):
            with contextlib.suppress(Conflict):
                store.delete_file(file.id, tenant=None)
                self._folder.drop(file.id)
        place = self._folder.path / OWNERS
        owners.refresh(place, self._setup.owner, now_utc)
        for owner in owners.long_silent(place, now_utc - RUBBISH_AGE_S):
            owners.forget(place, owner)
        old = list(self._folder.old(now_utc - RUBBISH_AGE_S))
        known = store.known_files(old) if old else frozenset()
        for file_id in old:
            if file_id not in known:
                self._folder.drop(file_id)


_CHANGES: Final = frozenset({"create_batch", "cancel_batch", "redrive"})
