"""Answers to what never reaches the application: whole, as bytes, and the last on their connection."""

from __future__ import annotations

import random
import secrets

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from tidegate.classify import Headers, answer_headers, language
from tidegate.core import Reason
from tidegate.refusals import Answer, Retry, answer_for, retry_headers, retry_seconds

NO_BAND = "none"
"""Band in the answer to a request that was refused before it had one."""

_PASSING = (408, 503)
"""What may go well the next time: a body that was too slow, a gateway with too many connections."""


def bare_answer(status: int, code: str, message: str, *, request_id: str = "") -> bytes:
    """Return an error in OpenAI's form with the headers that every answer carries.

    Args:
        status: HTTP status.
        code: the error's code, also its ``x-tidegate-reason``.
        message: for people.
        request_id: of the request, where it has one already.
    """
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-tidegate-reason", code.encode()),
        (b"x-should-retry", b"true" if status in _PASSING else b"false"),
        *answer_headers(request_id=request_id or f"req-{secrets.token_hex(8)}", band=NO_BAND, queue_s=0.0),
    ]
    if status == 503:
        headers += retry_headers(retry_seconds(Retry.SOON, None, jitter=random.random(), band=0))
    return rendered(Answer(status, headers, body))


def draining(headers: Headers, request_id: str) -> Answer:
    """Refuse a request that the gateway's end has overtaken before anything has judged it."""
    return answer_for(
        Reason.DRAINING,
        jitter=random.random(),
        band_name=NO_BAND,
        request_id=request_id or f"req-{secrets.token_hex(8)}",
        language=language(headers),
    )


def rendered(answer: Answer) -> bytes:
    """Return an answer's bytes, with the word that the connection ends."""
    headers = (*answer.headers, (b"connection", b"close"))
    return STATUS_LINE[answer.status] + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n" + answer.body
