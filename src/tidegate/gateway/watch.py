"""What the gateway needs to know of an answer that passes through: did it fail, when did content begin, what was used.

Streams are searched for a few bytes, never parsed: at 200 pieces an answer, a JSON parse of each would cost more than
all else. Of a whole answer that is no error only the end is decoded, from the usage on. Nothing here changes a byte,
but for ``with_tier``, which is for whole answers only: a stream goes through unchanged (SPEC §1.5).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from tidegate.backends import stream_error
from tidegate.classify import Route
from tidegate.core.compiling import mypyc_attr
from tidegate.gateway import answer_fields as fields

_KEEP: Final = 4096
"""Most bytes of an unfinished line that are kept to find what was cut between two pieces."""

_REMEMBERED: Final = 16 * 1024
"""Bytes of a piece that are remembered: an end stands at the end, and a slow client's pieces are large."""

_EVENTS_ASIDE: Final = 2

_REASON: Final = b'"finish_reason"'
_OPEN: Final = b'"finish_reason":null'
_NO_END: Final[tuple[bytes, ...]] = (b"", b"", b"")
_NO_PIECE: Final = b"\0"
_QUOTE: Final = (
    0x22  # numbers, as for what is longer ``find``: ``in`` with bytes raises and catches an error in CPython
)
_LINE_END: Final = 0x0A
_ESCAPE: Final = 0x5C
_ESCAPED_LETTER: Final = b"\\u00"
_LESSONS: Final = 3
"""Shapes of its usual piece that are learned of one stream: one that has none shall not pay for looking for it."""

_TEXT: Final = re.compile(rb'"(?:content|text|reasoning|reasoning_content)"\s*:\s*"')
_CONTENT: Final = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|refusal)"\s*:\s*"[^"]|"tool_calls"\s*:\s*\['
)
_TYPED_CONTENT: Final = re.compile(
    rb'"(?:delta|text|thinking|partial_json|content)"\s*:\s*"[^"]|"type"\s*:\s*"tool_use"'
)
_TYPED_FAILED: Final = re.compile(rb'"type"\s*:\s*"response\.failed"')
_TYPED_END: Final = re.compile(
    rb'"type"\s*:\s*"(?:response\.(?:completed|incomplete|failed)|message_stop)"|data: ?\[DONE\]'
)
_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"')
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')

MOST_TOKENS: Final = 2**32
"""Most tokens that are believed of one answer. Sums of them stay within the 64 bits that a store has for each."""

_decode_usage: Final[Callable[[bytes], fields.Usage]] = fields.decode_usage
_decode_whole: Final[Callable[[bytes], fields.Whole]] = fields.decode_whole


@mypyc_attr(acyclic=True)
class Used:
    """Tokens that the engine used as far as it showed them; ``None`` where it did not. Never changed."""

    __slots__ = ("input_tokens", "output_tokens")

    def __init__(self, input_tokens: int | None = None, output_tokens: int | None = None) -> None:
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Used):
            return NotImplemented
        return self.input_tokens == other.input_tokens and self.output_tokens == other.output_tokens

    def __hash__(self) -> int:
        return hash((self.input_tokens, self.output_tokens))

    def __repr__(self) -> str:
        return f"Used({self.input_tokens}, {self.output_tokens})"


NOTHING: Final = Used()
_CHAT: Final = Route.CHAT
_COMPLETIONS: Final = Route.COMPLETIONS


class StreamWatch:
    """Follows one event stream piece by piece.

    Most pieces of a stream differ in nothing but a word. So what stands before and behind it is kept of a piece that
    was looked at and found to tell nothing, and a piece with the same around another word needs no look: the word has
    no quote, so it ends where that one ended, and no line end, so it begins no other event.

    Attributes:
        content: whether a piece with generated content has passed.
        failed: whether an error event has passed (the client has been told; nothing may follow it).
    """

    __slots__ = ("_events", "_head", "_last", "_lessons", "_partial", "_tail", "_usage", "content", "failed")

    def __init__(self) -> None:
        self.content = False
        self.failed = False
        self._events = 0
        self._last = _NO_END  # those that may hold an end, the newest at the right
        self._partial = b""
        self._usage = b""
        self._head, self._tail = _NO_PIECE, b""  # of a usual piece; none begins like this
        self._lessons = _LESSONS

    @property
    def complete(self) -> bool:
        """Whether the stream may end here: it said that it was done, why it finished, or that it failed."""
        return self.failed or any(
            data.find(b"[DONE]") >= 0 or _FINISH.search(data) is not None for data in self._last if data
        )

    def piece(self, data: bytes) -> None:
        """Look at the next piece: 0.3 µs for a usual one, three times as much for any other."""
        head, tail = self._head, self._tail
        known = len(head) + len(tail)  # in a shorter piece they would share bytes
        if data.startswith(head) and data.endswith(tail) and len(data) >= known and not self._partial:
            word = data[len(head) : -len(tail)]
            if _QUOTE not in word and _LINE_END not in word:
                self._events += 1
                return
        self._look(data)

    def _look(self, data: bytes) -> None:
        whole = not self._partial
        events = data.count(b"data:")
        self._events += events
        if self._partial:
            data = self._partial + data
        self._partial = b"" if data.endswith(b"\n") else data[data.rfind(b"\n") + 1 :][-_KEEP:]
        if not self.content and _CONTENT.search(data):
            self.content = True
        if not self.failed and data.find(b"error") >= 0:
            self.failed = any(stream_error(line) for line in data.splitlines(keepends=True) if b"error" in line)
        told = data.find(b'"usage"') >= 0
        if len(data) > _REMEMBERED:
            data = data[-_REMEMBERED:]
        if told:
            self._usage = data
        if data.count(_REASON) == data.count(_OPEN) and data.find(b"[DONE]") < 0:
            if self._last is _NO_END:
                if whole and events == 1 and self.content and self._lessons:
                    self._learn(data)
                return
            data = b""  # most pieces end nothing, and 5,000 streams that keep three of them hold 4 MB
        self._last = (*self._last[1:], data)
        self._head, self._lessons = _NO_PIECE, 0  # what comes now belongs to an end

    def _learn(self, data: bytes) -> None:
        """Keep the shape of a piece that told nothing."""
        found = _TEXT.search(data)
        if found is None or data.find(b"error") >= 0 or not (data.startswith(b"data:") and data.endswith(b"\n")):
            return
        if data.count(b'"usage"') != data.count(b'"usage":null'):
            return
        end = data.find(b'"', found.end())
        word = data[found.end() : end]
        if end > 0 and _ESCAPE not in word and _LINE_END not in word:
            self._head, self._tail = data[: found.end()], data[end:]
            self._lessons -= 1

    def used(self) -> Used:
        """Give the last usage that the stream told; without one, its events as output tokens.

        Engines send one event a token, but for two: the role and ``[DONE]``. Asking them for the
        usage on the client's behalf would add an event to the client's stream.
        """
        found = _USAGE.findall(self._usage)
        if found:
            return _usage_of(found[-1])
        return Used(None, max(self._events - _EVENTS_ASIDE, 0)) if self.content else NOTHING


class TypedWatch(StreamWatch):
    """Follows a stream whose events have types, as those of the Responses and the Messages API have, or any other.

    Of a stream whose kind is not known, every clean end is an end, and everything but an error is content.
    """

    __slots__ = ("_ended", "_input", "_known")

    def __init__(self, *, known: bool) -> None:
        super().__init__()
        self._known = known
        self._ended = False
        self._input = b""

    @property
    def complete(self) -> bool:
        """Whether the stream may end here."""
        return self.failed or self._ended or (not self._known and self._events > 0)

    def used(self) -> Used:
        """Give the last usage that the stream told; the Messages API tells the prompt's at the start only."""
        used = super().used()
        if used.input_tokens is None and self._input:
            first = _USAGE.search(self._input)
            return Used(_usage_of(first[1]).input_tokens if first else None, used.output_tokens)
        return used

    def piece(self, data: bytes) -> None:
        """Look at the next piece."""
        before = self._partial  # what of the first line had come with the piece before
        super().piece(data)
        data = before + data
        if data.find(b'"message_start"') >= 0:
            self._known = True
            self._input = data[:_REMEMBERED]
        if not self.content and (_TYPED_CONTENT.search(data) or not (self._known or self.failed or not self._events)):
            self.content = True
        if _TYPED_END.search(data):
            self._ended = True
            self.failed = self.failed or _TYPED_FAILED.search(data) is not None


class BytesWatch(StreamWatch):
    """Follows an answer that is neither JSON nor an event stream, like audio: any clean end is its end."""

    __slots__ = ()

    @property
    def complete(self) -> bool:
        """Its framing says where it ends."""
        return True

    def used(self) -> Used:
        """Nothing is told."""
        return NOTHING

    def piece(self, data: bytes) -> None:
        """Take anything as content."""
        self.content = self.content or bool(data)


def watch_for(route: Route) -> StreamWatch:
    """Give what follows an event stream of a route."""
    if route is _CHAT or route is _COMPLETIONS:
        return StreamWatch()
    return TypedWatch(known=route is Route.RESPONSES)


def _usage_of(data: bytes) -> Used:
    try:
        return _used(_decode_usage(data))
    except msgspec.DecodeError:
        return NOTHING


def _used(usage: fields.Usage) -> Used:
    """Give what is told in the words of either API."""
    told, written = usage.prompt_tokens, usage.completion_tokens
    return Used(
        _count(usage.input_tokens if told is None else told),
        _count(usage.output_tokens if written is None else written),
    )


def _count(tokens: int | None) -> int | None:
    """Give what can be a number of tokens; anything else is as good as not told."""
    return tokens if tokens is not None and 0 <= tokens <= MOST_TOKENS else None


def inspect_whole(body: bytes) -> tuple[bool, Used]:
    """Tell whether a whole answer (status 200) is an error after all, and what it used."""
    if not _names_error(body) and (_ESCAPE not in body or body.find(_ESCAPED_LETTER) < 0):
        used = _used_at_end(body)
        if used is not None:
            return False, used
    try:
        whole = _decode_whole(body)
    except msgspec.DecodeError:
        return False, NOTHING
    usage = whole.usage
    failed = bytes(whole.error) != b"null" or whole.object == "error"
    return failed, NOTHING if usage is None else _used(usage)


def _names_error(body: bytes) -> bool:
    """Whether ``"error"`` stands in it: letters that are rare in text are found faster than any with quotes."""
    return body.find(b"rror") >= 0 and body.find(b'"error"') >= 0


def _used_at_end(body: bytes) -> Used | None:
    """Give the usage of an answer in which every name is written as it is; ``None``: decode all of it.

    The last usage and all behind it are decoded as an object of their own. That can only be one where they are the end
    of the whole object: deeper inside, more brackets would close than are open. Most engines write the usage last.
    """
    at = body.rfind(b'"usage"')
    if at < 0:
        return NOTHING
    if at == 0 or body[at - 1] == _ESCAPE:  # within a string
        return None
    try:
        usage = _decode_whole(b"{" + body[at:]).usage
    except msgspec.DecodeError:
        return None
    return NOTHING if usage is None else _used(usage)


def with_tier(body: bytes, tier: str) -> bytes:
    """Write ``service_tier`` into a whole answer; every other byte of its values stays. Not JSON: unchanged."""
    try:
        found = fields.decode_fields(body)
    except msgspec.DecodeError:
        return body
    found["service_tier"] = msgspec.Raw(msgspec.json.encode(tier))
    return msgspec.json.encode(found)
