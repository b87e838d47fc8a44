"""1,000 answers of the simulated engine, each stopped one to five times anywhere, are what they would have been.

The engine's text is a function of all text before it, so equality is exact. Nothing here is a process or a socket: the
engine's own events are cut at a random byte and fed in random pieces. What goes on is asked of it as over HTTP.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tidegate.simserver.answers import DONE, Envelope, usage_of
from tidegate.simserver.compose import Composer
from tidegate.simserver.options import EngineOptions
from tidegate.simserver.requests import read_request
from tidegate.simserver.text import filler_text
from tidegate.simulation import EngineModel
from tidegate.splice import Splice, read_wish

pytestmark = pytest.mark.slow

STREAMS = 1000
BLOCK = 16


class Simulated:
    """The engine without its clock: the bytes of a whole stream for a request."""

    def __init__(self) -> None:
        options = EngineOptions(model="m", seed=5, mean_output_tokens=120)
        self._composer = Composer(options, EngineModel(options.profile))
        self.computed = self.again = 0

    def stream(self, body: bytes, *, chat: bool, number: int) -> bytes:
        asked = read_request(body, {})
        composition = self._composer.compose(asked, Envelope(f"x{number}", "m", number, chat), number)
        choice, prompt = composition.choices[0], composition.prompts[0].prompt_tokens
        events = [choice.event(position) for position in range(max(1, choice.tokens))]
        if asked.stream_options and asked.stream_options.include_usage:
            cached = (
                0 if not number else (prompt - 1) // BLOCK * BLOCK
            )  # its whole blocks are there from the leg before
            self.again += prompt - cached if number else 0
            self.computed += choice.tokens + prompt - cached
            events.append(composition.envelope.event([], usage=usage_of(prompt, choice.tokens, cached)))
        return b"".join([*events, DONE])


def asked(draw: random.Random, number: int, *, chat: bool) -> bytes:
    prompt = filler_text(draw.randint(1, 80), number)
    body: dict[str, Any] = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    body["max_tokens"] = draw.randint(5, 400)
    if draw.random() < 0.5:
        body["ignore_eos"] = True
    if draw.random() < 0.4:
        body["stop"] = draw.choice(["the", " of a", "的一", "\n", "🙂", [" to", "ing ", "。"], " and the", "\\n"])
    return json.dumps(body, ensure_ascii=draw.random() < 0.5).encode()


def text_of(stream: bytes) -> tuple[str, list[str], dict[str, int], int]:
    text, reasons = "", []
    usage: dict[str, int] = {}
    for event in stream.split(b"\n\n"):
        if event.startswith(b"data: {"):
            chunk = json.loads(event[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return text, reasons, usage, stream.count(b"[DONE]")


def test_a_thousand_streams_stopped_one_to_five_times_are_what_they_would_have_been() -> None:
    draw, engine = random.Random(11), Simulated()
    cuts = 0
    for number in range(STREAMS):
        chat = number % 3 != 0
        body = asked(draw, number, chat=chat)
        expected = text_of(Simulated().stream(body, chat=chat, number=0))
        wish, obstacle = read_wish(body, chat=chat)
        assert obstacle is None
        splice, out = Splice(wish), []
        for leg in range(draw.randint(1, 5) + 1):
            stream = engine.stream(splice.body(body), chat=chat, number=leg)
            end = draw.randint(0, len(stream))
            while stream[:end]:
                size = draw.choice([7, 200, 1000, 10**6])
                out.append(splice.feed(stream[: min(size, end)]))
                stream, end = stream[size:], max(0, end - size)
            if splice.complete:
                break
            splice.cut()
            cuts += 1
        if not splice.complete:
            out.append(splice.feed(engine.stream(splice.body(body), chat=chat, number=9)))
        assert splice.complete
        text, reasons, usage, ends = text_of(b"".join([*out, splice.close()]))
        assert (text, reasons, ends) == (expected[0], expected[1], 1), number
        assert all(usage[key] == expected[2][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens"))
    assert cuts > 1.5 * STREAMS
    assert engine.again / cuts < BLOCK, "more than a block is computed again for a stop"
