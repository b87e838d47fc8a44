"""What the ledger of a shared pool costs: dispatches a second and the time of a turn, at 2, 16 and 64 replicas.

Replicas in two processes report as fast as they are answered: three bands with eight tickets of twenty tenants each,
and one seat that comes back with every report. Clients take most of the machine, so the figure that tells what a store
carries is dispatches per second of *its* processor time: what one store core does. A live pool makes up to three calls
for a dispatch, and the second figure scales by that; ``benchmarks.ledger_live`` counts what it really makes.

``python -m benchmarks.ledger [KIND ...]`` with kinds of valkey, postgres, socket; all by default.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import os
import random
import socket as sockets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.stores.ledger_protocol import (
    PPM,
    BackendConfig,
    BandConfig,
    Bid,
    Head,
    Ledger,
    LedgerStore,
    LedgerUnavailable,
    PoolConfig,
    PoolView,
    Report,
)
from tidegate.stores.ledger_socket import serve_ledger
from tidegate.stores.open_ledger import open_ledger

SECONDS = float(os.environ.get("TIDEGATE_LEDGER_SECONDS", "5"))
CALLS_LIVE = 3.0
"""The most calls for a dispatch in a live pool."""
SEATS = 64
TENANTS = [f"tenant-{index}" for index in range(20)]
CONFIG = PoolConfig(
    version=1,
    bands=(
        BandConfig(name="p0", weight_ppm=100 * PPM, aging_ppm=50_000),
        BandConfig(name="p1", weight_ppm=20 * PPM, aging_ppm=20_000, floor_ppm=50_000),
        BandConfig(name="p2", weight_ppm=PPM, aging_ppm=5_000, floor_ppm=50_000),
    ),
    backends=(BackendConfig(name="gpu-a", seats=SEATS // 2), BackendConfig(name="gpu-b", seats=SEATS // 2)),
    rebuild_ms=0,
    heartbeat_ms=5000,
)
Cpu = Callable[[], float]


async def replica(ledger: Ledger, name: str, until: float, times: list[float]) -> None:
    """Report and report again; one request ends between two reports."""
    rng = random.Random(name)
    epoch = sequence = ack = 0
    used: list[str] = []
    while time.monotonic() < until:
        sequence += 1
        if used:
            used.pop(rng.randrange(len(used)))
        counts = tuple((backend.name, used.count(backend.name)) for backend in CONFIG.backends)
        bids = tuple(_bid(rng, band) for band in range(3))
        began = time.perf_counter()
        try:
            reply = await ledger.turn(name, Report(epoch=epoch, sequence=sequence, ack=ack, used=counts, bids=bids))
        except LedgerUnavailable:  # on a machine that is this busy; the next report says it again
            continue
        times.append(time.perf_counter() - began)
        if reply.epoch != epoch:
            epoch, ack, sequence = reply.epoch, 0, 1
        for grant in reply.grants:
            if grant.number > ack:
                ack = grant.number
                used.append(grant.backend)


def _bid(rng: random.Random, band: int) -> Bid:
    heads = tuple(Head(900 - 100 * index, rng.choice(TENANTS), rng.randint(50, 800)) for index in range(8))
    return Bid(band, 40, heads[0], heads)


async def drive(url: str, names: list[str], seconds: float) -> list[float]:
    """Run replicas in this process; return the times of their turns, seconds."""
    store = open_ledger(url)
    ledger = store.pool("bench")
    await ledger.configuration()
    subscriptions = [ledger.subscribe(name, lambda _: None) for name in names]
    await asyncio.sleep(0.5)
    times: list[float] = []
    until = time.monotonic() + seconds
    await asyncio.gather(*(replica(ledger, name, until, times) for name in names))
    for subscription in subscriptions:
        await subscription.close()
    await store.close()
    return times


def _worker(url: str, names: list[str], seconds: float, answer: multiprocessing.connection.Connection) -> None:
    answer.send(asyncio.run(drive(url, names, seconds)))


async def _with_pool(url: str, work: str) -> PoolView | None:
    store: LedgerStore = open_ledger(url)
    ledger = store.pool("bench")
    if work == "configure":
        await ledger.configure(CONFIG)
    view = await ledger.view()
    await store.close()
    return view


def measure(name: str, url: str, count: int, cpu: Cpu) -> None:
    """Print one row."""
    asyncio.run(_with_pool(url, "configure"))
    names = [f"replica-{index}" for index in range(count)]
    context = multiprocessing.get_context("spawn")
    before, spent = _granted(url), cpu()
    workers, times = [], list[float]()
    for part in (names[::2], names[1::2]):
        ours, theirs = context.Pipe()
        worker = context.Process(target=_worker, args=(url, part, SECONDS, theirs))
        worker.start()
        theirs.close()  # so that a worker that fails is noticed
        workers.append((worker, ours))
    for worker, ours in workers:
        times += ours.recv()
        worker.join()
    granted, used = _granted(url) - before, cpu() - spent
    cuts = statistics.quantiles(times, n=100)
    cells = [name, str(count), f"{len(times) / SECONDS:,.0f}", f"{granted / SECONDS:,.0f}"]
    cells += [f"{granted / used:,.0f}", f"{len(times) / used / CALLS_LIVE:,.0f}", f"{used / len(times) * 1e6:.0f}"]
    cells.append(f"{cuts[49] * 1000:.2f} / {cuts[98] * 1000:.2f}")
    print(f"| {' | '.join(cells)} |", flush=True)


def _granted(url: str) -> int:
    view = asyncio.run(_with_pool(url, "look"))
    return view.granted if view else 0


def cpu_of_tree(pid: int) -> float:
    """Return the processor time of a process and all below it, seconds."""
    ticks = 0
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
            spent[int(folder.name)] = sum(int(field) for field in fields[11:15])
    for each in parents:
        above = each
        while above > 1 and above != pid:
            above = parents.get(above, 0)
        ticks += spent[each] if above == pid else 0
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def valkey() -> Iterator[tuple[str, Cpu]]:
    """A Valkey of its own."""
    from tidegate.testing.valkey import valkey_process

    with valkey_process() as server:
        yield server.url, server.cpu_s


@contextmanager
def postgres() -> Iterator[tuple[str, Cpu]]:
    """A PostgreSQL of its own. The decision is taken in the clients, so its processor time is not the whole."""
    from tidegate.testing.postgres import postgres_process

    with postgres_process() as server:
        process = server._process
        assert process is not None
        pid = process.pid
        yield server.url, lambda: cpu_of_tree(pid)


def _serve(path: str) -> None:
    async def work() -> None:
        await serve_ledger(path)
        await asyncio.Event().wait()

    asyncio.run(work())


def _answers(path: str) -> bool:
    with sockets.socket(sockets.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


@contextmanager
def socket() -> Iterator[tuple[str, Cpu]]:
    """The ledger of one machine in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        path = f"{folder}/ledger"
        server = multiprocessing.get_context("spawn").Process(target=_serve, args=(path,), daemon=True)
        server.start()
        while not _answers(path):
            time.sleep(0.02)
        assert server.pid is not None
        pid = server.pid
        yield f"unix://{path}", lambda: cpu_of_tree(pid)
        server.kill()
        server.join()


KINDS = {"valkey": (valkey, (2, 16, 64)), "postgres": (postgres, (2, 8, 16)), "socket": (socket, (2, 8))}


def main(kinds: list[str]) -> None:
    """Print the table of docs/scale.md."""
    heads = ["store", "replicas", "calls/s", "dispatches/s", "dispatches per store core", "at 3 calls each"]
    heads += ["store CPU µs a call", "turn p50 / p99 ms"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for kind in kinds or list(KINDS):
        place, counts = KINDS[kind]
        for count in counts:
            with place() as (url, cpu):
                measure(kind, url, count, cpu)


if __name__ == "__main__":
    main(sys.argv[1:])
