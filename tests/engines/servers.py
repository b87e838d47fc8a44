"""How the tests start real engines, and how they load them through a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest

from e2e.client_cases import Target, gateway_config
from tidegate.testing import real_engines
from tidegate.testing.engines import EngineServer
from tidegate.testing.gateway_process import gateway_process
from tidegate.testing.real_engines import BLOCK, MODEL, NotSetUpError, Size, command_of

ROOT = Path(__file__).resolve().parents[2]
ENGINE_TEST = [pytest.mark.engines, pytest.mark.anyio, pytest.mark.timeout(240, func_only=True)]
"""Marks of every module here. The limit tells a test that hangs from a machine that is slow; an engine's start has its
own. On two busy cores without AVX-512, where vLLM is ten times as slow, tests take up to 90 s."""

PATIENCE = "policy: {bands: {p0: {ttl: 10min}, p1: {ttl: 10min, shed_hopeless: false}}}\n"
"""On a busy machine an engine can be so slow that p0 and p1 would rightly be refused."""

VLLM_BLOCKS, VLLM_BLOCK, VLLM_SLOTS, VLLM_MOST = 31, BLOCK, 6, 30
"""KV blocks that can be used (one more is reserved), tokens in each, most running requests, most of them at all."""


def engine_command(kind: str) -> list[str]:
    """The command of an engine that ``make test-engines`` has set up; skips the test when it could not be had."""
    try:
        return command_of(ROOT, kind)
    except NotSetUpError as reason:
        pytest.skip(str(reason))


@contextlib.contextmanager
def llama_server(
    log: Path, *, model: str, slots: int, context: int, more: tuple[str, ...] = ()
) -> Iterator[EngineServer]:
    """Run llama.cpp's server; ``context`` tokens are shared by all ``slots``."""
    engine_command("llamacpp")
    with real_engines.llama_server(ROOT, log, Size(slots, context), model=model, more=more) as server:
        yield server


@contextlib.contextmanager
def vllm_server(log: Path, *, model: str, more: tuple[str, ...] = ()) -> Iterator[EngineServer]:
    """Run vLLM with few KV blocks, few slots and its priority policy."""
    engine_command("vllm")
    size = Size(VLLM_SLOTS, VLLM_BLOCKS * VLLM_BLOCK)
    queued = ("--max-num-queued-reqs", str(VLLM_MOST))
    with real_engines.vllm_server(ROOT, log, size, model=model, more=(*queued, *more)) as server:
        yield server


@contextlib.contextmanager
def behind_gateway(
    engine: EngineServer, *, seats: int, kind: str | None = None, settings: str = PATIENCE
) -> Iterator[Target]:
    """Run a gateway in front of an engine.

    Args:
        engine: the engine.
        seats: how many requests the gateway gives it at a time.
        kind: what the gateway is told that it is; ``None``: what it is.
        settings: more lines of the settings file.
    """
    told = EngineServer(kind or engine.kind, engine.url, engine.pid, engine.log)
    with gateway_process(config=settings + gateway_config(told, MODEL, seats=seats)) as gateway:
        yield Target(gateway, engine, MODEL)


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer, or the error that came instead of its end.

    Attributes:
        asked: when it was asked for, on this process's monotonic clock.
        ended: when its end had come here.
        waited_s: in the gateway's queue, by the gateway's account.
        pieces: how many pieces of text came; under load vLLM puts two tokens into one.
        tokens: output tokens by the engine's account at the end.
        error: the client's error.
    """

    asked: float
    ended: float
    waited_s: float
    pieces: int
    tokens: int = 0
    error: openai.APIError | None = None


async def ask(
    client: openai.AsyncOpenAI,
    *,
    tokens: int,
    band: str = "p1",
    prompt: str = "tide",
    begun: asyncio.Event | None = None,
) -> Answer:
    """Ask for a stream of exactly so many tokens; ``begun`` is set by the first piece, or by the end."""
    asked = time.monotonic()
    waited_s = 0.0
    pieces = counted = 0
    failed: openai.APIError | None = None
    try:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
            extra_headers={"x-tidegate-band": band},
        )
        waited_s = int(raw.headers["x-tidegate-queue-ms"]) / 1000
        async for chunk in raw.parse():
            pieces += bool(chunk.choices and chunk.choices[0].delta.content)
            if begun is not None and pieces:
                begun.set()
            counted = chunk.usage.completion_tokens if chunk.usage else counted
    except openai.APIError as error:
        failed = error
    if begun is not None:
        begun.set()
    return Answer(asked, time.monotonic(), waited_s, pieces, counted, failed)


@contextlib.asynccontextmanager
async def kept_open(count: int, ask_one: Callable[[int], Awaitable[Answer]]) -> AsyncIterator[list[Answer]]:
    """Keep ``count`` requests open: one that ends is followed by the next until the block is left.

    So a test can wait for a state that this many requests lead to, however slowly they come and however fast the
    engine is. After the block, those still open are waited for.

    Yields:
        The answers so far; all of them after the block.
    """
    answers: list[Answer] = []
    numbers = itertools.count()
    going = True

    async def in_turn() -> None:
        while going:
            answers.append(await ask_one(next(numbers)))

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(in_turn())
        try:
            yield answers
        finally:
            going = False


async def reached(state: Callable[[], bool]) -> None:
    """Wait for a state that pages show; how long it may take is the test's own limit."""
    while True:
        with contextlib.suppress(OSError):
            if await asyncio.to_thread(state):
                return
        await asyncio.sleep(0.02)


class Gauge:
    """Looks at one number again and again while other things run; a page that does not come is left out."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    @contextlib.asynccontextmanager
    async def watching(self, read: Callable[[], float]) -> AsyncIterator[None]:
        """Read until the block is left, every 20 ms so that the engine has time for its work too."""

        async def look() -> None:
            while True:
                with contextlib.suppress(OSError):
                    self.seen.append(await asyncio.to_thread(read))
                await asyncio.sleep(0.02)

        task = asyncio.create_task(look())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.contextmanager
def open_stream(url: str, *, tokens: int, key: str) -> Iterator[http.client.HTTPResponse]:
    """Open a stream with a plain client that shows every byte."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "tide"}],
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with contextlib.closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=200)) as wire:
        wire.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = wire.getresponse()
        assert response.status == 200, response.read()
        yield response


def error_events(stream: bytes) -> int:
    """How many error events a stream has."""
    return sum(line.replace(b" ", b"").startswith(b'data:{"error"') for line in stream.splitlines())
