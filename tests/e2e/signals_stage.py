"""Upstreams with a metrics page, and gateways in front of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from e2e.raw import Upstream, Visit, whole
from tidegate.testing.gateway_process import GatewayProcess

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
BUSY = b'data: {"error":{"message":"The engine is currently busy.","type":"Service Unavailable","code":503}}\n\n'
PAGE = b"""vllm:num_requests_running{engine="0"} %d
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:generation_tokens_total{engine="0"} %d
vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1
"""


class Engine(Upstream):
    """An upstream with a metrics page; ``page`` gives its status and text, or never comes back."""

    def __init__(self, behave: Callable[[Visit], Awaitable[None]]) -> None:
        super().__init__(behave)
        self.page: Callable[[], Awaitable[tuple[int, bytes]]] = self.alive
        self.healthy = True
        self.looks = 0

    async def alive(self) -> tuple[int, bytes]:
        return 200, PAGE % (self.open, self.looks)

    async def look(self, visit: Visit) -> None:
        if visit.path == "/metrics":
            self.looks += 1
            status, text = await self.page()
            visit.answer(text, status)
        else:
            visit.answer(b"{}", 200 if self.healthy else 503)


def row(name: str, engine: Upstream, *, kind: str = "vllm", seats: int = 8, extra: str = "") -> str:
    """Give one backend of a settings file."""
    return (
        f'{{name: {name}, url: "{engine.url}", engine: {kind}, seats: {seats}, poll_every: 100ms, '
        f"stale_after: 600ms{extra}}}"
    )


def pools(*models: str, more: str = "") -> str:
    """Give a settings file; each model is the text of its backends, and the models are ``raw0``, ``raw1``, …"""
    rows = "".join(f"  - {{name: raw{number}, backends: [{text}]}}\n" for number, text in enumerate(models))
    return f"models:\n{rows}policy: {{bands: {{p0: {{reserve: 0}}}}}}\n{more}"


def config(*engines: Upstream, more: str = "", backend: str = "", kind: str = "vllm") -> str:
    """Give a settings file with one model ``raw`` of all engines, ``b0``, ``b1``, …"""
    rows = [row(f"b{number}", engine, kind=kind, extra=backend) for number, engine in enumerate(engines)]
    return pools(", ".join(rows), more=more).replace("name: raw0", "name: raw")


def alone(engines: Sequence[Upstream]) -> str:
    """Give a settings file with a model for each engine: ``raw0`` on ``b0``, …"""
    return pools(*[row(f"b{number}", engine) for number, engine in enumerate(engines)])


@contextlib.asynccontextmanager
async def all_running(engines: Sequence[Upstream]) -> AsyncIterator[None]:
    """Run engines."""
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.running())
        yield


async def serve(visit: Visit) -> None:
    visit.answer(whole())


async def serve_slowly(visit: Visit) -> None:
    await asyncio.sleep(0.25)
    visit.answer(whole())


def shown(process: GatewayProcess, name: str, backend: str = "b0") -> float:
    return process.metrics()[f'{name}{{backend="{backend}"}}']


# Metrics
