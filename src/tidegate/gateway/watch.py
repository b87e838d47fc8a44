"""What the gateway needs to know of an answer that passes through: did it fail, when did content begin, what was used.

Streams are searched for a few bytes, never parsed: at 200 pieces an answer, a JSON parse of each would cost more than
all else. Whole answers are decoded once, and only the fields named here. Nothing here changes a byte, but for
``with_tier``, which is for whole answers only: a stream goes through unchanged (SPEC §1.5).
"""

from __future__ import annotations

import re

import msgspec

from tidegate.backends import stream_error

_KEEP = 4096
"""Most bytes of an unfinished line that are kept to find what was cut between two pieces."""

_EVENTS_ASIDE = 2

_CONTENT = re.compile(rb'"(?:content|text|reasoning|reasoning_content|refusal)"\s*:\s*"[^"]|"tool_calls"\s*:\s*\[')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Whole(msgspec.Struct):
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    object: str | None = None


class Used(msgspec.Struct, frozen=True, gc=False):
    """Tokens that the engine used as far as it showed them; ``None`` where it did not."""

    input_tokens: int | None = None
    output_tokens: int | None = None


NOTHING = Used()
_usage_decoder = msgspec.json.Decoder(_Usage)
_whole_decoder = msgspec.json.Decoder(_Whole)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class StreamWatch:
    """Follows one event stream piece by piece.

    Attributes:
        content: whether a piece with generated content has passed.
        failed: whether an error event has passed (the client has been told; nothing may follow it).
    """

    __slots__ = ("_events", "_last", "_partial", "_usage", "content", "failed")

    def __init__(self) -> None:
        self.content = False
        self.failed = False
        self._events = 0
        self._last = (b"", b"", b"")
        self._partial = b""
        self._usage = b""

    @property
    def complete(self) -> bool:
        """Whether the stream may end here: it said that it was done, why it finished, or that it failed."""
        return self.failed or any(b"[DONE]" in data or _FINISH.search(data) for data in self._last)

    def piece(self, data: bytes) -> None:
        """Look at the next piece. About 0.3 µs for a usual one, which ends with a line."""
        self._events += data.count(b"data:")
        if self._partial:
            data = self._partial + data
        self._partial = b"" if data.endswith(b"\n") else data[data.rfind(b"\n") + 1 :][-_KEEP:]
        if not self.content and _CONTENT.search(data):
            self.content = True
        if b"error" in data and not self.failed:
            self.failed = any(stream_error(line) for line in data.splitlines(keepends=True) if b"error" in line)
        if b'"usage"' in data:
            self._usage = data
        self._last = (*self._last[1:], data)

    def used(self) -> Used:
        """Give the last usage that the stream told; without one, its events as output tokens.

        Engines send one event a token, but for two: the role and ``[DONE]``. Asking them for the
        usage on the client's behalf would add an event to the client's stream.
        """
        found = _USAGE.findall(self._usage)
        if found:
            return _decode_usage(found[-1])
        return Used(None, max(self._events - _EVENTS_ASIDE, 0)) if self.content else NOTHING


def _decode_usage(data: bytes) -> Used:
    try:
        usage = _usage_decoder.decode(data)
    except msgspec.DecodeError:
        return NOTHING
    return Used(usage.prompt_tokens, usage.completion_tokens)


def inspect_whole(body: bytes) -> tuple[bool, Used]:
    """Tell whether a whole answer (status 200) is an error after all, and what it used."""
    try:
        whole = _whole_decoder.decode(body)
    except msgspec.DecodeError:
        return False, NOTHING
    failed = bytes(whole.error) != b"null" or whole.object == "error"
    usage = whole.usage
    return failed, NOTHING if usage is None else Used(usage.prompt_tokens, usage.completion_tokens)


def with_tier(body: bytes, tier: str) -> bytes:
    """Write ``service_tier`` into a whole answer; every other byte of its values stays. Not JSON: unchanged."""
    try:
        fields = _fields_decoder.decode(body)
    except msgspec.DecodeError:
        return body
    fields["service_tier"] = msgspec.Raw(msgspec.json.encode(tier))
    return msgspec.json.encode(fields)
