"""The lines of output and error files, as OpenAI writes them. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.stores import FinalRecord, RecordKind

_MESSAGES: Final = {
    RecordKind.CANCELLED: "The batch was cancelled before this request was answered.",
    RecordKind.EXPIRED: "The batch expired before this request was answered.",
}


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Line(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None = None
    error: _Error | None = None


_encoder = msgspec.json.Encoder()


def one_line(body: bytes) -> bytes:
    """Give a body as JSON on one line; what is no JSON becomes a JSON string."""
    if b"\n" not in body and b"\r" not in body and body[:1] == b"{" and body[-1:] == b"}" and _is_json(body):
        return body
    try:
        body.decode()
        return msgspec.json.format(body, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(body.decode(errors="replace"))


def _is_json(body: bytes) -> bool:
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def line_of(batch_id: str, record: FinalRecord) -> bytes:
    """Write the line of a record, with its line end."""
    answer = record.answer
    line = _Line(f"batch_req_{batch_id.removeprefix('batch_')}_{record.line}", record.custom_id)
    if record.kind in _MESSAGES:
        line.error = _Error(record.kind.value, _MESSAGES[record.kind])
    elif answer.status is not None:
        line.response = _Response(answer.status, answer.request_id or "", msgspec.Raw(answer.body or b"null"))
    else:
        line.error = _Error(answer.code or "upstream_error", answer.message or "")
    return _encoder.encode(line) + b"\n"


def is_output(record: FinalRecord) -> bool:
    """Whether a record goes to the output file; all others go to the error file."""
    return record.kind is RecordKind.COMPLETED
