"""The two ends of the dashboard's bench, each a process of its own.

``python -m benchmarks.dashboard_ends pace RATE SECONDS URL`` sends RATE requests a second, each when it is due, over a
few connections. ``screens COUNT SECONDS URL`` holds COUNT dashboards open and counts what comes. Both print one line of
JSON at the end, the screens also ``open`` once all of them are.
"""

from __future__ import annotations

import asyncio
import json
import sys
from urllib.parse import urlsplit

from benchmarks.load import connect

CONNECTIONS = 16


async def pace(rate: float, seconds: float, url: str) -> dict[str, float]:
    """Send at a steady rate; a request whose connection is busy goes as soon as it is free."""
    clients = [await connect(url, stream=False) for _ in range(CONNECTIONS)]
    loop = asyncio.get_running_loop()
    began = loop.time()
    sent = 0

    async def work(index: int) -> None:
        nonlocal sent
        for number in range(index, int(rate * seconds), CONNECTIONS):
            wait_s = began + number / rate - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await clients[index].ask()
            sent += 1

    await asyncio.gather(*map(work, range(CONNECTIONS)))
    return {"requests": sent, "seconds": loop.time() - began}


async def screens(count: int, seconds: float, url: str) -> dict[str, float]:
    """Hold dashboards open."""
    where = urlsplit(url)
    request = f"GET /admin/events HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode()
    frames, size = 0, 0

    async def hold(opened: asyncio.Event) -> None:
        nonlocal frames, size
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(request)
        try:
            while data := await reader.read(2**17):
                opened.set()
                frames += data.count(b"event: numbers")
                size += len(data)
        finally:
            writer.close()

    events = [asyncio.Event() for _ in range(count)]
    tasks = [asyncio.ensure_future(hold(event)) for event in events]
    for event in events:
        await asyncio.wait_for(event.wait(), 10)
    print("open", flush=True)
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"frames": frames, "bytes": size}


def main(kind: str, amount: str, seconds: str, url: str) -> None:
    """Do as the module's docstring says."""
    work = pace(float(amount), float(seconds), url) if kind == "pace" else screens(int(amount), float(seconds), url)
    print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    main(*sys.argv[1:])
