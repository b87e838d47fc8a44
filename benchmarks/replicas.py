"""Three gateways on a real Valkey beside one alone, under 2.5 times the load, and what faults cost.

All of p0 comes to one gateway and all of p2 to another. What ran at once is read from the engine's own record. All
share the machine: gateways, store, engine and clients, so waits are upper bounds; compare the rows of one run.

``python -m benchmarks.replicas [--seats N] [--hold-s S] [--seconds S]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from tidegate.testing.replicas import Pool, for_a_while, quantile, replica_pool
from tidegate.testing.valkey import ValkeyProcess, valkey_process

Row = tuple[str, str, str]
SETTLE_S = 4.0
TTL_S = 5.0


def run() -> Iterator[Row]:
    """Give the rows of the table of all benchmarks."""
    yield from _run(seats=16, hold_s=1.0, seconds=20.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--hold-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for name, value, note in _run(seats=options.seats, hold_s=options.hold_s, seconds=options.seconds):
        sys.stdout.write(f"{name:<44} {value}  {note}\n")
        sys.stdout.flush()


def _run(*, seats: int, hold_s: float, seconds: float) -> Iterator[Row]:
    for count in (1, 3):
        yield asyncio.run(_normal(count, seats, hold_s, seconds))
    for name, story in FAULTS.items():
        yield asyncio.run(_fault(name, story, seats, hold_s, seconds))


async def _normal(count: int, seats: int, hold_s: float, seconds: float) -> Row:
    with tempfile.TemporaryDirectory() as folder, valkey_process() as store:
        url = "" if count == 1 else f"valkey://127.0.0.1:{{port}}#{store.port}"
        async with replica_pool(Path(folder), url, gateways=count, seats=seats, hold_s=hold_s) as pool:
            found: list[Row] = []

            async def story() -> None:
                await asyncio.sleep(SETTLE_S)
                began = time.monotonic()
                await asyncio.sleep(seconds)
                ended = time.monotonic()
                order = pool.order(began, ended)
                least = min((order[at : at + 100].count(2) for at in range(max(0, len(order) - 100))), default=0)
                note = f"{_seen(pool, began, ended)}; p2 in any 100 at least {least}"
                if count > 1:
                    metrics = [await asyncio.to_thread(each.metrics) for each in pool.gateways]
                    calls = sum(each['tidegate_store_calls_total{outcome="completed"}'] for each in metrics)
                    spent = sum(each["tidegate_store_call_seconds_total"] for each in metrics)
                    note += (
                        f"; {calls / max(1, len(pool.told)):.1f} calls a request, {1000 * spent / calls:.1f} ms each"
                    )
                found.append(
                    (f"{count} gateway{'s' if count > 1 else ''}, 2.5 times the load", _p0(pool, began, ended), note)
                )

            await for_a_while(pool.overload(), story)
            return found[0]


Story = Callable[[Pool, ValkeyProcess, float], Awaitable[None]]


async def _hang(_: Pool, store: ValkeyProcess, seconds: float) -> None:
    store.pause()
    await asyncio.sleep(seconds)
    store.resume()


async def _wipe(_: Pool, store: ValkeyProcess, seconds: float) -> None:
    store.kill()
    await asyncio.sleep(1.0)
    await asyncio.to_thread(store.start)
    await asyncio.sleep(seconds - 1.0)


async def _kill(pool: Pool, _: ValkeyProcess, seconds: float) -> None:
    pool.gateways[1].signal(signal.SIGKILL)
    await asyncio.sleep(seconds)


async def _freeze(pool: Pool, _: ValkeyProcess, seconds: float) -> None:
    os.kill(pool.gateways[1].pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(pool.gateways[1].pid, signal.SIGCONT)


async def _cut(pool: Pool, _: ValkeyProcess, seconds: float) -> None:
    pool.wires[0].cut = True
    await asyncio.sleep(seconds)
    pool.wires[0].cut = False


FAULTS: dict[str, Story] = {
    "store stopped": _hang,
    "store killed, back empty": _wipe,
    "gateway killed": _kill,
    "gateway frozen": _freeze,
    "gateway of p0 cut off": _cut,
}


async def _fault(name: str, story: Story, seats: int, hold_s: float, seconds: float) -> Row:
    with tempfile.TemporaryDirectory() as folder, valkey_process() as store:
        url = f"valkey://127.0.0.1:{{port}}#{store.port}"
        cut = story is _cut
        async with replica_pool(Path(folder), url, seats=seats, hold_s=hold_s, cut=cut) as pool:
            found: list[Row] = []

            async def play() -> None:
                await asyncio.sleep(2 * SETTLE_S)
                began = time.monotonic()
                await story(pool, store, seconds)
                ended = time.monotonic()
                await asyncio.sleep(TTL_S + 2.0)
                after = f"after it at most {pool.running(ended + hold_s, time.monotonic())[0]}"
                note = f"{_seen(pool, began, ended)}; {after}; {pool.failed} lost, {len(pool.twice())} sent twice"
                found.append((f"{name}, {seconds:g} s", _p0(pool, began, ended), note))

            await for_a_while(pool.overload(), play)
            return found[0]


def _p0(pool: Pool, began: float, ended: float) -> str:
    waits = pool.waits(0, began, ended)
    return f"p0 waits {1000 * quantile(waits, 0.5):.0f} / {1000 * quantile(waits, 0.99):.0f} ms"


def _seen(pool: Pool, began: float, ended: float) -> str:
    most, used = pool.running(began, ended)
    return f"at most {most} of {pool.seats} running, {100 * used:.0f} % used"


if __name__ == "__main__":
    main()
