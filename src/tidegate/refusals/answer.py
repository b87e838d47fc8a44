"""Turn a reason into an answer: status, headers, body. Pure tables: no store, no template, no lock.

A refusal must cost almost nothing, for it is given most when there is least time. Those who are told to come back
are spread out, since a thousand clients refused in one second would otherwise return in one second: OpenAI's clients
obey the hint to the millisecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import msgspec

from tidegate.core import Reason
from tidegate.refusals.table import TABLE, Retry, Row

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""Official clients ignore longer hints, or obey them blindly."""

SPREAD_S = 30.0
"""How far apart refused work of lower bands comes back: thirty different whole seconds."""


class Storm(Enum):
    """Whether refusals in the last second exceeded dispatches (SPEC §15.19)."""

    CALM = "calm"
    STORM = "storm"


@dataclass(slots=True)
class Answer:
    """A whole HTTP answer; header names are lower case."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def answer_for(
    reason: Reason,
    *,
    detail: str = "",
    param: str | None = None,
    status: int | None = None,
    code: str | None = None,
    retry_after_s: float | None = None,
    jitter: float = 0.5,
    band: int = 0,
    band_name: str = "",
    request_id: str = "",
    queue_s: float = 0.0,
    language: str = "en",
    storm: Storm = Storm.CALM,
) -> Answer:
    """Return the answer to a refused request.

    Args:
        reason: row of the table.
        detail: what was expected, what came, which limit; follows the row's sentence.
        param: the field or header that is meant.
        status: another status than the row's.
        code: another ``error.code`` than the row's.
        retry_after_s: work ahead over the measured drain rate, seconds; ``None`` when unknown.
        jitter: a random number from 0 to below 1, fresh for each answer.
        band: index of the band, 0 is the highest.
        band_name: its name; empty when the request was refused before it had one.
        request_id: goes back in ``x-request-id``.
        queue_s: how long the request waited, seconds.
        language: ``zh`` or ``en``.
        storm: in a storm, official clients of all bands below the highest are told not to retry.
    """
    row = TABLE[reason]
    body = error_body(reason, detail=detail, param=param, code=code, language=language)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-tidegate-reason", reason.encode()),
        (b"x-tidegate-queue-ms", b"%d" % max(0, round(queue_s * 1000))),
        (b"x-should-retry", b"true" if _should_retry(row, band, storm) else b"false"),
    ]
    if row.retry is not Retry.NEVER:
        headers += retry_headers(retry_seconds(row.retry, retry_after_s, jitter=jitter, band=band))
    if request_id:
        headers.append((b"x-request-id", request_id.encode("latin-1", "replace")))
    if band_name:
        headers.append((b"x-tidegate-band", band_name.encode()))
    if row.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return Answer(status if status is not None else row.status, headers, body)


def error_body(
    reason: Reason, *, detail: str = "", param: str | None = None, code: str | None = None, language: str = "en"
) -> bytes:
    """Return OpenAI's error body for a reason; ``code`` is another one than the row's."""
    row = TABLE[reason]
    message = row.zh if language == "zh" else row.en
    if detail:
        message = f"{message} ({detail})"
    return msgspec.json.encode(
        {"error": {"message": message, "type": row.type, "param": param, "code": code or row.code}}
    )


def error_event(reason: Reason, *, detail: str = "", language: str = "en", typed: bool = False) -> bytes:
    """Return the one event that ends a stream which cannot be finished; no ``[DONE]`` may follow.

    Args:
        reason: row of the table.
        detail: as in ``answer_for``.
        language: ``zh`` or ``en``.
        typed: for streams whose events have names (Responses, Messages), whose clients pass over one without.

    The leading line end closes an event that the upstream may have left half sent, so that this one is read.
    """
    body = error_body(reason, detail=detail, language=language)
    if typed:
        return b'\n\nevent: error\ndata: {"type":"error",' + body[1:] + b"\n\n"
    return b"\n\ndata: " + body + b"\n\n"


def retry_seconds(retry: Retry, retry_after_s: float | None, *, jitter: float, band: int) -> float:
    """Return when to come back, in seconds up to 60: the computed wait, spread by ``jitter``.

    Refused work below the highest band is spread over 30 s beyond the computed wait, or over the last 30 s below the
    limit when the wait is longer. The highest band, and refusals that are no overload, are spread over a quarter of
    the wait, at least a second: they are few, and their wait is known better.
    """
    wait = MIN_RETRY_S if retry_after_s is None else max(retry_after_s, MIN_RETRY_S)
    spread = SPREAD_S if retry is Retry.OVERLOAD and band > 0 else min(max(1.0, wait / 4), SPREAD_S)
    return min(wait, MAX_RETRY_S - spread) + jitter * spread


def retry_headers(seconds: float) -> list[tuple[bytes, bytes]]:
    """Return ``retry-after`` in whole seconds, rounded up, and ``retry-after-ms``, which official clients prefer."""
    ms = round(min(max(seconds, MIN_RETRY_S), MAX_RETRY_S) * 1000)
    return [(b"retry-after", b"%d" % math.ceil(ms / 1000)), (b"retry-after-ms", b"%d" % ms)]


def _should_retry(row: Row, band: int, storm: Storm) -> bool:
    return row.retry is not Retry.NEVER and (storm is Storm.CALM or band == 0)
