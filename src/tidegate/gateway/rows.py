"""Send rows of batches the way of all requests: classified, queued, asked of a backend. Only the client is missing."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import secrets
from collections.abc import Callable

from tidegate.backends import BackendError, Broken, pause_s
from tidegate.classify import Classified, Classifier, Facts, Refused, Route, Tenant, parse_body
from tidegate.classify.bands import BAND_HEADER
from tidegate.core import Lease, Outcome, Reason, Release, Requeue, Stoppable, Ticket
from tidegate.gateway.affinity import affinity_of
from tidegate.gateway.answering import reason_of
from tidegate.gateway.asked import Asked
from tidegate.gateway.asking import ask, head_of
from tidegate.gateway.beginning import Beginning, Verdict, read_beginning
from tidegate.gateway.completions import FAILURES, Completions
from tidegate.gateway.exchange import FAILED, Exchange, outcome_for
from tidegate.gateway.pools import Pools
from tidegate.gateway.resuming import Resuming, run_leg
from tidegate.gateway.tries import Cut, Tries
from tidegate.gateway.watch import inspect_whole
from tidegate.refusals import answer_for
from tidegate.runtime import Clock, Driver
from tidegate.runtime.rows import RowAnswer, RowBroken, RowEnd, RowRequest, RowReturned
from tidegate.telemetry import Recorder
from tidegate.telemetry.request_line import RequestLine

HEADERS = [(b"content-type", b"application/json"), (b"accept", b"application/json")]


class Rows:
    """Sends rows. See ``runtime.rows.RowSender``."""

    def __init__(
        self,
        *,
        classifier: Classifier,
        completions: Completions,
        driver: Driver,
        pools: Pools,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._classifier = classifier
        self.completions = completions
        self.driver = driver
        self.pools = pools
        self.recorder = recorder
        self.clock = clock
        self._ids = itertools.count(1)
        self._prefix = f"row-{secrets.token_hex(6)}-"

    def fresh_id(self) -> str:
        """Give an id that no ticket has had."""
        return f"{self._prefix}{next(self._ids):x}"

    def place(self, row: RowRequest) -> Row | RowAnswer | RowReturned:
        """See ``runtime.rows.RowSender``."""
        tenant = self._tenant(row.tenant)
        if tenant is None:
            return RowReturned(reason=Reason.UNAUTHORIZED, detail=f"the settings have no tenant {row.tenant!r}")
        route = Route(row.path)
        body = parse_body(row.body, route)
        if isinstance(body, Refused):
            return self._refusal(row, body)
        if body.stream:
            return self._refusal(
                row, Refused(Reason.BAD_REQUEST, "stream: expected false or none in a batch", "stream")
            )
        headers = {BAND_HEADER: row.band.encode()}
        classified = self._classifier.classify(Facts(route, route, headers, row.body, body, self.fresh_id(), tenant))
        if isinstance(classified, Refused):
            return self._refusal(row, classified)
        if classified.clamped:
            self.recorder.clamped(classified.band)
        if classified.demoted:
            self.recorder.demoted(classified.band)
        return Row(self, row, Asked(route, HEADERS, row.body, body, classified))

    def learn(self, asked: Asked, content: bytes) -> Release:
        """Look at an answer of status 200: is it an error after all, and what has it used?"""
        failed, used = inspect_whole(content)
        if failed:
            return FAILED
        self._classifier.learn(asked.classified, input_tokens=used.input_tokens, output_tokens=used.output_tokens)
        return Release(Outcome.COMPLETED, used.input_tokens, used.output_tokens)

    def _refusal(self, row: RowRequest, refused: Refused) -> RowAnswer:
        """Answer what never becomes a ticket as a request would be."""
        self.recorder.refused(refused.reason)
        answer = answer_for(refused.reason, detail=refused.detail, param=refused.param, status=refused.status)
        line = RequestLine(
            at_utc=self.clock.utc_now(),
            level="info",
            request_id=self.fresh_id(),
            status=answer.status,
            outcome=Outcome.REJECTED,
            reason=refused.reason,
            tenant=row.tenant,
            band=row.band,
            total_ms=0.0,
        )
        return RowAnswer(status=answer.status, body=answer.body, line=line)

    def _tenant(self, name: str) -> Tenant | None:
        identities = self._classifier.identities
        if identities.anonymous is not None and identities.anonymous.name == name:
            return identities.anonymous
        return next((tenant for tenant in identities.tenants if tenant.name == name), None)


class Row:
    """One row on its way. See ``runtime.rows.PlacedRow``."""

    __slots__ = ("_asked", "_exchange", "_lease", "_plan", "_release", "_rows", "_ticket")

    def __init__(self, rows: Rows, row: RowRequest, asked: Asked) -> None:
        self._rows = rows
        self._asked = asked
        self._exchange: Exchange | None = None
        self._lease: Lease | None = None
        self._release = FAILED
        self._plan = rows.completions.resumer.plan(asked)
        self._ticket = _ticket(asked.classified, asked, row, self._plan.stoppable)

    @property
    def pool(self) -> str:
        """Name of the pool it goes to."""
        return self._ticket.pool

    @property
    def band(self) -> int:
        """Index of its band."""
        return self._ticket.band

    async def send(self, seated: Callable[[], None]) -> RowEnd:
        """See ``runtime.rows.PlacedRow``."""
        with Exchange(self._rows.driver, None) as exchange, self._rows.completions.holding(exchange):
            self._exchange = exchange
            try:
                end = await self._send(exchange, seated)
            except asyncio.CancelledError:
                if exchange.stopped is None:
                    raise
                return RowReturned(reason=exchange.stopped)
        return end if isinstance(end, RowReturned) else dataclasses.replace(end, line=self._line(end))

    def bear(self, name: str) -> bool:
        """See ``runtime.rows.PlacedRow``. It stands where it stood: its arrival is kept."""
        exchange, ticket = self._exchange, self._ticket
        if exchange is None or exchange.lease is not None or exchange.ticket_id != ticket.id:
            return False
        if ticket.name != name:
            self._ticket = _renamed(ticket, self._rows.fresh_id(), name)
            exchange.replace(self._ticket)
        return True

    async def _send(self, exchange: Exchange, seated: Callable[[], None]) -> RowEnd:
        tries = Tries(self._plan.resuming)
        exchange.may_stop = tries.may_stop
        if self._ticket.arrived is None:
            self._ticket.arrived = self._rows.clock.now()
        lease = await exchange.seat(self._ticket)
        while lease is not None:
            self._lease = lease
            seated()
            end = Cut.CUT if exchange.cut else await self._try(exchange, tries)
            if end is Cut.CUT:
                lease = await exchange.regained()
            elif isinstance(end, Requeue):
                lease = await exchange.requeue(end)
            else:
                return end
        refusal = exchange.refusal
        assert refusal is not None
        return RowReturned(
            reason=refusal.reason,
            detail=refusal.detail,
            refused=refusal.reason not in FAILURES,
            retry_after_s=refusal.retry_after_s,
        )

    async def _try(self, exchange: Exchange, tries: Tries) -> RowEnd | Requeue | Cut:
        rows, lease = self._rows, exchange.lease
        assert lease is not None
        backend = rows.pools.backends.get(lease.backend)
        if backend is None:  # taken out of the settings since the dispatch
            return Requeue(avoid=True, reason=Reason.NO_BACKEND)
        try:
            sent = ask(self._asked, backend, lease, exchange, tries)
            response = await head_of(sent, self._asked, backend, lease, exchange, tries)
            beginning = await read_beginning(response, rows.clock, self._asked.route)
        except BackendError as error:
            exchange.response = None
            if exchange.cut:
                return Cut.CUT
            if exchange.stopped is None:
                rows.pools.unanswered(backend, error)
                if tries.elsewhere(rows.pools, backend):
                    return Requeue(avoid=True)
            reason = exchange.stopped or exchange.lost or reason_of(error)
            exchange.finish(Release(outcome_for(reason)), reason=reason)
            return RowReturned(reason=reason, detail=str(error))
        if exchange.cut:
            return Cut.CUT
        verdict = rows.completions.heard(backend, beginning)
        if verdict is Verdict.ELSEWHERE and tries.elsewhere(rows.pools, backend):
            beginning.response.abort()
            return Requeue(avoid=True)
        if verdict is Verdict.PAUSE:
            return self._paused(exchange, beginning)
        if tries.resuming is not None and (beginning.watch is not None or tries.carries):
            return await self._run_leg(exchange, beginning, tries, tries.resuming)
        return self._ended(exchange, beginning, backend.name)

    def _paused(self, exchange: Exchange, beginning: Beginning) -> RowEnd | Requeue:
        """Told to come later. Another backend may take it at once; else it makes room for rows of other models."""
        at_utc = self._rows.clock.utc_now()
        beginning.response.abort()
        exchange.response = None
        exchange.give_back(Requeue())
        wait_s = pause_s(beginning.response.headers, at_utc=at_utc)
        return RowReturned(reason=Reason.UPSTREAM_BUSY, detail="status 429", retry_after_s=wait_s)

    async def _run_leg(
        self, exchange: Exchange, beginning: Beginning, tries: Tries, resuming: Resuming
    ) -> RowEnd | Requeue | Cut:
        """Take in a stream that was asked for so that a row can be stopped and go on."""
        rows, response = self._rows, beginning.response
        error: BackendError | None = Broken(f"the engine did not go on with the answer: status {response.status}")
        if beginning.watch is not None:
            tries.begun = True
            rows.completions.answering.began(exchange)
            error = await run_leg(response, beginning.start, resuming, beginning.watch, None, rows.clock)
            if error is not None and not resuming.splice.complete:
                again = rows.completions.answering.go_on(exchange, tries, error)
                if again is not None:
                    return again
        resuming.ended()
        response.abort()
        exchange.response = None
        if error is None or resuming.splice.complete:
            return self._answered(exchange, 200, resuming.splice.whole())
        reason = Reason.PREEMPTED if exchange.cut else exchange.stopped or exchange.lost or reason_of(error)
        exchange.end(Release(outcome_for(reason)), reason)
        if reason is Reason.PREEMPTED:
            return RowReturned(reason=reason, detail=str(error))
        return RowBroken(reason=reason, detail=str(error))

    def _ended(self, exchange: Exchange, beginning: Beginning, backend: str) -> RowEnd:
        response, content = beginning.response, beginning.start
        exchange.response = None
        at_utc = self._rows.clock.utc_now()
        if beginning.watch is not None:
            response.abort()
            exchange.finish(FAILED, reason=Reason.UPSTREAM_ERROR)
            return RowBroken(reason=Reason.UPSTREAM_ERROR, detail=f"{backend} answered with a stream")
        if response.status >= 400:
            exchange.finish(FAILED, reason=_failure(response.status))
            wait_s = pause_s(response.headers, at_utc=at_utc) if response.header(b"retry-after") else None
            return RowAnswer(status=response.status, body=content, request_id=self._id, retry_after_s=wait_s)
        return self._answered(exchange, response.status, content)

    def _answered(self, exchange: Exchange, status: int, content: bytes) -> RowEnd:
        self._release = self._rows.learn(self._asked, content)
        if self._release is FAILED:
            exchange.finish(FAILED, reason=Reason.UPSTREAM_ERROR)
            return RowBroken(reason=Reason.UPSTREAM_ERROR, detail=content[:500].decode(errors="replace"))
        assert exchange.lease is not None
        self._rows.recorder.first_byte(exchange.lease, self._age_s())
        exchange.finish(self._release)
        return RowAnswer(status=status, body=content, request_id=self._id)

    @property
    def _id(self) -> str:
        return self._ticket.id

    def _age_s(self) -> float:
        arrived = self._ticket.arrived
        return 0.0 if arrived is None else self._rows.clock.now() - arrived

    def _line(self, end: RowAnswer | RowBroken) -> RequestLine:
        """Say of the row what is said of a request."""
        classified, release, lease = self._asked.classified, self._release, self._lease
        total_ms = _ms(self._age_s())
        completed = release.outcome is Outcome.COMPLETED
        reason: Reason | None
        if isinstance(end, RowBroken):
            status, reason = answer_for(end.reason).status, end.reason
        else:
            status, reason = end.status, None if completed else _failure(end.status)
        return RequestLine(
            at_utc=self._rows.clock.utc_now(),
            level="info",
            request_id=self._id,
            status=status,
            outcome=release.outcome,
            reason=reason,
            tenant=classified.tenant.name,
            band=classified.band_name,
            model=classified.pool,
            backend=None if lease is None else lease.backend,
            queue_ms=None if lease is None else _ms(lease.waited_s),
            ttft_ms=total_ms if completed else None,
            total_ms=total_ms,
            input_tokens=release.input_tokens,
            output_tokens=release.output_tokens,
        )


def _failure(status: int) -> Reason | None:
    """The row of the refusal table for an answer that is no success; a mistake of the row's own has none."""
    if status == 429:
        return Reason.UPSTREAM_BUSY
    return Reason.UPSTREAM_ERROR if status >= 500 else None


def _ms(seconds: float) -> float:
    return int(seconds * 1e6) / 1000


def _ticket(classified: Classified, asked: Asked, row: RowRequest, stoppable: Stoppable) -> Ticket:
    return Ticket(
        id=classified.request_id,
        pool=classified.pool,
        band=classified.band,
        tenant=classified.tenant.name,
        work=classified.work,
        flow=classified.flow,
        arrived=row.arrived,
        size_bytes=len(asked.raw),
        affinity=affinity_of(asked.raw, asked.body),
        patient=True,
        stoppable=stoppable,
    )


def _renamed(ticket: Ticket, fresh_id: str, name: str) -> Ticket:
    return Ticket(
        id=fresh_id,
        pool=ticket.pool,
        band=ticket.band,
        tenant=ticket.tenant,
        work=ticket.work,
        flow=ticket.flow,
        arrived=ticket.arrived,
        size_bytes=ticket.size_bytes,
        affinity=ticket.affinity,
        name=name,
        patient=True,
        stoppable=ticket.stoppable,
    )
