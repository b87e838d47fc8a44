"""Carry one completion request from its headers to its end.

read, classify, wait for a seat, ask the backend, relay, return the seat. What ends a request early is either a
refusal (a value), an upstream error (tried again on another backend as long as the client has no byte), or a
cancellation, which ``Exchange`` has acted on before this code sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidegate.backends import BackendError, Response, TimedOut
from tidegate.classify import (
    CAP_FIELD,
    Classifier,
    ClientPriority,
    Facts,
    Headers,
    RawHeaders,
    Refused,
    Route,
    check_headers,
    check_json,
    parse_body,
    upstream_body,
    upstream_headers,
)
from tidegate.core import Lease, Outcome, Reason, Release, Ticket
from tidegate.gateway.asked import Asked
from tidegate.gateway.body import Receive, read_body, too_long
from tidegate.gateway.call import Call, Send
from tidegate.gateway.exchange import FAILED, Exchange
from tidegate.gateway.pools import Backend, Pools
from tidegate.gateway.protocol import ClientLink
from tidegate.gateway.refusing import Refuser
from tidegate.gateway.relay import Relayed, is_stream, look_at_whole, read_whole, relay_stream, whole_headers
from tidegate.gateway.requests import Ends
from tidegate.gateway.returning import Returning
from tidegate.runtime import Clock, Driver
from tidegate.telemetry import Recorder

TARGETS = {route: route.value.encode() for route in (Route.CHAT, Route.COMPLETIONS)}
"""Where each route is asked for upstream."""

SILENCE_S = 60.0
"""Silence of an answer after which its backend is asked whether it is still there."""


class Completions:
    """Answers the routes that run on a model. One for each gateway; holds the requests in progress."""

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
    ) -> None:
        self._max_body = max_body
        self._classifier = classifier
        self._driver = driver
        self._pools = pools
        self._refuser = refuser
        self._recorder = recorder
        self._clock = clock
        self._ends = ends
        self._returning = Returning()
        self._live: set[Exchange] = set()

    async def run(self, call: Call, route: Route, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request. Raises ``CancelledError`` when its client left."""
        headers: RawHeaders = scope["headers"]
        by_name = dict(headers)
        link: ClientLink = scope["state"]["link"]
        asked = await self._understand(call, route, headers, by_name, receive)
        if asked is None or link.gone:
            call.left()
        elif isinstance(asked, Refused):
            await self._refuser.early(call, send, asked, headers=by_name, link=link)
        else:
            try:
                await self._hold(call, asked, link, send)
            finally:
                self._ends.told(f"{asked.classified.tenant.name}/{asked.classified.request_id}")

    async def _hold(self, call: Call, asked: Asked, link: ClientLink, send: Send) -> None:
        with Exchange(self._driver, link) as exchange:
            self._live.add(exchange)
            try:
                await self._serve(call, asked, exchange, send)
            except asyncio.CancelledError:
                if exchange.stopped is None:
                    raise
                exchange.finish(FAILED, reason=exchange.stopped)
                await self._fail(call, send, asked, exchange.stopped, "the request was stopped")
            finally:
                self._live.discard(exchange)

    def stop_running(self, reason: Reason) -> None:
        """End every request in progress; each client gets an error."""
        for exchange in tuple(self._live):
            exchange.stop(reason)

    def check_silence(self, now: float) -> None:
        """End answers that are silent for longer than ``SILENCE_S`` and whose backend is not there any more.

        The backend of a silent answer is asked; as long as it replies, the answer keeps its seat (SPEC §15.10).
        ``now`` is the event loop's time, seconds.
        """
        for exchange in tuple(self._live):
            lease = exchange.lease
            if lease is None or now - exchange.heard_at <= SILENCE_S:
                continue
            backend = self._pools.backends[lease.backend]
            if backend.up:
                self._pools.doubt(backend)
            else:
                exchange.stop(Reason.UPSTREAM_TIMEOUT)

    async def _understand(
        self, call: Call, route: Route, headers: RawHeaders, by_name: Headers, receive: Receive
    ) -> Asked | Refused | None:
        """Read and classify. ``None``: the client left."""
        if (bad := check_headers(headers)) is not None:
            return bad
        tenant = self._classifier.identify(by_name)
        if isinstance(tenant, Refused):
            return tenant
        if (bad := check_json(by_name) or too_long(by_name, self._max_body)) is not None:
            return bad
        raw = await read_body(receive, self._max_body)
        if raw is None or isinstance(raw, Refused):
            return raw
        body = parse_body(raw, route)
        if isinstance(body, Refused):
            return body
        facts = Facts(route, route, by_name, raw, body, call.request_id, tenant)
        classified = self._classifier.classify(facts)
        if isinstance(classified, Refused):
            return classified
        call.classified = classified
        if classified.clamped:
            self._recorder.clamped(classified.band)
        return Asked(route, headers, raw, body, classified)

    async def _serve(self, call: Call, asked: Asked, exchange: Exchange, send: Send) -> None:
        classified = asked.classified
        tenant, key = classified.tenant.name, classified.idempotency_key
        first = self._returning.first_arrival(tenant, key, call.arrived)
        ticket = _ticket(call, asked, first)
        call.request_id = classified.request_id
        tries = self._pools.size(ticket.pool)
        while True:
            lease = await exchange.seat(ticket)
            if lease is None:
                assert exchange.refusal is not None
                reason, now = exchange.refusal.reason, self._clock.now()
                arrived = call.arrived if first is None else first
                self._returning.refused(tenant, key, reason, arrived=arrived, now=now)
                await self._refuser.refused(call, send, exchange.refusal, asked)
                return
            call.lease = lease
            self._refuser.storm.dispatched(lease.started)
            backend = self._pools.backends[lease.backend]
            try:
                response, start = await self._ask(asked, backend, lease, exchange)
            except BackendError as error:
                exchange.response = None
                tries -= 1
                reason = exchange.stopped or _reason(error)
                if exchange.stopped is None:
                    self._pools.failed(backend, error)
                exchange.finish(FAILED, reason=reason)
                if exchange.stopped is not None or tries <= 0 or not self._pools.has_another(backend):
                    await self._fail(call, send, asked, reason, str(error))
                    return
                ticket = replace(ticket, arrived=call.arrived if first is None else first)
            else:
                await self._relay(call, asked, exchange, response, start, send)
                return

    async def _ask(self, asked: Asked, backend: Backend, lease: Lease, exchange: Exchange) -> tuple[Response, bytes]:
        """Send the request; return the answer with its first piece, or with all of it if it is no stream."""
        classified, body = asked.classified, asked.body
        priority: int | ClientPriority | None = None
        if backend.send_priority:
            priority = backend.engine.priority_of(lease.band)
        if priority is None:
            priority = ClientPriority.KEEP if classified.tenant.trusted else ClientPriority.DROP
        content = upstream_body(
            asked.raw,
            body,
            model=classified.upstream_model,
            priority=priority,
            max_output_tokens=classified.max_output_tokens,
            cap_field=CAP_FIELD.get(asked.route),
        )
        headers = upstream_headers(asked.headers, request_id=lease.ticket.id, credential=backend.credential)
        exchange.asked()
        response = await backend.upstream.request(b"POST", TARGETS[asked.route], headers, content)
        exchange.response = response
        start = await response.read() if is_stream(response) else await read_whole(response)
        return response, start

    async def _relay(
        self, call: Call, asked: Asked, exchange: Exchange, response: Response, start: bytes, send: Send
    ) -> None:
        if is_stream(response):
            asked.let_go()
            relayed = await relay_stream(call, response, send, clock=self._clock, first=start)
            self._settle(call, asked, exchange, response, relayed)
            if relayed.error is not None:
                assert call.reason is not None
                event = self._refuser.event(call.reason, str(relayed.error), asked)
                await send({"type": "http.response.body", "body": event})
        else:
            relayed, content = look_at_whole(call, response, start, now=self._clock.now())
            self._settle(call, asked, exchange, response, relayed)
            headers = whole_headers(response, failed=relayed.failed) + call.headers(self._clock.now())
            await call.answer(send, response.status, headers, content)

    def _settle(self, call: Call, asked: Asked, exchange: Exchange, response: Response, relayed: Relayed) -> None:
        """Return the seat with what is known of the answer."""
        lease, used = exchange.lease, call.used
        exchange.response = None
        if relayed.failed:
            call.ended(Outcome.FAILED, exchange.stopped or _failure(response.status, relayed.error))
        else:
            call.ended(Outcome.COMPLETED)
        exchange.finish(Release(call.outcome, used.input_tokens, used.output_tokens), reason=call.reason)
        if lease is not None and relayed.error is not None and exchange.stopped is None:
            self._pools.doubt(self._pools.backends[lease.backend])
        if lease is not None and call.first_at is not None:
            self._recorder.first_byte(lease, call.first_at - call.arrived)
        if not relayed.failed:
            self._classifier.learn(asked.classified, input_tokens=used.input_tokens, output_tokens=used.output_tokens)

    async def _fail(self, call: Call, send: Send, asked: Asked, reason: Reason, detail: str) -> None:
        """Answer a request that got a seat and no answer."""
        call.ended(Outcome.FAILED, reason)
        if call.started:
            event = self._refuser.event(reason, detail, asked)
            await send({"type": "http.response.body", "body": event})
        else:
            await self._refuser.failed(call, send, reason, detail, asked)


def _ticket(call: Call, asked: Asked, arrived: float | None) -> Ticket:
    """The scheduler's view. Its id is ours, since clients may use one ``x-request-id`` many times."""
    classified = asked.classified
    return Ticket(
        id=call.request_id,
        pool=classified.pool,
        band=classified.band,
        tenant=classified.tenant.name,
        work=classified.work,
        flow=classified.flow,
        ttl_s=classified.ttl_s,
        deadline=None if classified.deadline_s is None else call.arrived + classified.deadline_s,
        arrived=arrived,
        size_bytes=len(asked.raw),
        name=classified.request_id,
        depends_on=classified.depends_on,
    )


def _reason(error: BackendError) -> Reason:
    return Reason.UPSTREAM_TIMEOUT if isinstance(error, TimedOut) else Reason.UPSTREAM_ERROR


def _failure(status: int, error: BackendError | None) -> Reason | None:
    """The row of a failed answer. A client's own mistake that the engine refused (4xx) has none."""
    if error is not None:
        return _reason(error)
    if status == 429:
        return Reason.UPSTREAM_BUSY
    return None if 400 <= status < 500 else Reason.UPSTREAM_ERROR
