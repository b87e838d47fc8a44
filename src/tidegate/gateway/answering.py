"""From the beginning of a backend's answer to the end of the request: to the client, and to everybody who counts."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from tidegate.backends import BackendError, Response, TimedOut
from tidegate.classify import Classifier, RawHeaders, downstream_headers, unmeasured_headers
from tidegate.core import Began, Outcome, Reason, Release, Requeue
from tidegate.gateway.asked import Asked
from tidegate.gateway.beginning import Beginning
from tidegate.gateway.call import Call, Send
from tidegate.gateway.exchange import Exchange, outcome_for
from tidegate.gateway.link import ClientLink
from tidegate.gateway.pools import Backend, Pools
from tidegate.gateway.refusing import Refuser
from tidegate.gateway.relay import Relayed, as_event, failed_headers, look_at_whole, relay_stream, send_head
from tidegate.gateway.resuming import Client, Resuming, run_leg
from tidegate.gateway.tries import Cut, Tries
from tidegate.gateway.watch import BytesWatch, StreamWatch, with_tier
from tidegate.runtime import Clock, Driver
from tidegate.splice import BROKEN, PREEMPTED
from tidegate.telemetry import Recorder

_COMPLETED: Final = Outcome.COMPLETED
_OF_A_STREAM: Final = (b"content-length", b"content-type", b"cache-control", b"x-accel-buffering")


class Answering:
    """Passes answers on, and settles what they used. One for each gateway."""

    def __init__(
        self,
        *,
        classifier: Classifier,
        driver: Driver,
        pools: Pools,
        refuser: Refuser,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._classifier = classifier
        self._driver = driver
        self._pools = pools
        self._refuser = refuser
        self._recorder = recorder
        self._clock = clock
        self._now = clock.now

    def relay(
        self, call: Call, asked: Asked, exchange: Exchange, tries: Tries, beginning: Beginning, send: Send
    ) -> Coroutine[Any, Any, Requeue | Cut | None] | None:
        """Pass an answer on. ``None``: all of it has gone out, as a whole answer does where its client keeps up.

        Otherwise what passes it on gives how to go on with it when it was cut, ``None`` when the request has ended.
        """
        if tries.resuming is not None:
            if beginning.watch is not None:
                return self._relay_leg(call, asked, exchange, tries, beginning, send)
            if tries.carries:
                detail = f"the engine did not go on with the answer: status {beginning.response.status}"
                return self._break_off(call, asked, exchange, tries, detail, send)
        if beginning.watch is None:
            return self._relay_whole(call, asked, exchange, beginning, send)
        tries.begun = True
        return self._relay_stream(call, asked, exchange, beginning.response, beginning.start, beginning.watch, send)

    async def _relay_stream(
        self, call: Call, asked: Asked, exchange: Exchange, response: Response, start: bytes, watch: StreamWatch,
        send: Send,
    ) -> None:  # fmt: skip
        asked.let_go()
        exchange.used = watch.used
        self.began(exchange)
        relayed = await relay_stream(
            call, response, send, client=_link(exchange), clock=self._clock, first=start, watch=watch
        )
        self._settle(call, asked, exchange, response, relayed)
        if relayed.error is not None and isinstance(watch, BytesWatch):
            call.broken = True
        elif relayed.error is not None:
            assert call.reason is not None
            self._recorder.not_resumed(BROKEN)
            event = self._refuser.event(call.reason, str(relayed.error), asked)
            await send({"type": "http.response.body", "body": event})

    def _relay_whole(
        self, call: Call, asked: Asked, exchange: Exchange, beginning: Beginning, send: Send
    ) -> Coroutine[Any, Any, None] | None:
        response, now = beginning.response, self._now()
        relayed, content = look_at_whole(call, response, beginning.start, now=now)
        self._settle(call, asked, exchange, response, relayed)
        if call.started:
            return _end(send, as_event(content))
        headers = failed_headers(response) if relayed.failed else unmeasured_headers(response.headers)
        headers += call.headers(now)
        if call.reason is not None:
            headers.append((b"x-tidegate-reason", call.reason.encode()))
        call.status = response.status
        link = exchange.link
        if link is not None and link.answer(response.status, headers, content):
            return None
        return call.answer(send, response.status, headers, content)

    # Answers that can go on.

    async def _relay_leg(
        self, call: Call, asked: Asked, exchange: Exchange, tries: Tries, beginning: Beginning, send: Send
    ) -> Requeue | Cut | None:
        resuming, response, watch = tries.resuming, beginning.response, beginning.watch
        assert resuming is not None
        assert watch is not None
        stream = resuming.splice.wish.stream
        if stream and not call.started:
            await send_head(call, response, send)
        if call.first_at is None:
            call.first_at = self._now()
        tries.begun = True
        self.began(exchange)
        client = _client(send, _link(exchange)) if stream else None
        first_leg = not resuming.carries
        exchange.used = watch.used if first_leg and stream else resuming.used
        error = await run_leg(response, beginning.start, resuming, watch, client, self._clock)
        if error is not None and not resuming.splice.complete:
            again = self.go_on(exchange, tries, error)
            if again is None:
                await self._break_off(call, asked, exchange, tries, str(error), send)
            return again
        call.used = watch.used() if first_leg and stream and error is None else resuming.used()
        if stream:
            plain = first_leg and error is None
            end = resuming.splice.rest() if plain else resuming.splice.close()
            await send({"type": "http.response.body", "body": end})
        self._settle(call, asked, exchange, response, Relayed())
        if not stream:
            await self._answer_whole(call, asked, response, resuming, send)
        return None

    def go_on(self, exchange: Exchange, tries: Tries, error: BackendError) -> Requeue | Cut | None:
        """Say how to go on with an answer that was cut; ``None``: it cannot."""
        resuming, lease, now = tries.resuming, exchange.lease, self._now()
        assert resuming is not None
        if exchange.cut:
            return Cut.CUT if resuming.cut(PREEMPTED, now) is None else None
        if exchange.stopped is not None or lease is None:
            return None
        self._pools.broke(lease.backend, str(error))
        backend = self._pools.backends.get(lease.backend)
        if resuming.left <= 0 or backend is None or not tries.elsewhere(self._pools, backend):
            return None
        if resuming.cut(BROKEN, now) is not None:
            return None
        resuming.left -= 1
        return Requeue(avoid=True, reason=exchange.lost or reason_of(error), begun=True)

    async def _answer_whole(self, call: Call, asked: Asked, response: Response, resuming: Resuming, send: Send) -> None:
        body = resuming.splice.whole()
        tier = asked.classified.tier
        headers: RawHeaders = [item for item in downstream_headers(response.headers) if item[0] not in _OF_A_STREAM]
        headers += [(b"content-type", b"application/json"), *call.headers(self._now())]
        await call.answer(send, 200, headers, body if tier is None else with_tier(body, tier))

    async def _break_off(
        self, call: Call, asked: Asked, exchange: Exchange, tries: Tries, detail: str, send: Send
    ) -> None:
        """End a request whose answer has begun and cannot go on."""
        resuming = tries.resuming
        assert resuming is not None
        if exchange.response is not None:
            exchange.response.abort()
        exchange.response = None
        if exchange.cut:
            reason = Reason.PREEMPTED
        else:
            reason = exchange.stopped or exchange.lost or Reason.UPSTREAM_ERROR
        call.used = used = resuming.used()
        exchange.end(Release(outcome_for(reason), used.input_tokens, used.output_tokens), reason)
        self._recorder.not_resumed(PREEMPTED if exchange.cut else resuming.seam or BROKEN)
        resuming.ended()
        await self.fail(call, send, asked, reason, detail)

    def began(self, exchange: Exchange) -> None:
        """Tell the scheduler that tokens come, where that matters to it."""
        lease = exchange.lease
        if lease is not None and lease.ticket.stoppable:
            self._driver.observe(Began(lease.id))

    # The end.

    def _settle(self, call: Call, asked: Asked, exchange: Exchange, response: Response, relayed: Relayed) -> None:
        """Return the seat with what is known of the answer."""
        lease, used, failed = exchange.lease, call.used, relayed.failed
        exchange.response = None
        if failed:
            reason = exchange.stopped or exchange.lost or _failure(response.status, relayed.error)
            call.ended(outcome_for(reason), reason)
        else:
            call.ended(_COMPLETED)
        if lease is not None:
            ttft_s, tpot_s = call.pace(lease.started, self._now())
            exchange.finish(
                Release(call.outcome, used.input_tokens, used.output_tokens, ttft_s, tpot_s), reason=call.reason
            )
            if call.first_at is not None:
                if failed and exchange.stopped is None:
                    self._pools.broke(lease.backend, str(relayed.error or "an error within a stream"))
                self._recorder.first_byte(lease, call.first_at - call.arrived)
        if not failed:
            self._classifier.learn(asked.classified, input_tokens=used.input_tokens, output_tokens=used.output_tokens)

    async def unanswered(
        self, call: Call, asked: Asked, exchange: Exchange, tries: Tries, backend: Backend, error: BackendError,
        send: Send,
    ) -> Requeue | Cut | None:  # fmt: skip
        """Say how to go on without an answer, or tell the client that there is none."""
        exchange.response = None
        if exchange.cut:
            return Cut.CUT
        reason = exchange.stopped or exchange.lost or reason_of(error)
        if exchange.stopped is None:
            self._pools.unanswered(backend, error)
            if tries.elsewhere(self._pools, backend):
                return Requeue(avoid=True, reason=reason)
        exchange.finish(Release(outcome_for(reason)), reason=reason)
        await self.fail(call, send, asked, reason, str(error))
        return None

    async def fail(self, call: Call, send: Send, asked: Asked, reason: Reason, detail: str) -> None:
        """Answer a request that got a seat and no answer, or no end of it."""
        call.ended(outcome_for(reason), reason)
        if call.started:
            event = self._refuser.event(reason, detail, asked)
            await send({"type": "http.response.body", "body": event})
        else:
            await self._refuser.failed(call, send, reason, detail, asked)


def _link(exchange: Exchange) -> ClientLink:
    link = exchange.link
    assert link is not None  # rows of batch jobs, which have none, do not come here
    return link


async def _end(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body})


def _client(send: Send, link: ClientLink) -> Client:
    async def piece(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    return Client(piece, link.pass_on)


def reason_of(error: BackendError) -> Reason:
    """The row of an upstream's failure."""
    return Reason.UPSTREAM_TIMEOUT if isinstance(error, TimedOut) else Reason.UPSTREAM_ERROR


def _failure(status: int, error: BackendError | None) -> Reason | None:
    """The row of a failed answer. A client's own mistake that the engine refused (4xx) has none."""
    if error is not None:
        return reason_of(error)
    if status == 429:
        return Reason.UPSTREAM_BUSY
    return None if 400 <= status < 500 else Reason.UPSTREAM_ERROR
