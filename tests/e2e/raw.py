"""Both ends of the gateway by hand: an upstream that does what the test says, a client that may leave at any time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tidegate.testing.gateway_process import GatewayProcess, gateway_process

MODELS = b'{"object":"list","data":[{"id":"raw","object":"model"}]}'
DONE = b"data: [DONE]\n\n"


def chunk(text: str, finish: str | None = None) -> bytes:
    """Give one event of a chat stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


def whole(text: str = "ok") -> bytes:
    """Give a chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode()


@dataclass
class Visit:
    """One request as the upstream sees it."""

    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    left: asyncio.Event = field(default_factory=asyncio.Event)
    left_at: float = 0.0
    keeps: bool = False

    def send(self, data: bytes) -> None:
        """Write to the gateway."""
        self.writer.write(data)

    def start_stream(self) -> None:
        """Begin an answer whose end is the end of the connection."""
        self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")

    def answer(self, body: bytes, status: int = 200, *, more: bytes = b"") -> None:
        """Send a whole answer."""
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n" % status
        self.send(
            head
            + (b"" if self.keeps else b"connection: close\r\n")
            + more
            + b"content-length: %d\r\n\r\n" % len(body)
            + body
        )


Behaviour = Callable[[Visit], Awaitable[None]]


class Upstream:
    """A server whose behaviour is a coroutine; every answer ends its connection, but where it ``keeps`` them.

    Attributes:
        visits: every request that came.
        open: requests whose connection is open now.
        most: most of these at a time.
    """

    def __init__(self, behave: Behaviour, *, keeps: bool = False) -> None:
        self.behave = behave
        self.keeps = keeps
        self.visits: list[Visit] = []
        self.open = 0
        self.most = 0
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[Upstream]:
        """Listen on a free port of the loopback address, or on ``port``."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=2048)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def look(self, visit: Visit) -> None:
        """Answer a GET: health, metrics and models alike."""
        visit.answer(MODELS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            going_on = True
            while going_on:
                method, path, headers = await read_head(reader)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                visit = Visit(path, headers, body, writer, keeps=self.keeps)
                if method == "GET":
                    await self.look(visit)
                else:
                    await self._visited(visit, reader)
                going_on = self.keeps and not visit.left.is_set()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # a cancelled task would be reported by the streams of Python 3.11
        finally:
            writer.close()

    async def _visited(self, visit: Visit, reader: asyncio.StreamReader) -> None:
        self.visits.append(visit)
        self.open += 1
        self.most = max(self.most, self.open)
        behaving = asyncio.ensure_future(self.behave(visit))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((behaving, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.open -= 1
            if leaving.done():
                visit.left_at = asyncio.get_running_loop().time()
                visit.left.set()
            behaving.cancel()
            leaving.cancel()
            await asyncio.gather(behaving, leaving, return_exceptions=True)


async def read_head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """Read a head; return the first two words of its first line and its headers."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    first, second = lines[0].split(" ")[:2]
    pairs = (line.partition(":") for line in lines[1:] if line)
    return first, second, {name.lower(): value.strip() for name, _, value in pairs}


@dataclass
class Answer:
    """What a client got. ``broken``: the connection ended before the answer did."""

    status: int
    headers: dict[str, str]
    body: bytes
    broken: bool = False

    @property
    def error(self) -> dict[str, str]:
        """The error of a refusal."""
        found: dict[str, str] = json.loads(self.body)["error"]
        return found


class Client:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, url: str, *, limit: int = 65536) -> Client:
        """Open a connection."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, limit=limit))

    def send(
        self,
        body: bytes | Mapping[str, object] = b"",
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Write a request; a header given as empty text is left out."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"host": "localhost", "content-type": "application/json", "content-length": str(len(content))}
        lines |= headers or {}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + content)

    async def head(self) -> Answer:
        """Read the head of the answer."""
        _, status, headers = await read_head(self.reader)
        return Answer(int(status), headers, b"")

    async def pieces(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Read the body chunk by chunk as the gateway sent it. Raises ``IncompleteReadError`` when it breaks off."""
        if headers.get("transfer-encoding") != "chunked":
            yield await self.reader.readexactly(int(headers.get("content-length", "0")))
            return
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            data = await self.reader.readexactly(size + 2)
            yield data[:-2]
        await self.reader.readexactly(2)

    async def answer(self) -> Answer:
        """Read a whole answer."""
        answer = await self.head()
        try:
            async for piece in self.pieces(answer.headers):
                answer.body += piece
        except (asyncio.IncompleteReadError, ConnectionError):
            answer.broken = True
        return answer

    def leave(self) -> None:
        """Close at once."""
        self.writer.transport.abort()

    async def ask(self, body: bytes | Mapping[str, object] = b"", **request: object) -> Answer:
        """Send a request, read the answer, leave."""
        try:
            self.send(body, **request)  # type: ignore[arg-type]
            return await self.answer()
        finally:
            self.leave()


async def ask(url: str, body: bytes | Mapping[str, object] = b"", **request: object) -> Answer:
    """Make one request on a connection of its own."""
    client = await Client.connect(url)
    return await client.ask(body, **request)


def chat(**more: object) -> dict[str, object]:
    """Give the body of a chat request."""
    return {"model": "raw", "messages": [{"role": "user", "content": "hi"}], **more}


@contextlib.asynccontextmanager
async def gateway(
    config: str | None, *arguments: str, environ: Mapping[str, str] | None = None
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway; the loop goes on while it starts and ends, because the upstreams live in it."""
    manager = gateway_process(*arguments, config=config, environ=environ)
    process = await asyncio.to_thread(manager.__enter__)
    try:
        yield process
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


async def until(true: Callable[[], bool], *, within_s: float) -> float:
    """Wait until something is true; return the seconds it took. Fails when it has not come true for too long.

    That is four times ``within_s``, and eight seconds at least: machines stand still for a while at times.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    most_s = max(8.0, 4 * within_s)
    while not true():
        assert loop.time() - began < most_s, "it did not come true in time"
        await asyncio.sleep(0.005)
    return loop.time() - began
