"""The fallback answer: a normal completion that says that the service is busy (SPEC §6).

Everything but id, time, model and tier is built at start-up, per band and language, so that an answer is a handful of
joined bytes. The caller asks ``classify.fallback_allowed`` first: only plain chat gets this answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tidegate.core import Reason
from tidegate.refusals.answer import Answer, retry_headers, retry_seconds
from tidegate.refusals.table import TABLE

if TYPE_CHECKING:
    from tidegate.config import Settings

MESSAGES = {
    "zh": "当前咨询人数较多，服务繁忙，您的请求暂时未能处理，请稍后再试。",
    "en": "We are receiving a lot of requests right now and could not process yours. Please try again in a moment.",
}
"""What a band without a message of its own says."""

_DONE = b"data: [DONE]\n\n"
_NO_USAGE = b'{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}'
_REASON = (b"x-tidegate-reason", Reason.SHED.encode())


@dataclass(slots=True, frozen=True)
class _Parts:
    """What follows ``model`` in the answer, and in each chunk of a streamed one."""

    answer: bytes
    first: bytes
    last: bytes


class Fallbacks:
    """Fallback answers of all bands. Built once from the settings."""

    def __init__(self, settings: Settings) -> None:
        reason = msgspec.json.encode(settings.gateway.fallback_finish_reason)
        self._names = tuple(name.encode() for name in settings.band_names)
        self._parts = tuple(
            {
                "zh": _parts(band.message.zh or MESSAGES["zh"], reason),
                "en": _parts(band.message.en or MESSAGES["en"], reason),
            }
            for band in settings.policy.bands.values()
        )

    def plain(
        self,
        *,
        band: int,
        language: str,
        request_id: str,
        created: int,
        model: str,
        tier: str | None = None,
        retry_after_s: float | None = None,
        jitter: float = 0.5,
        queue_s: float = 0.0,
    ) -> Answer:
        """Return a ``chat.completion``.

        Args:
            band: index of the band.
            language: ``zh`` or ``en``.
            request_id: becomes the completion's id, and ``x-request-id``.
            created: Unix time, whole seconds.
            model: the name that the client asked for.
            tier: service tier to report, ``None`` when the request had none.
            retry_after_s: see ``answer_for``.
            jitter: see ``answer_for``.
            queue_s: see ``answer_for``; what a mode sheds may have waited.
        """
        head = _head(b"chat.completion", request_id, created, model=model, tier=tier)
        body = head + self._parts[band][language].answer
        headers = self._headers(band, request_id, retry_after_s, jitter=jitter, queue_s=queue_s)
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        return Answer(200, headers, body)

    def streamed(
        self,
        *,
        band: int,
        language: str,
        request_id: str,
        created: int,
        model: str,
        usage: bool = False,
        tier: str | None = None,
        retry_after_s: float | None = None,
        jitter: float = 0.5,
        queue_s: float = 0.0,
    ) -> Answer:
        """Return a whole event stream that ends with ``[DONE]``.

        Args:
            usage: the client asked for the chunk that tells the usage.

        The other arguments are those of ``plain``.
        """
        parts = self._parts[band][language]
        head = b"data: " + _head(b"chat.completion.chunk", request_id, created, model=model, tier=tier)
        pieces = [head, parts.first, b"\n\n", head, parts.last, b"\n\n"]
        if usage:
            pieces += [head, b',"choices":[],"usage":', _NO_USAGE, b"}\n\n"]
        body = b"".join((*pieces, _DONE))
        headers = self._headers(band, request_id, retry_after_s, jitter=jitter, queue_s=queue_s)
        headers += [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        return Answer(200, headers, body)

    def _headers(
        self, band: int, request_id: str, retry_after_s: float | None, *, jitter: float, queue_s: float
    ) -> list[tuple[bytes, bytes]]:
        return [
            _REASON,
            *retry_headers(retry_seconds(TABLE[Reason.SHED].retry, retry_after_s, jitter=jitter, band=band)),
            (b"x-request-id", request_id.encode("latin-1", "replace")),
            (b"x-tidegate-band", self._names[band]),
            (b"x-tidegate-queue-ms", b"%d" % max(0, round(queue_s * 1000))),
        ]


def _head(kind: bytes, request_id: str, created: int, *, model: str, tier: str | None) -> bytes:
    encode = msgspec.json.encode
    head = b'{"id":%b,"object":"%b","created":%d,"model":%b' % (
        encode("chatcmpl-" + request_id),
        kind,
        created,
        encode(model),
    )
    return head if tier is None else head + b',"service_tier":' + encode(tier)


def _parts(message: str, reason: bytes) -> _Parts:
    text = msgspec.json.encode(message)
    return _Parts(
        answer=b',"choices":[{"index":0,"message":{"role":"assistant","content":%b,"refusal":null},'
        b'"logprobs":null,"finish_reason":%b}],"usage":%b}' % (text, reason, _NO_USAGE),
        first=b',"choices":[{"index":0,"delta":{"role":"assistant","content":%b},"logprobs":null,'
        b'"finish_reason":null}]}' % text,
        last=b',"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":%b}]}' % reason,
    )
