"""Carry one completion request from its headers to its end.

read, classify, wait for a seat, ask the backend, relay, return the seat. What ends a request early is either a
refusal (a value), an upstream error (tried again on another backend as long as the client has no byte), or a
cancellation, which ``Exchange`` has acted on before this code sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final

from tidegate.backends import BackendError, pause_s, rate_limit, tells_limits
from tidegate.classify import (
    Classifier,
    Facts,
    HeaderNames,
    Refused,
    Route,
    Tenant,
    check_json,
    is_form,
    parse_body,
    read_headers,
)
from tidegate.config import Settings
from tidegate.core import Paused, Reason, Release, Requeue, Stoppable, Ticket
from tidegate.gateway.affinity import affinity_of
from tidegate.gateway.answering import Answering
from tidegate.gateway.asked import Asked
from tidegate.gateway.asking import ask, head_of
from tidegate.gateway.beginning import Beginning, Verdict, at_hand, read_beginning
from tidegate.gateway.body import read_body, too_long
from tidegate.gateway.call import Call, Send
from tidegate.gateway.crowd import Crowd
from tidegate.gateway.cycle import Cycle
from tidegate.gateway.exchange import Exchange, outcome_for
from tidegate.gateway.pools import Backend, Pools
from tidegate.gateway.reading import read_form
from tidegate.gateway.refusing import Refuser
from tidegate.gateway.requests import Ends
from tidegate.gateway.resuming import Plan, Resumer
from tidegate.gateway.returning import Returning
from tidegate.gateway.tries import Cut, Tries
from tidegate.gateway.waits import waited
from tidegate.runtime import Clock, Driver, Parted, Refusal
from tidegate.telemetry import Recorder

FAILURES: Final = frozenset({Reason.UPSTREAM_ERROR, Reason.UPSTREAM_TIMEOUT})
"""Reasons for which the scheduler ends a ticket that has failed on every backend."""

_OTHER: Final = Route.OTHER
_GOOD: Final = Verdict.GOOD
_CUT: Final = Cut.CUT
_NEVER: Final = Stoppable.NEVER
_NOTHING: Final = contextlib.nullcontext()

SILENCE_S: Final = 60.0
"""Silence of an answer after which its backend is asked whether it is still there."""


class Completions:
    """Answers the routes that run on a model. One for each gateway; holds the requests in progress (``live``).

    ``outside`` looks after what a ticket depends on outside the scheduler; entered while such a ticket waits.
    """

    def __init__(
        self,
        *,
        max_body: int,
        classifier: Classifier,
        driver: Driver,
        pools: Pools,
        refuser: Refuser,
        recorder: Recorder,
        clock: Clock,
        ends: Ends,
        resumer: Resumer,
        silence_s: float = SILENCE_S,
        heartbeat_s: float | None = None,
        crowd: Crowd | None = None,
        outside: Callable[[Ticket], contextlib.AbstractContextManager[None]] = lambda _: _NOTHING,
    ) -> None:
        self._max_body = max_body
        self._silence_s = silence_s
        self._heartbeat_s = heartbeat_s
        self._crowd = crowd or Crowd(None)
        self._classifier = classifier
        self._driver = driver
        self._pools = pools
        self._refuser = refuser
        self._recorder = recorder
        self._clock = clock
        self._ends = ends
        self.resumer = resumer
        self.answering = Answering(
            classifier=classifier, driver=driver, pools=pools, refuser=refuser, recorder=recorder, clock=clock
        )
        self._outside = outside
        self._returning = Returning()
        self.live: Parted[Exchange] = Parted()

    def obey(self, settings: Settings) -> None:
        """Take other limits for what comes from now on."""
        self.resumer.obey(settings)
        gateway = settings.gateway
        self._silence_s = gateway.silence_timeout
        self._heartbeat_s = gateway.queue_heartbeat_after
        self._crowd.most = gateway.max_connections_per_tenant

    def run(self, call: Call, route: Route, cycle: Cycle) -> Coroutine[Any, Any, None]:
        """Answer one request. What it returns raises ``CancelledError`` when its client left."""
        link = cycle.link
        named = link.named
        names = read_headers(cycle.headers, named)
        if isinstance(names, Refused):
            return self._refuser.early(call, cycle.send, names, headers=named, link=link)
        tenant = self._classifier.identify(named, link.shown)
        if not isinstance(tenant, Refused):
            call.tenant = tenant.name
            tenant = self._crowd.enter(tenant.name) or tenant
        if isinstance(tenant, Refused):
            return self._refuser.early(call, cycle.send, tenant, headers=named, link=cycle.link)
        try:
            raw: bytes | Refused | None = check_json(named, forms=route is _OTHER)
            if raw is None:
                raw = cycle.body_at_hand(self._max_body)
            if raw is None:
                return self._read(call, route, cycle, tenant, names)
            asked = self._understand(call, route, cycle, tenant, names, raw) if isinstance(raw, bytes) else raw
        except BaseException:
            self._crowd.leave(tenant.name)
            raise
        return self._go_on(call, asked, cycle, tenant.name)

    async def _read(self, call: Call, route: Route, cycle: Cycle, tenant: Tenant, names: HeaderNames) -> None:
        """Wait for the body first."""
        named = cycle.link.named
        try:
            raw = too_long(named, self._max_body) or await read_body(cycle.receive, self._max_body)
            asked = self._understand(call, route, cycle, tenant, names, raw) if isinstance(raw, bytes) else raw
        except BaseException:
            self._crowd.leave(tenant.name)
            raise
        going_on = self._go_on(call, asked, cycle, tenant.name)
        raw = asked = None  # which lets it go while it waits and once it is answered: nothing else may keep it
        await going_on

    def _go_on(self, call: Call, asked: Asked | Refused | None, cycle: Cycle, tenant: str) -> Coroutine[Any, Any, None]:
        """Answer what was asked; ``None``: its client left before that was known. ``tenant`` leaves the crowd then."""
        if asked is None or isinstance(asked, Refused) or cycle.link.gone:
            return self._not_held(call, asked if isinstance(asked, Refused) else None, cycle, tenant)
        return self._hold(call, asked, cycle, tenant)

    async def _not_held(self, call: Call, refused: Refused | None, cycle: Cycle, tenant: str) -> None:
        link = cycle.link
        try:
            if refused is None or link.gone:
                call.left()
            else:
                await self._refuser.early(call, cycle.send, refused, headers=link.named, link=link)
        finally:
            self._crowd.leave(tenant)

    async def _hold(self, call: Call, asked: Asked, cycle: Cycle, tenant: str) -> None:
        link, send, classified = cycle.link, cycle.send, asked.classified
        exchange = Exchange(self._driver, link, call.trace, cycle.task)
        self.live.add(exchange)
        try:
            with exchange:
                try:
                    key = classified.idempotency_key
                    first = self._returning.first_arrival(call.tenant, key, call.arrived) if key else None
                    plan = self.resumer.plan(asked)
                    ticket = self._ticket(call.request_id, call, asked, first, plan)
                    call.request_id = classified.request_id
                    refusal = await self._through(call, asked, exchange, ticket, plan, send)
                    if refusal is not None:
                        await self._turned_away(call, asked, exchange, ticket, first, refusal, send)
                except asyncio.CancelledError:
                    if exchange.stopped is None:
                        raise
                    exchange.finish(Release(outcome_for(exchange.stopped)), reason=exchange.stopped)
                    await self.answering.fail(call, send, asked, exchange.stopped, "the request was stopped")
                else:
                    if call.broken:
                        link.cut()
        finally:
            self.live.discard(exchange)
            self._crowd.leave(tenant)
            if self._ends.waiting:
                self._ends.told(f"{classified.tenant.name}/{classified.request_id}")

    @contextlib.contextmanager
    def holding(self, exchange: Exchange) -> Iterator[None]:
        """Keep a request among those that can be stopped, and whose silence is noticed."""
        self.live.add(exchange)
        try:
            yield
        finally:
            self.live.discard(exchange)

    def stop_running(self, reason: Reason) -> None:
        """End every request in progress; each client gets an error."""
        for exchange in tuple(self.live):
            exchange.stop(reason)

    def stop_request(self, ticket_id: str) -> bool:
        """End one request that waits or runs; its client is told that it was cancelled. ``False``: there is none."""
        for exchange in self.live:
            if exchange.ticket_id == ticket_id:
                exchange.stop(Reason.CANCELLED)
                return True
        return False

    def check_silence(self, exchanges: Iterable[Exchange], now: float) -> None:
        """Give up answers that are silent for longer than ``silence_timeout`` and whose backend is not there any more.

        The backend of a silent answer is asked; as long as it replies, the answer keeps its seat (SPEC §15.10).
        ``now`` is the event loop's time, seconds.
        """
        for exchange in exchanges:
            lease = exchange.lease
            if lease is None or now - exchange.heard_at <= self._silence_s:
                continue
            backend = self._pools.backends.get(lease.backend)
            if backend is None:  # taken out of the settings; nobody can be asked
                exchange.stop(Reason.UPSTREAM_TIMEOUT)
            elif backend.up:
                self._pools.doubt(backend)
            else:
                exchange.lose(Reason.UPSTREAM_TIMEOUT)

    def _understand(
        self, call: Call, route: Route, cycle: Cycle, tenant: Tenant, names: HeaderNames, raw: bytes
    ) -> Asked | Refused:
        """Read and classify."""
        named = cycle.link.named
        form, place = route is _OTHER and is_form(named), None
        ascii_only = form or raw.isascii()
        if form:
            body, place = read_form(named, raw)
        else:
            read = parse_body(raw, route, ascii_only=ascii_only)
            if isinstance(read, Refused):
                return read
            body = read
        countable = b"" if form else raw  # sound and pictures have no text to count
        facts = Facts(
            route, cycle.path, named, countable, body, call.request_id, tenant, quiet=names.quiet, ascii_only=ascii_only
        )
        classified = self._classifier.classify(facts)
        if isinstance(classified, Refused):
            return classified
        call.classified = classified
        if classified.clamped:
            self._recorder.clamped(classified.band)
        if classified.demoted:
            self._recorder.demoted(classified.band)
        target = cycle.raw_path if route is _OTHER else b""
        return Asked(route, cycle.headers, raw, body, classified, target=target, form=form, model_at=place, names=names)

    async def _turned_away(
        self,
        call: Call,
        asked: Asked,
        exchange: Exchange,
        ticket: Ticket,
        first: float | None,
        refusal: Refusal,
        send: Send,
    ) -> None:
        """Have another model answer what was refused, or say why it was."""
        classified = asked.classified
        tenant, key = classified.tenant.name, classified.idempotency_key
        other = self._refuser.instead(call, refusal, classified)
        if other is not None:
            asked.classified = call.classified = other
            call.instead = other.upstream_model or ""
            plan = self.resumer.plan(asked)
            ticket = self._ticket(f"{ticket.id}-instead", call, asked, first, plan)
            again = await self._through(call, asked, exchange, ticket, plan, send)
            if again is None:
                return
            refusal = again
        reason, now = refusal.reason, self._clock.now()
        if reason in FAILURES:
            await self.answering.fail(call, send, asked, reason, refusal.detail)
            return
        self._returning.refused(tenant, key, reason, arrived=call.arrived if first is None else first, now=now)
        await self._refuser.refused(call, send, refusal, asked)

    def _ticket(self, ticket_id: str, call: Call, asked: Asked, arrived: float | None, plan: Plan) -> Ticket:
        """Give the scheduler's view. Its id is ours, since clients may use one ``x-request-id`` many times."""
        classified = asked.classified
        return Ticket(
            id=ticket_id,
            pool=classified.pool,
            band=classified.band,
            tenant=classified.tenant.name,
            work=classified.work,
            flow=classified.flow,
            ttl_s=classified.ttl_s,
            deadline=None if classified.deadline_s is None else call.arrived + classified.deadline_s,
            arrived=arrived,
            size_bytes=asked.size or len(asked.raw),
            name=classified.request_id,
            depends_on=classified.depends_on,
            affinity=affinity_of(asked.raw, asked.body) if classified.pool in self._pools.with_choice else 0,
            stoppable=plan.stoppable,
        )

    async def _through(
        self, call: Call, asked: Asked, exchange: Exchange, ticket: Ticket, plan: Plan, send: Send
    ) -> Refusal | None:
        """Take one ticket through its waits and tries; return why it got no answer, ``None`` when it got one."""
        every_s = self._heartbeat_s if asked.body.stream else None
        resuming = plan.resuming
        tries = Tries(resuming)
        exchange.may_stop = None if plan.stoppable is _NEVER else tries.may_stop
        try:
            if ticket.depends_on:
                with self._outside(ticket):
                    if exchange.apply(ticket):
                        await waited(call, asked, exchange.seated(), every_s, send)
            elif exchange.apply(ticket):
                await waited(call, asked, exchange.seated(), every_s, send)
            while (lease := exchange.lease) is not None:
                if resuming is None or not resuming.carries:
                    call.lease = lease
                self._refuser.storm.dispatched(lease.started)
                backend = None if exchange.cut else self._pools.backends.get(lease.backend)
                again: Requeue | Cut | None
                if backend is None:  # cut, or its backend has been taken out of the settings since the dispatch
                    again = _CUT if exchange.cut else Requeue(avoid=True, reason=Reason.NO_BACKEND)
                else:
                    try:
                        response = ask(asked, backend, lease, exchange, tries)
                        if response is not None and not response.over:
                            try:
                                await response.news()  # here, since a coroutine for it would cost as much again
                            except BaseException:
                                response.left()
                                raise
                        if response is None or not response.status:
                            response = await head_of(response, asked, backend, lease, exchange, tries)
                        beginning = at_hand(response, asked.route)
                        if beginning is None:
                            beginning = await read_beginning(response, self._clock, asked.route)
                    except BackendError as error:
                        again = await self.answering.unanswered(call, asked, exchange, tries, backend, error, send)
                    else:
                        again = self._again(exchange, tries, backend, beginning)
                        if again is None:
                            passing = self.answering.relay(call, asked, exchange, tries, beginning, send)
                            again = None if passing is None else await passing
                if again is None:
                    return None
                seat = exchange.regained() if again is _CUT else exchange.requeue(again)
                await waited(call, asked, seat, every_s, send, spilling=tries.begun)
        finally:
            if resuming is not None:
                resuming.ended()
        return exchange.refusal

    def _again(self, exchange: Exchange, tries: Tries, backend: Backend, beginning: Beginning) -> Requeue | Cut | None:
        """Say how to go on instead of passing an answer on that has begun so; ``None``: pass it on."""
        if exchange.cut:
            return _CUT
        verdict = self.heard(backend, beginning)
        if verdict is _GOOD:
            return None
        if verdict is Verdict.ELSEWHERE and tries.elsewhere(self._pools, backend):
            beginning.response.abort()
            return Requeue(avoid=True)
        if verdict is Verdict.PAUSE and tries.later():
            beginning.response.abort()
            return Requeue()
        return None

    def heard(self, backend: Backend, beginning: Beginning) -> Verdict:
        """Tell health and scheduler what the beginning of an answer says of its backend."""
        verdict, headers = beginning.verdict, beginning.response.headers
        if tells_limits(headers):
            quota = rate_limit(backend.name, headers, at_utc=self._clock.utc_now())
            if quota is not None:
                self._driver.observe(quota)
        if verdict is _GOOD:
            backend.prober.answered()
        elif verdict is Verdict.PAUSE:
            wait_s = pause_s(headers, at_utc=self._clock.utc_now())
            self._driver.observe(Paused(backend.name, self._clock.now() + wait_s))
        else:
            self._pools.failed(backend, beginning.why)
        return verdict
