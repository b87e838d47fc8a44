"""Answers on the wire: one choice of an answer, piece by piece, in the four forms of the OpenAI API. Pure.

A streamed piece is cut from bytes made ahead: per token nothing is encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

DONE = b"data: [DONE]\n\n"


class Choice(Protocol):
    """One choice of an answer."""

    index: int
    reason: str
    """Its ``finish_reason``."""
    tokens: int
    """Its tokens in ``usage``."""

    def event(self, position: int) -> bytes:
        """The server-sent event(s) of the token at ``position``, from 0; the last one says why it ended."""
        ...

    def whole(self) -> dict[str, Any]:
        """The choice inside an answer that is not streamed."""
        ...


@dataclass(slots=True, frozen=True)
class Envelope:
    """What all events and the whole body of one answer have in common."""

    id: str
    model: str
    created: int
    chat: bool

    def common(self, kind: str) -> dict[str, Any]:
        """The fields before ``choices``."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    @property
    def event_kind(self) -> str:
        """``object`` of an event."""
        return "chat.completion.chunk" if self.chat else "text_completion"

    def event(self, choices: list[dict[str, Any]], **fields: Any) -> bytes:
        """One event."""
        return b"data: " + msgspec.json.encode({**self.common(self.event_kind), "choices": choices, **fields}) + b"\n\n"

    def body(self, choices: Sequence[Choice], usage: dict[str, Any]) -> bytes:
        """The whole answer."""
        kind = "chat.completion" if self.chat else "text_completion"
        whole = [choice.whole() for choice in choices]
        return msgspec.json.encode({**self.common(kind), "choices": whole, "usage": usage})


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The ``usage`` object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


_MARK = "\ue000"  # stands for the piece while an event is cut into what goes before and after it


class TextChoice:
    """Text: pieces already escaped for JSON, one for each token."""

    __slots__ = ("_after", "_before", "_chat", "_envelope", "_first", "index", "pieces", "reason", "tokens")

    def __init__(self, envelope: Envelope, index: int, pieces: list[bytes], *, tokens: int, reason: str) -> None:
        self.index = index
        self.pieces = pieces
        self.tokens = tokens
        self._envelope = envelope
        self._chat = envelope.chat
        self.reason = reason
        self._before, self._after = self._cut(None)
        self._first = b""
        if self._chat:
            role = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            self._first = envelope.event([{**role, "finish_reason": None}])

    def _cut(self, reason: str | None) -> tuple[bytes, bytes]:
        said = {"delta": {"content": _MARK}} if self._chat else {"text": _MARK}
        event = self._envelope.event([{"index": self.index, **said, "logprobs": None, "finish_reason": reason}])
        before, _, after = event.partition(_MARK.encode())
        return before, after

    def event(self, position: int) -> bytes:
        """See ``Choice``."""
        before, after = self._before, self._after
        if position + 1 == len(self.pieces):
            before, after = self._cut(self.reason)
        if position == 0:
            before = self._first + before
        return b"".join((before, self.pieces[position], after))

    def whole(self) -> dict[str, Any]:
        """See ``Choice``."""
        text = msgspec.Raw(b'"' + b"".join(self.pieces) + b'"')
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {"index": self.index, **said, "logprobs": None, "finish_reason": self.reason}


class ToolChoice:
    """A call of one tool, its arguments piece by piece."""

    __slots__ = ("_envelope", "_id", "_name", "_pieces", "index", "reason", "tokens")

    def __init__(self, envelope: Envelope, index: int, name: str, arguments: str) -> None:
        self.index = index
        self._envelope = envelope
        self._id = f"chatcmpl-tool-{envelope.id.removeprefix('chatcmpl-')}-{index}"
        self._name = name
        self.reason = "tool_calls"
        self._pieces = [arguments[start : start + 4] for start in range(0, len(arguments), 4)]
        self.tokens = len(self._pieces) + 2

    def _function(self, arguments: str) -> dict[str, Any]:
        return {"id": self._id, "type": "function", "function": {"name": self._name, "arguments": arguments}}

    def event(self, position: int) -> bytes:
        """See ``Choice``."""
        reason: str | None = None
        delta: dict[str, Any] = {}
        if position == 0:
            calls = [{"index": 0, **self._function("")}]
            delta = {"role": "assistant", "content": None, "tool_calls": calls}
        elif position <= len(self._pieces):
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": self._pieces[position - 1]}}]}
        else:
            reason = "tool_calls"
        return self._envelope.event([{"index": self.index, "delta": delta, "logprobs": None, "finish_reason": reason}])

    def whole(self) -> dict[str, Any]:
        """See ``Choice``."""
        message = {"role": "assistant", "content": None, "tool_calls": [self._function("".join(self._pieces))]}
        return {"index": self.index, "message": message, "logprobs": None, "finish_reason": "tool_calls"}


def sample_arguments(schema: Any) -> str:
    """JSON arguments that a JSON schema allows: every property, with the plainest value of its type."""
    return msgspec.json.encode(_sample(schema if isinstance(schema, dict) else {"type": "object"})).decode()


def _sample(schema: dict[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0] if kind else "null"
    if kind == "object":
        properties = schema.get("properties")
        named = properties.items() if isinstance(properties, dict) else ()
        return {name: _sample(inner if isinstance(inner, dict) else {}) for name, inner in named}
    if kind == "array":
        items = schema.get("items")
        return [_sample(items)] if isinstance(items, dict) else []
    plain: dict[str, Any] = {"string": "上海 store", "integer": 7, "number": 0.5, "boolean": True}
    return plain.get(kind)
