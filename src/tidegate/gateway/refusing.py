"""Answer those who are refused: which row, which words, error or fallback. It only joins values; nothing is looked up.

A storm is when more was refused than dispatched in about the last second (SPEC §15.19); then official clients of the
lower bands are told not to come back by themselves.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec

from tidegate.classify import Classified, Headers, RawHeaders, Refused, Route, fallback_allowed, language
from tidegate.config import WILDCARD, Settings, ShedAnswer, ShedModel
from tidegate.core import Outcome, Reason, Reject
from tidegate.gateway.asked import Asked
from tidegate.gateway.bare import NO_BAND
from tidegate.gateway.body import must_end
from tidegate.gateway.call import Call, Send
from tidegate.gateway.link import ClientLink
from tidegate.refusals import Answer, Fallbacks, Storm, answer_for, error_event
from tidegate.runtime import Clock, Refusal
from tidegate.telemetry import Recorder

SLOT_S = 0.25
SLOTS = 4


class StormWatch:
    """Counts refusals less dispatches over the last ``SLOTS`` slots."""

    __slots__ = ("_balance", "_ends", "_place", "_slot")

    def __init__(self) -> None:
        self._slot = self._place = 0
        self._ends = SLOT_S
        self._balance = [0] * SLOTS

    def dispatched(self, now: float) -> None:
        if now < self._ends:
            self._balance[self._place] -= 1
        else:
            self._count(now, -1)

    def refused(self, now: float) -> None:
        self._count(now, 1)

    def at(self, now: float) -> Storm:
        """Say whether it storms."""
        self._count(now, 0)
        return Storm.STORM if sum(self._balance) > 0 else Storm.CALM

    def _count(self, now: float, value: int) -> None:
        slot = int(now / SLOT_S)
        if slot != self._slot:
            for passed in range(self._slot + 1, min(slot, self._slot + SLOTS) + 1):
                self._balance[passed % SLOTS] = 0
            self._slot, self._place = slot, slot % SLOTS
            self._ends = (slot + 1) * SLOT_S
        self._balance[self._place] += value


class Refuser:
    """Writes refusals to clients and notes them in the call."""

    def __init__(self, settings: Settings, recorder: Recorder, clock: Clock) -> None:
        self._max_body = settings.gateway.max_body
        self._recorder = recorder
        self._clock = clock
        self._jitter = random.Random()
        self.storm = StormWatch()
        self.obey(settings)

    def obey(self, settings: Settings) -> None:
        """Take other settings: which bands have a fallback answer, and its words."""
        self._fallbacks = Fallbacks(settings)
        self._instead = tuple(_other_model(settings, band.shed_answer) for band in settings.policy.bands.values())
        self._with_fallback = tuple(band.shed_answer is ShedAnswer.FALLBACK for band in settings.policy.bands.values())

    async def early(
        self,
        call: Call,
        send: Send,
        refused: Refused,
        *,
        headers: Headers,
        link: ClientLink,
        extra: RawHeaders | None = None,
    ) -> None:
        """Refuse what never became a ticket."""
        now = self._clock.now()
        self._recorder.refused(refused.reason, tenant=call.tenant)
        call.ended(Outcome.REJECTED, refused.reason)
        answer = answer_for(
            refused.reason,
            detail=refused.detail,
            param=refused.param,
            status=refused.status,
            code=refused.code,
            jitter=self._jitter.random(),
            band_name=NO_BAND if call.classified is None else call.classified.band_name,
            request_id=call.request_id,
            queue_s=now - call.arrived,
            language=language(headers),
        )
        answer.headers += extra or ()
        self._note(call, refused.reason, now, answer)
        link.last = must_end(headers, self._max_body)
        await _send(call, send, answer)

    async def refused(self, call: Call, send: Send, action: Refusal, asked: Asked) -> None:
        """Say what the scheduler decided: an error, or for plain chat that is shed the band's fallback."""
        now = self._clock.now()
        self.storm.refused(now)
        call.ended(Outcome.REJECTED if isinstance(action, Reject) else Outcome.EVICTED, action.reason)
        band = asked.classified.band
        if action.reason is Reason.SHED and self._with_fallback[band] and not call.begun and _is_plain(asked):
            answer = self._fallback(call, action, asked, now)
            self._note(call, action.reason, now, answer)
            await _send(call, send, answer)
        elif call.started:
            self._note(call, action.reason, now, None)
            await send({"type": "http.response.body", "body": self.event(action.reason, action.detail, asked)})
        else:
            answer = self._answer(
                call, asked, action.reason, now, detail=action.detail, retry_after_s=action.retry_after_s
            )
            self._note(call, action.reason, now, answer)
            await _send(call, send, answer)

    def instead(self, call: Call, refusal: Refusal, classified: Classified) -> Classified | None:
        """Give the request as it is for the model that answers what is shed here; ``None``: there is no such model."""
        other = self._instead[classified.band]
        if other is None or refusal.reason is not Reason.SHED or other.pool == classified.pool or call.begun:
            return None
        return classified.instead(other.pool, other.name)

    async def failed(self, call: Call, send: Send, reason: Reason, detail: str, asked: Asked) -> None:
        """Answer a request that had a seat and got nothing from its backend."""
        now = self._clock.now()
        answer = self._answer(call, asked, reason, now, detail=detail)
        self._note(call, reason, now, answer)
        await _send(call, send, answer)

    def past(self, call: Call, status: int) -> None:
        """Note that the connection itself has refused a request.

        Its body was too slow or no body at all or, with a ``status`` of 503, the gateway ends.
        """
        reason = Reason.DRAINING if status == 503 else Reason.BAD_REQUEST
        self._recorder.refused(reason, tenant=call.tenant)
        call.status = status
        call.ended(Outcome.REJECTED, reason)

    async def fault(self, call: Call, send: Send) -> None:
        """Answer where the gateway itself failed."""
        call.ended(Outcome.FAILED)
        error = {"message": "The gateway failed; see its log.", "type": "server_error", "param": None, "code": "fault"}
        headers = [(b"content-type", b"application/json"), *call.headers(self._clock.now())]
        await call.answer(send, 500, headers, msgspec.json.encode({"error": error}))

    def event(self, reason: Reason, detail: str, asked: Asked) -> bytes:
        """Give the event that ends a stream which cannot be finished."""
        typed = asked.route not in (Route.CHAT, Route.COMPLETIONS)
        return error_event(reason, detail=detail, language=asked.classified.language, typed=typed)

    def _note(self, call: Call, reason: Reason, now: float, answer: Answer | None) -> None:
        """Keep what the client is told for the person on duty; ``None``: an event in a stream that has begun."""
        classified = call.classified
        self._recorder.recent.note(
            now,
            call.request_id,
            tenant="" if classified is None else classified.tenant.name,
            band="" if classified is None else classified.band_name,
            model="" if classified is None else classified.pool,
            reason=reason,
            status=call.status if answer is None else answer.status,
            headers=() if answer is None else answer.headers,
        )

    def _answer(
        self,
        call: Call,
        asked: Asked,
        reason: Reason,
        now: float,
        *,
        detail: str,
        retry_after_s: float | None = None,
    ) -> Answer:
        classified = asked.classified
        return answer_for(
            reason,
            detail=detail,
            retry_after_s=retry_after_s,
            jitter=self._jitter.random(),
            band=classified.band,
            band_name=classified.band_name,
            request_id=call.request_id,
            queue_s=call.queue_s(now),
            language=classified.language,
            storm=self.storm.at(now),
        )

    def _fallback(self, call: Call, action: Refusal, asked: Asked, now: float) -> Answer:
        classified = asked.classified
        created = int(self._clock.utc_now().timestamp())
        jitter, queue_s = self._jitter.random(), call.queue_s(now)
        if asked.body.stream:
            return self._fallbacks.streamed(
                band=classified.band,
                language=classified.language,
                request_id=call.request_id,
                created=created,
                model=classified.model or classified.pool,
                usage=asked.body.wants_usage,
                tier=classified.tier,
                retry_after_s=action.retry_after_s,
                jitter=jitter,
                queue_s=queue_s,
            )
        return self._fallbacks.plain(
            band=classified.band,
            language=classified.language,
            request_id=call.request_id,
            created=created,
            model=classified.model or classified.pool,
            tier=classified.tier,
            retry_after_s=action.retry_after_s,
            jitter=jitter,
            queue_s=queue_s,
        )


def _is_plain(asked: Asked) -> bool:
    return fallback_allowed(asked.body, asked.route) if asked.plain is None else asked.plain


@dataclass(slots=True, frozen=True)
class _Other:
    """A model that answers what is shed of another."""

    pool: str
    name: str


def _other_model(settings: Settings, answer: ShedAnswer | ShedModel) -> _Other | None:
    if not isinstance(answer, ShedModel):
        return None
    for model in settings.models:
        if answer.model == model.name or answer.model in model.aliases:
            return _Other(model.pool, model.name)
    wild = next((model for model in settings.models if model.name == WILDCARD), None)
    return None if wild is None else _Other(wild.pool, answer.model)


async def _send(call: Call, send: Send, answer: Answer) -> None:
    if call.started:  # the stream of a fallback, after signs of life
        await send({"type": "http.response.body", "body": answer.body})
        return
    call.status = answer.status
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})
