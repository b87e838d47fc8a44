"""An engine that costs nothing: answers at once, or streams 200 chunks, one of all streams at each beat.

``python -m benchmarks.stub_engine`` prints its root url and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import sys

import httptools

CHUNKS = 200
BEAT_S = 0.01
"""Between two chunks of a stream: long enough that no reader finds two of them together."""


def _http(content_type: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (content_type, len(body), body)


def _event(data: bytes) -> bytes:
    event = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)


_START = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1760000000,'
    b'"model":"bench","choices":'
)
PLAIN = _http(
    b"application/json",
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1760000000,"model":"bench","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"%b"},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":480,"total_tokens":680,"completion_tokens":200}}' % (b"word " * 200),
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = _event(_START + b'[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}')
LAST = _event(_START + b'[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop"}]}')
DONE = _event(b"[DONE]") + b"0\r\n\r\n"
MODELS = _http(b"application/json", b'{"object":"list","data":[{"id":"bench","object":"model"}]}')
NOTHING = _http(b"text/plain", b"")


class Stub(asyncio.Protocol):
    """One connection. ``streams`` holds what is left to send, by connection."""

    streams: dict[Stub, int] = {}  # noqa: RUF012 - shared by all on purpose

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url, self.body = url, b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.url.endswith(b"/completions"):
            # This has to look the same whether a proxy writes the body anew or not.
            if b'"stream":true' in self.body.replace(b" ", b""):
                self.transport.write(HEAD)
                self.streams[self] = CHUNKS
            else:
                self.transport.write(PLAIN)
        else:
            self.transport.write(MODELS if self.url.endswith(b"/models") else NOTHING)


def beat(loop: asyncio.AbstractEventLoop) -> None:
    """Give every stream its next chunk."""
    loop.call_later(BEAT_S, beat, loop)
    for stub, left in list(Stub.streams.items()):
        if left > 1:
            Stub.streams[stub] = left - 1
            stub.transport.write(CHUNK)
        else:
            del Stub.streams[stub]
            stub.transport.write(LAST + DONE)


async def main() -> None:
    """Serve for ever."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Stub, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    beat(loop)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
