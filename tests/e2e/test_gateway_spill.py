"""Large bodies wait in files that have no name, and arrive as they came."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
from pathlib import Path

import pytest

from e2e.raw import Client, Upstream, Visit, chat, gateway, until, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

MIB = 1024 * 1024
COUNT = 16
SIZE = 6 * MIB


def memory_of(pid: int) -> int:
    """Bytes of memory that a process uses."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def open_files(pid: int) -> list[str]:
    """Files without a name that a process holds."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return [name for name in found if name.endswith(" (deleted)")]


def held(pid: int, count: int) -> bool:
    """Whether a process holds so many files without a name."""
    return len(open_files(pid)) == count


async def test_large_bodies_wait_in_files_and_arrive_unchanged() -> None:
    go = asyncio.Event()
    seen: list[str] = []

    async def behave(visit: Visit) -> None:
        await go.wait()
        if len(visit.body) > MIB:
            seen.append(hashlib.sha256(visit.body).hexdigest())
        visit.answer(whole())

    upstream = Upstream(behave)
    async with upstream.running():
        config = f'models: [{{name: raw, backends: [{{name: b0, url: "{upstream.url}", engine: openai, seats: 1}}]}}]'
        async with gateway(config) as process:
            first = await Client.connect(process.url)
            first.send(chat())
            await until(lambda: len(upstream.visits) == 1, within_s=5)
            before = memory_of(process.pid)
            bodies = [json.dumps(chat(user=str(number % 10) * SIZE)).encode() for number in range(COUNT)]
            clients = []
            for number, body in enumerate(bodies):
                client = await Client.connect(process.url)
                client.send(body)
                await client.writer.drain()
                await until(functools.partial(held, process.pid, number + 1), within_s=5)
                clients.append(client)
            assert memory_of(process.pid) - before < COUNT * SIZE / 2
            clients.pop().leave()
            await until(functools.partial(held, process.pid, COUNT - 1), within_s=2)
            go.set()
            assert [(await client.answer()).status for client in clients] == [200] * (COUNT - 1)
            assert sorted(seen) == sorted(hashlib.sha256(body).hexdigest() for body in bodies[:-1])
            await until(functools.partial(held, process.pid, 0), within_s=2)
            for client in (first, *clients):
                client.leave()
