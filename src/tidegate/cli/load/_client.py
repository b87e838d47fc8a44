"""The client's side of one exchange: a chat request on a fresh connection, its streamed answer timed piece by piece.

It is not the gateway's upstream client on purpose: what measures shares nothing with what is measured.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Protocol

import httptools
import msgspec


class Answer(Protocol):
    """What an exchange writes into. Times in seconds after the due moment; ``None``: not yet.

    Attributes:
        sent_s: when the request was really sent.
        queue_s: queue wait as the gateway tells it in ``x-tidegate-queue-ms``.
        first_s: when the first piece of answer text came.
        done_s: when the answer was complete.
        refused: reason of a refusal, or of a failure; ``None`` when there was none.
        pieces: pieces of answer text received, one token each.
    """

    sent_s: float | None
    queue_s: float | None
    first_s: float | None
    done_s: float | None
    refused: str | None
    pieces: int


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: object = None


_DECODE = msgspec.json.Decoder(_Event).decode


def chat_request(
    host: str,
    *,
    prompt: str,
    output_tokens: int,
    key: str = "",
    model: str = "demo",
    headers: Mapping[str, str] | None = None,
    ignore_eos: bool = True,
) -> bytes:
    """One whole HTTP/1.1 request for a streamed chat answer.

    Args:
        host: of the ``host`` header.
        prompt: text of its one message.
        output_tokens: longest answer; with ``ignore_eos`` (an extension of vLLM and others) exactly as long.
        key: bearer key, none when empty.
        model: name of the model.
        headers: more of them.
        ignore_eos: ask for the whole length.
    """
    fields = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": output_tokens,
        "stream": True,
    }
    body = json.dumps(fields | ({"ignore_eos": True} if ignore_eos else {})).encode()
    more = {"authorization": f"Bearer {key}"} if key else {}
    lines = "".join(f"{name}: {value}\r\n" for name, value in (more | dict(headers or {})).items())
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n{lines}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


class Exchange(asyncio.Protocol):
    """Send ``request`` when connected and write what comes back into ``record``.

    ``now()`` gives seconds after the due moment. The record is complete when ``done`` is set, whatever happened:
    an answer, a refusal (``x-tidegate-reason`` or a status that is not 200), an error event, or a lost connection.
    """

    def __init__(self, request: bytes, record: Answer, now: Callable[[], float]) -> None:
        self.done = asyncio.Event()
        self._request = request
        self._record = record
        self._now = now
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._finished = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)
        self._record.sent_s = self._now()

    def data_received(self, data: bytes) -> None:
        if self.done.is_set():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("broken_answer")

    def connection_lost(self, _exc: Exception | None) -> None:
        self._end("connection_lost")

    def leave(self) -> None:
        """Close the connection now and write nothing more: the run is over."""
        self.done.set()
        if self._transport is not None:
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header from the parser."""
        match name.lower():
            case b"x-tidegate-queue-ms":
                self._record.queue_s = float(value) / 1e3
            case b"x-tidegate-reason":
                self._record.refused = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Take the status from the parser."""
        status = self._parser.get_status_code()
        if status != 200 and self._record.refused is None:
            self._record.refused = f"http_{status}"

    def on_body(self, body: bytes) -> None:
        """Take a piece of the event stream from the parser."""
        if self._record.refused is None:
            *lines, self._rest = (self._rest + body).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip())

    def on_message_complete(self) -> None:
        """Take the end of the answer from the parser; a stream without ``[DONE]`` was cut."""
        self._end("cut")

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._record.done_s = self._now()
            self._finished = True
            return
        event = _DECODE(data)
        if event.error is not None:
            self._record.refused = "error_event"
        if any(choice.delta is not None and choice.delta.content for choice in event.choices):
            self._record.pieces += 1
            if self._record.first_s is None:
                self._record.first_s = self._now()

    def _end(self, failure: str) -> None:
        if self.done.is_set():
            return
        if not self._finished and self._record.refused is None:
            self._record.refused = failure
        self.leave()
