"""One request in flight: from its sequences in the engine to the bytes on its connection.

No task runs per chunk: the step loop drives the server's ``send`` itself and only once, since that coroutine finishes
at once unless the client does not read. What such a client misses is kept and sent with the next piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.simserver.answers import DONE, Choice, Envelope, usage_of
from tidegate.simserver.faults import Fault, FaultKind
from tidegate.simserver.requests import error_body
from tidegate.simulation import EngineSequence

Message = dict[str, Any]
Send = Callable[[Message], Any]

_BROKEN = (500, "InternalServerError", "The simulated engine was told to fail here.")


class Exchange:
    """The choices of one answer and the connection that they go to."""

    def __init__(
        self,
        send: Send,
        envelope: Envelope,
        choices: Sequence[Choice],
        *,
        prompts: Sequence[EngineSequence],
        stream: bool,
        include_usage: bool = False,
        fault: Fault | None = None,
    ) -> None:
        """Begin with nothing sent.

        Args:
            send: the ASGI callable of the connection; for a stream the response has been started.
            envelope: id, model and form.
            choices: the choices.
            prompts: the sequence of the first choice of each prompt, for ``usage``.
            stream: whether tokens are sent as they come.
            include_usage: whether a stream ends with a usage event.
            fault: what goes wrong with this answer.
        """
        self.envelope = envelope
        self.choices = choices
        self.stream = stream
        self.over = asyncio.get_running_loop().create_future()
        """Done when the connection is to be closed in the middle of the answer."""
        self.finished = False
        self._send = send
        self._prompts = prompts
        self._include_usage = include_usage
        self._fault = fault
        self._open = len(choices)
        self._emitted = 0
        self._unread: list[bytes] = []
        self._flush: asyncio.Task[None] | None = None

    def token(self, choice: Choice, position: int, *, last: bool) -> None:
        """Tell the client about one more token of a choice."""
        if self.finished:
            return
        if self._fault is not None and self._emitted >= self._fault.after_tokens:
            self._break(self._fault.kind)
            return
        self._emitted += 1
        self._open -= last
        if self.stream:
            data = choice.event(position)
            if self._open:
                self._write(data)
            else:
                self._finish(data + self._closing())
        elif not self._open:
            self._answer(200, self.envelope.body(self.choices, self._usage()))

    def _break(self, kind: FaultKind) -> None:
        """Let the fault happen; nothing is sent after it."""
        self.finished = True
        if kind is FaultKind.STREAM_ERROR:
            body = error_body(*_BROKEN)
            if self.stream:
                self._finish(b"data: " + body + b"\n\n" + DONE)
            else:
                self._answer(500, body)
        elif kind is FaultKind.CUT:
            if not self.stream:
                body = self.envelope.body(self.choices, self._usage())
                self._start(200, len(body))
                self._write(body[: len(body) // 2])
            self.over.set_result(None)

    def _usage(self) -> dict[str, Any]:
        prompt = sum(sequence.prompt_tokens for sequence in self._prompts)
        cached = sum(sequence.cached_tokens for sequence in self._prompts)
        return usage_of(prompt, sum(choice.tokens for choice in self.choices), cached)

    def _closing(self) -> bytes:
        return (self.envelope.event([], usage=self._usage()) if self._include_usage else b"") + DONE

    def _start(self, status: int, length: int) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
        push(self._send, {"type": "http.response.start", "status": status, "headers": headers})

    def _answer(self, status: int, body: bytes) -> None:
        self._start(status, len(body))
        self._finish(body)

    def _write(self, data: bytes) -> None:
        if self._unread:
            self._unread.append(data)
            if not push(self._send, _body(b"")):  # asked with nothing, so that a long backlog is joined only once
                return
            data = b"".join(self._unread)
        self._unread = [] if push(self._send, _body(data)) else [data]

    def _finish(self, data: bytes) -> None:
        self.finished = True
        message = {**_body(b"".join((*self._unread, data))), "more_body": False}
        if not push(self._send, message):
            self._flush = asyncio.get_running_loop().create_task(_deliver(self._send, message))


def _body(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


def push(send: Send, message: Message) -> bool:
    """Send without waiting; ``False`` when the client does not read, and then nothing was sent."""
    call = send(message)
    try:
        call.send(None)
    except StopIteration:
        return True
    call.close()  # it waits for the client to read before it writes anything
    return False


async def _deliver(send: Send, message: Message) -> None:
    await send(message)
