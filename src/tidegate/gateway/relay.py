"""Pass an upstream's answer to the client: a stream piece by piece and unchanged, anything else whole.

A stream that cannot be finished ends with exactly one error event and no ``[DONE]``; the client has then a status of
200 and a reason. A whole answer that cannot be finished has not been begun, so it becomes a 502.
"""

from __future__ import annotations

from typing import Final

from tidegate.backends import BackendError, Broken, Response
from tidegate.backends.response import Sink
from tidegate.classify import RawHeaders, unmeasured_headers
from tidegate.core.compiling import mypyc_attr
from tidegate.gateway.call import Call, Send
from tidegate.gateway.link import ClientLink
from tidegate.gateway.watch import StreamWatch, inspect_whole, with_tier
from tidegate.runtime import Clock

MOST_WHOLE: Final = 64 * 1024 * 1024
"""Longest answer that is not a stream, in bytes: embeddings of a large batch are a few MiB."""

PIECE: Final = 64 * 1024
"""Most bytes that are given to a client's connection at once: as many as it buffers before it asks to wait."""

_EVENT_STREAM: Final = b"text/event-stream"
_RETRY_HINTS: Final = (b"retry-after", b"retry-after-ms")


@mypyc_attr(acyclic=True)
class Relayed:
    """How an answer ended.

    Attributes:
        failed: the upstream said so, or did not finish.
        error: why it did not finish; the client's side of a stream is then still open.
    """

    __slots__ = ("error", "failed")

    def __init__(self, *, failed: bool = False, error: BackendError | None = None) -> None:
        self.failed = failed
        self.error = error


_FINE: Final = Relayed()


def is_stream(response: Response) -> bool:
    """Whether the answer is an event stream."""
    return response.status == 200 and (response.header(b"content-type") or b"").startswith(_EVENT_STREAM)


def is_plain(response: Response) -> bool:
    """Whether the answer is to be read as a whole: JSON, or no success."""
    kind = (response.header(b"content-type") or b"application/json").partition(b";")[0].strip().lower()
    return response.status != 200 or kind == b"application/json"


async def send_head(call: Call, response: Response, send: Send) -> None:
    """Send the head of a stream."""
    headers = unmeasured_headers(response.headers)
    headers += [*call.headers(call.arrived), (b"x-accel-buffering", b"no")]
    call.status = response.status
    await send({"type": "http.response.start", "status": response.status, "headers": headers})


class _Through(Sink):
    """Passes pieces on to a client that keeps up."""

    __slots__ = ("_call", "_client", "_clock", "_watch")

    def __init__(self, call: Call, client: ClientLink, clock: Clock, watch: StreamWatch) -> None:
        self._call = call
        self._client = client
        self._clock = clock
        self._watch = watch

    def take(self, piece: bytes, chunk: bytes | None) -> bool:
        if len(piece) > PIECE or not self._client.pass_on(piece, chunk):
            return False
        call, watch = self._call, self._watch
        watch.piece(piece)
        if call.first_at is None and watch.content:
            call.first_at = self._clock.now()
        return True


async def relay_stream(
    call: Call, response: Response, send: Send, *, client: ClientLink, clock: Clock, first: bytes, watch: StreamWatch
) -> Relayed:
    """Send head and body of a stream up to its end, but leave the client's side open where it failed.

    While the client keeps up, a piece goes out within the callback that brought it: waking this task for each of them
    would cost more than all that is done with it.

    Args:
        call: is told the status, the time of the first content and the usage.
        response: the open answer.
        send: the client.
        client: takes pieces as long as it keeps up.
        clock: for the first content.
        first: what has been read of the body; empty: the stream has none.
        watch: has seen ``first``.
    """
    if not call.started:
        await send_head(call, response, send)
    data: bytes | None = first
    through = _Through(call, client, clock, watch)
    try:
        while data:
            if call.first_at is None and watch.content:
                call.first_at = clock.now()
            if response.at_end and watch.complete:
                await send({"type": "http.response.body", "body": data})
                return Relayed(failed=watch.failed)
            if len(data) > PIECE:
                await _send_in_pieces(send, data)
            else:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            data = response.try_read()
            if data is None:
                data = await response.read_past(through)
            watch.piece(data)
    except BackendError as error:
        if watch.failed:  # the client has been told by the upstream itself
            await send({"type": "http.response.body"})
            return Relayed(failed=True)
        return Relayed(failed=True, error=error)
    finally:
        call.used = watch.used()
    if watch.complete:
        await send({"type": "http.response.body"})
        return Relayed(failed=watch.failed)
    return Relayed(failed=True, error=Broken("the stream ended without a finish reason"))


async def _send_in_pieces(send: Send, data: bytes) -> None:
    """Send what has come faster than it goes, so that a client that does not read has no second copy of it here."""
    for start in range(0, len(data), PIECE):
        await send({"type": "http.response.body", "body": data[start : start + PIECE], "more_body": True})


def look_at_whole(call: Call, response: Response, body: bytes, *, now: float) -> tuple[Relayed, bytes]:
    """Judge an answer that is there in full; give it back with the service tier that was really used."""
    if response.status >= 400:
        return Relayed(failed=True), body
    failed, call.used = inspect_whole(body)
    if failed:
        return Relayed(failed=True), body
    call.first_at = now
    tier = None if call.classified is None else call.classified.tier
    return _FINE, body if tier is None else with_tier(body, tier)


def as_event(body: bytes) -> bytes:
    """Give a whole answer to a client whose event stream has begun. JSON has no line end where it would matter."""
    return b"data: " + body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"


def failed_headers(response: Response) -> RawHeaders:
    """Give the headers of a whole answer that failed, without its length: it keeps the engine's hint when to retry."""
    return unmeasured_headers(response.headers) + [item for item in response.headers if item[0] in _RETRY_HINTS]
