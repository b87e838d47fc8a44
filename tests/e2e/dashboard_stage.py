"""Gateways whose dashboard is looked at, and a crowd before them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

from e2e.raw import Answer, Visit, ask, chat, until
from tidegate.config import key_digest
from tidegate.testing.gateway_process import GatewayProcess

CONFIG = """
models: [{{name: raw, backends: [{{name: b0, url: "{url}", engine: openai, seats: {seats}}}]}}]
policy: {{bands: {{p0: {{ttl: 5min}}, p1: {{ttl: 5min}}}}}}
{more}
"""
ROWS = ", ".join(
    f"{{name: {name}, role: {role}, token: '{key_digest(name + '-token')}'}}"
    for name, role in (("duty", "operator"), ("wall", "viewer"))
)
OPERATORS = f"control: {{operators: [{ROWS}]}}"
WHEN_SHOWN = """wanted => new Promise(done => {
    const shown = () => document.querySelector("#tile-waiting-big").textContent;
    const look = () => shown() === wanted ? done(Date.now()) : setTimeout(look, 10);
    look();
})"""
CUT_OFF = """([wall]) => {
    const cards = [...document.querySelectorAll("#watch .card")];
    const found = cards.filter(card => card.scrollWidth > card.clientWidth + 1);
    const main = document.querySelector("main");
    if (wall && main.scrollHeight > main.clientHeight) found.push(main);
    return found.map(each => each.textContent);
}"""
WRITE_MARKUP = """() => {
    try { document.body.innerHTML = "<b>x</b>"; return "written"; } catch { return "refused"; }
}"""


def config(url: str, *, seats: int = 1, more: str = "") -> str:
    return CONFIG.format(url=url, seats=seats, more=more)


async def hang(_: Visit) -> None:
    await asyncio.sleep(60)


def get(process: GatewayProcess, path: str) -> Any:
    with urllib.request.urlopen(process.control + path, timeout=40) as response:
        return json.load(response)


@contextlib.asynccontextmanager
async def crowd(process: GatewayProcess, **counts: int) -> AsyncIterator[list[asyncio.Task[Answer]]]:
    """So many requests of each band; the first gets the only seat and keeps it."""
    tasks = [
        asyncio.ensure_future(ask(process.url, chat(), headers={"x-tidegate-band": band}))
        for band, count in counts.items()
        for _ in range(count)
    ]
    total = sum(counts.values())
    await until(lambda: process.total("tidegate_queue_depth") == total - 1, within_s=20)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
