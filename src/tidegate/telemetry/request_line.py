"""What the log, and whoever traces, is told of one finished request.

In a module of its own, which stays Python: msgspec reads the annotations.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class RequestLine(msgspec.Struct, omit_defaults=True, kw_only=True, tag_field="event", tag="request", gc=False):
    """What is written of one finished request. What is ``None`` is left out.

    Attributes:
        at_utc: end of the request.
        level: ``info``, or ``warning`` for what the person on duty should see.
        request_id: as answered in ``x-request-id``.
        status: HTTP status that the client got, 499 when it left.
        outcome: how the ticket ended.
        reason: row of the refusal table when it did not complete.
        queue_ms: wait for a seat, milliseconds.
        ttft_ms: from arrival to the first byte of the answer, milliseconds.
        total_ms: from arrival to the end, milliseconds.
        row: for a row of a batch, its batch and line: ``batch_0f3a.17``.
    """

    at_utc: datetime
    level: str
    request_id: str
    status: int
    outcome: str
    reason: str | None = None
    tenant: str | None = None
    band: str | None = None
    model: str | None = None
    backend: str | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    row: str | None = None
