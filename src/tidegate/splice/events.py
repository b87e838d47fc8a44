"""Cut a stream of server-sent events, and read the ones that carry an answer's pieces. Pure.

An event ends with an empty line; a line ends with LF, CRLF or CR (WHATWG HTML, "Server-sent events", 9.2.5).
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

DONE = b"[DONE]"

# Atomic, so that CRLF is never taken for two line ends.
_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")

ABSENT = Raw()


class Delta(msgspec.Struct, gc=False):
    """What a chat event adds. ``reasoning`` is named differently by engines."""

    role: str | None = None
    content: str | None = None
    tool_calls: Raw = ABSENT
    function_call: Raw = ABSENT
    reasoning: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice of an event, of chat (``delta``) or of completions (``text``)."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: Raw = ABSENT


class Cached(msgspec.Struct, gc=False):
    """``usage.prompt_tokens_details``."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Tokens as an engine tells them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Cached | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event of an answer."""

    id: str = ""
    created: Raw = ABSENT
    model: Raw = ABSENT
    system_fingerprint: Raw = ABSENT
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Raw = ABSENT
    object: str = ""


_chunks = msgspec.json.Decoder(Chunk)


def cut(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole events of ``data``, each with the empty line that ends it, and what is left."""
    events = []
    start = 0
    for end in _END.finditer(data):
        if end.end() == len(data) and data.endswith(b"\r"):
            break  # its LF may be on its way
        events.append(data[start : end.end()])
        start = end.end()
    return events, data[start:]


def payload_of(event: bytes) -> bytes | None:
    """Return the data of an event, ``None`` for one without (a comment)."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def read_chunk(payload: bytes) -> Chunk:
    """Read the data of an event.

    Raises:
        msgspec.MsgspecError: it has another shape.
    """
    return _chunks.decode(payload)


def tells_failure(event: bytes) -> bool:
    """Say whether an event tells that the answer will not be finished.

    Engines send ``{"error": …}``; vLLM ends an answer that it gives up with ``finish_reason: "abort"``.
    """
    if any(line.startswith((b"event: error", b"event:error", b"error:")) for line in event.splitlines()):
        return True
    payload = payload_of(event)
    if payload is None or payload == DONE:
        return False
    try:
        chunk = read_chunk(payload)
    except msgspec.MsgspecError:
        return False
    failed = bytes(chunk.error) not in (b"", b"null") or chunk.object == "error"
    return failed or any(choice.finish_reason == "abort" for choice in chunk.choices)
