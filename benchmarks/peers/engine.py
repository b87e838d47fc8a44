"""An engine of a few seats for the functional comparison: a token each 25 ms, further requests wait in their order.

``python -m benchmarks.peers.engine [--seats N] [--busy]`` prints its root url and serves until it is killed. It speaks
as SGLang does where a router looks for its capacity (``/server_info``), and lets go of a request whose client closes
the connection. ``--busy``: it answers 429 where it would let a request wait. ``GET /told`` says what became of
everything so far.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import deque
from typing import Any

import httptools

SEATS = 4
TOKEN_S = 0.025
TOKENS = 10
"""Tokens of an answer that asks for no other number: 250 ms."""

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Seats:
    """Who runs, who waits, and what became of the others."""

    def __init__(self, seats: int, *, busy: bool) -> None:
        self.free = seats
        self.busy = busy
        self.waiting: deque[Connection] = deque()
        self.told = {"asked": 0, "begun": 0, "finished": 0, "left": 0, "refused": 0, "waited": 0}

    def ask(self, connection: Connection) -> None:
        """Begin now, or later."""
        self.told["asked"] += 1
        if self.free:
            self.free -= 1
            self._begin(connection)
        elif self.busy:
            self.told["refused"] += 1
            connection.answer(b"429 Too Many Requests", {"error": {"message": "busy", "code": 429}})
        else:
            self.told["waited"] += 1
            self.waiting.append(connection)

    def leave(self, connection: Connection, *, finished: bool) -> None:
        """Give the seat to the next."""
        self.told["finished" if finished else "left"] += 1
        if self.waiting:
            self._begin(self.waiting.popleft())
        else:
            self.free += 1

    def forget(self, connection: Connection) -> None:
        """Its client left while it waited."""
        if connection in self.waiting:
            self.waiting.remove(connection)
            self.told["left"] += 1

    def _begin(self, connection: Connection) -> None:
        self.told["begun"] += 1
        connection.begin()


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self.parser = httptools.HttpRequestParser(self)
        self.url = self.body = b""
        self.asked: dict[str, Any] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.seats.forget(self)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self.seats.leave(self, finished=False)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url, self.body = url, b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.url.endswith(b"/completions"):
            self.asked = json.loads(self.body)
            self.seats.ask(self)
        elif self.url.endswith(b"/models"):
            self.answer(
                b"200 OK", {"object": "list", "data": [{"id": "bench", "object": "model", "owned_by": "sglang"}]}
            )
        elif self.url.endswith(b"/told"):
            self.answer(b"200 OK", self.seats.told)
        elif self.url.endswith(b"/version"):
            self.answer(b"404 Not Found", {})
        else:
            info = {"model_path": "bench", "served_model_name": "bench", "tp_size": 1, "version": "0.5.0"}
            self.answer(b"200 OK", info | {"max_running_requests": SEATS, "is_generation": True})

    def answer(self, status: bytes, body: object) -> None:
        """Send a whole answer."""
        text = json.dumps(body).encode()
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(text))
        self.transport.write(head + text)

    def begin(self) -> None:
        """It has a seat."""
        self.left = int(self.asked.get("max_tokens") or TOKENS)
        if self.asked.get("stream"):
            self.transport.write(_HEAD)
        self._next()

    def _next(self) -> None:
        self.timer = asyncio.get_running_loop().call_later(TOKEN_S, self._token)

    def _token(self) -> None:
        self.timer = None
        self.left -= 1
        if self.asked.get("stream"):
            self._event({"delta": {"content": " word"}, "index": 0, "finish_reason": None if self.left else "stop"})
        if self.left:
            self._next()
            return
        if self.asked.get("stream"):
            text = b"data: [DONE]\n\n"
            self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text))
        else:
            message = {"role": "assistant", "content": " word" * int(self.asked.get("max_tokens") or TOKENS)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 10, "completion_tokens": TOKENS, "total_tokens": 10 + TOKENS}
            told = {"id": "c", "object": "chat.completion", "created": 1, "model": "bench", "choices": [choice]}
            self.answer(b"200 OK", told | {"usage": usage})
        self.seats.leave(self, finished=True)

    def _event(self, choice: object) -> None:
        told = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": [choice]}
        text = b"data: " + json.dumps(told).encode() + b"\n\n"
        self.transport.write(b"%x\r\n%b\r\n" % (len(text), text))


async def main(*, seats: int, busy: bool) -> None:
    """Serve for ever."""
    state = Seats(seats, busy=busy)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(state), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seats", type=int, default=SEATS)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    asyncio.run(main(seats=options.seats, busy=options.busy))
