"""An engine that writes a known text in tokens, continues any beginning of it, and is cut anywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

PROMPT = 7
"""Tokens of the prompt."""


@dataclass(slots=True)
class Engine:
    """Writes ``tokens``; looks ahead for stops as engines do that hold text back.

    Attributes:
        tokens: the whole answer; one of them may stand for text that follows later (empty).
        crlf: line ends.
        comments: a comment before every event.
        apart: the end of a chat answer has an event of its own.
        every: tells the usage in every event when asked.
    """

    tokens: list[str]
    crlf: bool = False
    comments: bool = False
    apart: bool = False
    every: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, body: bytes, *, chat: bool, number: int) -> bytes:
        """The stream for a request."""
        asked = json.loads(body)
        self.asked.append(asked)
        assert asked["stream"] is True
        given = self._given(asked, chat=chat)
        done, text = 0, ""
        while text != given:
            text += self.tokens[done]
            done += 1
        pieces, reason = self._pieces(self.tokens[done:], asked)
        return b"".join(self._events(pieces, reason, asked, chat=chat, number=number, prompt=PROMPT + done))

    def _given(self, asked: dict[str, Any], *, chat: bool) -> str:
        if not chat:
            assert asked["prompt"].startswith("say: ")
            return str(asked["prompt"].removeprefix("say: "))
        last = asked["messages"][-1]
        if last["role"] == "user":
            assert "continue_final_message" not in asked
            return ""
        assert asked["continue_final_message"] is True
        assert asked["add_generation_prompt"] is False
        return str(last["content"])

    def _pieces(self, tokens: list[str], asked: dict[str, Any]) -> tuple[list[str], str]:
        limit = asked.get("max_tokens")
        reason = "stop"
        if limit is not None and limit <= len(tokens):
            tokens, reason = tokens[:limit], "length"
        text = "".join(tokens)
        found = [(text.index(stop) + len(stop), text.index(stop)) for stop in asked.get("stop", []) if stop in text]
        if not found:
            return list(tokens), reason
        end, kept = min(found)
        pieces: list[str] = []
        length = 0
        for token in tokens:
            pieces.append(token if length + len(token) <= kept else "")
            length += len(token)
            if length >= end:
                break
        pieces[-1] += text[len("".join(pieces)) : kept]  # what stands before the stop in the same token comes last
        return pieces, "stop"

    def _events(
        self, pieces: list[str], reason: str, asked: dict[str, Any], *, chat: bool, number: int, prompt: int
    ) -> list[bytes]:
        kind = "chat.completion.chunk" if chat else "text_completion"
        common = {"id": f"x-{number}", "object": kind, "created": number, "model": f"m{number}"}
        options = asked.get("stream_options") or {}

        def usage(count: int) -> dict[str, Any]:
            cached = {"prompt_tokens_details": {"cached_tokens": 4}}
            return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count, **cached}

        def event(choices: list[dict[str, Any]], count: int, *, last: bool = False) -> bytes:
            more = {"usage": usage(count)} if last or (self.every and options.get("continuous_usage_stats")) else {}
            return self._wire(json.dumps({**common, "choices": choices, **more}, ensure_ascii=False))

        def choice(piece: str, end: str | None) -> list[dict[str, Any]]:
            said: dict[str, Any] = {"delta": {"content": piece}} if chat else {"text": piece}
            return [{"index": 0, **said, "logprobs": None, "finish_reason": end}]

        out = []
        apart = self.apart and chat and not asked.get("stop")  # half a token without an end could not go on exactly
        if chat:
            role = {"role": "assistant", "content": ""}
            out.append(event([{"index": 0, "delta": role, "finish_reason": None}], 0))
        for index, piece in enumerate(pieces):
            last = index + 1 == len(pieces) and not apart
            out.append(event(choice(piece, reason if last else None), index + 1))
        if apart or not pieces:
            end: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            out.append(event([{"index": 0, **end, "finish_reason": reason}], len(pieces)))
        if options.get("include_usage"):
            out.append(event([], len(pieces), last=True))
        return [*out, self._wire("[DONE]")]

    def _wire(self, data: str) -> bytes:
        end = "\r\n" if self.crlf else "\n"
        comment = f": ping{end}{end}" if self.comments else ""
        return f"{comment}data: {data}{end}{end}".encode()


@dataclass(slots=True)
class Got:
    """What a client has of an answer."""

    text: str = ""
    reasons: list[str] = field(default_factory=list)
    roles: int = 0
    ends: int = 0
    usages: list[dict[str, int]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    after_end: int = 0


def read(stream: bytes) -> Got:
    """Read a client's stream as a strict client would."""
    got = Got()
    text = stream.decode()
    assert text.endswith(("\n\n", "\r\n\r\n"))
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        assert len(lines) == 1
        data = lines[0].removeprefix("data: ")
        if data == "[DONE]":
            got.ends += 1
            continue
        got.after_end += got.ends
        event = json.loads(data)
        got.ids.add(f"{event['id']} {event['created']} {event['model']}")
        if event.get("usage"):
            got.usages.append(event["usage"])
        for choice in event["choices"]:
            said = choice.get("delta", choice)
            got.roles += "role" in said
            got.text += said.get("content") or said.get("text") or ""
            if choice["finish_reason"]:
                got.reasons.append(choice["finish_reason"])
    return got
