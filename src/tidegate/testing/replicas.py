"""Several gateways on one engine and one store, each in a process of its own, and clients that overload them.

Where wanted, each gateway reaches the store through a wire that can be cut. The engine writes down when each request
came, so that what ran at once is known from outside, whatever the gateways believe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tidegate.testing.counting_engine import CountingEngine, counting_engine
from tidegate.testing.gateway_process import GatewayProcess, gateway_process

BANDS = ("p0", "p1", "p2")
LOAD = (0.40, 0.50, 1.60)
"""Of the capacity, by band: 2.5 times it all together."""
NO_RESERVE = "policy: {bands: {p0: {reserve: 0}, p1: {shed_hopeless: no}}}\n"
"""Settings with which every seat is used while anything waits."""

_BAND = 1_000_000  # a request's number is its band times this, and a count


@dataclass(slots=True, frozen=True)
class Told:
    """One answer. Times in seconds; ``at`` of the monotonic clock, when it was sent; ``row`` is its number."""

    row: int
    band: int
    gateway: int
    at: float
    total_s: float
    wait_s: float
    status: int


class Wire:
    """A TCP proxy to the store. While ``cut`` nothing passes in either direction, and connections stay."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def cut(self) -> bool:
        """Whether nothing passes."""
        return not self._open.is_set()

    @cut.setter
    def cut(self, cut: bool) -> None:
        (self._open.clear if cut else self._open.set)()

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Hang up."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers.add(back)
            try:
                await asyncio.gather(self._pipe(reader, back), self._pipe(there, writer))
            finally:
                self._writers.discard(back)
                back.close()
        except (OSError, asyncio.CancelledError):
            pass  # the server of the standard library complains about a connection whose task was cancelled
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        except (OSError, ConnectionError):
            pass
        finally:
            writer.close()


@dataclass(slots=True)
class Pool:
    """What runs: ``seats`` on one engine that takes ``hold_s`` for each request."""

    seats: int
    hold_s: float
    engine: CountingEngine
    gateways: list[GatewayProcess]
    wires: list[Wire]
    told: list[Told] = field(default_factory=list)
    failed: int = 0
    _numbers: list[int] = field(default_factory=lambda: [0, 0, 0])
    _idle: dict[int, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def opened(self, timeout_s: float = 40.0) -> None:
        """Wait until all gateways work on grants."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            states = await asyncio.gather(*(asyncio.to_thread(each.state) for each in self.gateways))
            pools = [next(iter(state["cluster"]["pools"].values())) for state in states]
            alive = {len(pool["replicas"]) for pool in pools}
            if all(pool["standing"] == "shared" for pool in pools) and alive == {len(self.gateways)}:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"expected an open pool after {timeout_s:g} s, got {pools}")

    def feed(self, gateway: int, band: int, part: float, *, key: str = "", seed: int = 0) -> asyncio.Task[None]:
        """Send requests of a band to a gateway at a part of the capacity, evenly at random, until cancelled."""
        return asyncio.ensure_future(self._feed(gateway, band, part, key, random.Random(f"{gateway} {band} {seed}")))

    def overload(self, *, vip: int = 0, batch: int = -1) -> list[asyncio.Task[None]]:
        """2.5 times the capacity: all of p0 at one gateway, all of p2 at another, p1 everywhere."""
        count = len(self.gateways)
        tasks = [self.feed(vip, 0, LOAD[0]), self.feed(batch % count, 2, LOAD[2])]
        return tasks + [self.feed(each, 1, LOAD[1] / count) for each in range(count)]

    async def _feed(self, gateway: int, band: int, part: float, key: str, rng: random.Random) -> None:
        rate = part * self.seats / self.hold_s
        due = time.monotonic()
        while True:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.start(gateway, band, key)

    def start(self, gateway: int, band: int, key: str = "") -> None:
        """Send one request, and let it go on by itself."""
        task = asyncio.ensure_future(self.send(gateway, band, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def send(self, gateway: int, band: int, key: str = "") -> None:
        """Send one request, and note how it fared."""
        self._numbers[band] += 1
        row = band * _BAND + self._numbers[band]
        body = json.dumps(
            {
                "model": "raw",
                "max_tokens": 8,
                "messages": [{"role": "user", "content": f"row {row}"}],
            }
        ).encode()
        target = urlsplit(self.gateways[gateway].url)
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            f"host: {target.netloc}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"x-tidegate-band: {BANDS[band]}",
            *([f"authorization: Bearer {key}"] if key else []),
        ]
        at = time.monotonic()
        try:
            status, wait_s = await self._exchange(gateway, target.port or 80, "\r\n".join(lines).encode(), body)
        except (OSError, EOFError, ValueError):
            self.failed += 1
            return
        self.told.append(Told(row, band, gateway, at, time.monotonic() - at, wait_s, status))

    async def _exchange(self, gateway: int, port: int, head: bytes, body: bytes) -> tuple[int, float]:
        idle = self._idle.setdefault(gateway, [])
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head + b"\r\n\r\n" + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            fields = dict(line.split(": ", 1) for line in answer.split("\r\n")[1:-2])
            await reader.readexactly(int(fields.get("content-length", 0)))
        except BaseException:
            writer.close()
            raise
        idle.append((reader, writer))
        return int(answer.split(" ", 2)[1]), float(fields.get("x-tidegate-queue-ms", 0)) / 1000.0

    async def close(self) -> None:
        """End what is open, and hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pairs in self._idle.values():
            for _, writer in pairs:
                writer.close()

    # What came of it.

    def waits(self, band: int, since: float, until: float, gateway: int | None = None) -> list[float]:
        """Waits of those that were sent in a time and answered with 200, in order."""
        return sorted(
            each.wait_s
            for each in self.told
            if each.band == band and since <= each.at < until and each.status == 200 and gateway in (None, each.gateway)
        )

    def order(self, since: float, until: float) -> list[int]:
        """The bands that the engine was asked for, in order."""
        return [each.row // _BAND for each in self.engine.asked() if since <= each.at < until]

    def running(self, since: float, until: float) -> tuple[int, float]:
        """Return the most that ran at once in a time, and the part of the seats that was used."""
        events = [(each.at, 1) for each in self.engine.asked()] + [(each.at, -1) for each in self.engine.ended()]
        events = [*sorted(each for each in events if each[0] < until), (until, 0)]
        now = most = 0
        used = last = 0.0
        for at, step in events:
            if at > since:
                span = min(at, until) - max(last, since)
                used += max(0.0, span) * min(now, self.seats)
            now, last = now + step, at
            if since <= at < until:
                most = max(most, now)
        return most, used / (self.seats * (until - since))

    def twice(self) -> list[int]:
        """Numbers of the requests that the engine was asked for more than once."""
        return [row for row, count in self.engine.calls().items() if count > 1]


def quantile(values: Sequence[float], part: float) -> float:
    """Return a quantile of sorted values; 0 of none."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


@contextlib.asynccontextmanager
async def replica_pool(
    folder: Path,
    store: str,
    *,
    gateways: int = 3,
    seats: int = 16,
    hold_s: float = 0.5,
    more: str = NO_RESERVE,
    cluster: str = "",
    cut: bool = False,
) -> AsyncIterator[Pool]:
    """Run gateways on a store and an engine.

    Args:
        folder: for the engine's record.
        store: URL with ``{port}`` where the port goes, behind it ``#PORT`` of the store; empty: each gateway is alone.
        gateways: how many.
        seats: of the engine.
        hold_s: time that each request takes there.
        more: lines of the settings file.
        cluster: more of the block ``cluster``, beginning with a comma.
        cut: each gateway reaches the store through a wire of its own.
    """
    url, _, port = store.partition("#")
    async with contextlib.AsyncExitStack() as stack:
        engine = stack.enter_context(counting_engine(folder / "asked", delay_s=hold_s))
        wires: list[Wire] = []
        starts: list[Callable[[], GatewayProcess]] = []
        for number in range(gateways):
            block = ""
            if store:
                if cut:
                    wire = Wire(int(port))
                    await wire.start()
                    stack.push_async_callback(wire.close)
                    wires.append(wire)
                place = url.replace("{port}", str(wires[-1].port) if cut else port)
                block = f'cluster: {{store: "{place}", replica: r{number}{cluster}}}\n'
            backend = f'{{name: b, url: "{engine.url}", engine: openai, seats: {seats}}}'
            config = f"models: [{{name: raw, backends: [{backend}]}}]\n{block}{more}"
            starts.append(partial(stack.enter_context, gateway_process(config=config)))
        running = list(await asyncio.gather(*(asyncio.to_thread(start) for start in starts)))
        pool = Pool(seats, hold_s, engine, running, wires)
        stack.push_async_callback(pool.close)
        if store:
            await pool.opened()
        yield pool


async def for_a_while(tasks: Sequence[asyncio.Task[None]], story: Callable[[], Awaitable[None]]) -> None:
    """Run a story while tasks go on, and end these."""
    try:
        await story()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
