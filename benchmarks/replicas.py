"""Three gateways on a real Valkey beside one alone, under 2.5 times the load, and what faults cost.

All of p0 comes to one gateway and all of p2 to another. What ran at once is read from the engine's own record. All
share the machine: gateways, store, engine and clients, so waits are upper bounds; compare the rows of one run.

Two more rows ask one thing each: what a store that hangs adds to requests for which each gateway's share has room
(four times the seats, at 0.45 of what they can do), and how long a tenant of 0.3 times the capacity waits while another
one floods another gateway with three times the capacity.

``python -m benchmarks.replicas [--seats N] [--hold-s S] [--seconds S] [--only PART_OF_A_NAME]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path

from tidegate.config import key_digest
from tidegate.testing.replicas import NO_RESERVE, Pool, for_a_while, quantile, replica_pool
from tidegate.testing.valkey import ValkeyProcess, valkey_process

Row = tuple[str, str, str]
SETTLE_S = 4.0
TTL_S = 5.0
NORMAL_S = 10.0
"""After a fault, until which the order is to be as before."""
LOOK_S = 5.0


def run() -> Iterator[Row]:
    """Give the rows of the table of all benchmarks."""
    yield from _run(seats=16, hold_s=1.0, seconds=20.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--hold-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    options = parser.parse_args()
    rows = _run(seats=options.seats, hold_s=options.hold_s, seconds=options.seconds, only=options.only)
    for name, value, note in rows:
        sys.stdout.write(f"{name:<44} {value}  {note}\n")
        sys.stdout.flush()


def _run(*, seats: int, hold_s: float, seconds: float, only: str = "") -> Iterator[Row]:
    for count in (1, 3):
        if only in _NORMAL[count]:
            yield asyncio.run(_normal(count, seats, hold_s, seconds))
    for name, story in FAULTS.items():
        if only in name:
            yield asyncio.run(_fault(name, story, seats, hold_s, seconds))
    for name, work in ALONE.items():
        if only in name:
            yield asyncio.run(work(name, seats, hold_s, seconds))


_NORMAL = {1: "one gateway alone", 3: "three gateways"}


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
                found.append((f"{_NORMAL[count]}, 2.5 times the load", _p0(pool, began, ended), note))

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
                await asyncio.sleep(NORMAL_S + LOOK_S)
                now = time.monotonic()
                most, used = pool.running(ended + NORMAL_S, now)
                waits = pool.waits(0, ended + NORMAL_S - hold_s, now - hold_s)
                after = (
                    f"from {NORMAL_S:g} s after it p0 waits {1000 * quantile(waits, 0.5):.0f} ms at the median, "
                    f"{100 * used:.0f} % used, at most {max(most, pool.running(ended + hold_s, now)[0])} running"
                )
                late = pool.running(began + TTL_S + 0.5 + hold_s, ended)[1]
                note = (
                    f"{_seen(pool, began, ended)}, {100 * late:.0f} % once the lease is over; {after}; "
                    f"{pool.failed} lost, {len(pool.twice())} sent twice"
                )
                found.append((f"{name}, {seconds:g} s", _p0(pool, began, ended), note))

            await for_a_while(pool.overload(), play)
            return found[0]


async def _hang_below_capacity(name: str, seats: int, hold_s: float, seconds: float) -> Row:
    """What requests for which each gateway's share has room see of a store that hangs, and of its return."""
    seats *= 4
    with tempfile.TemporaryDirectory() as folder, valkey_process() as store:
        url = f"valkey://127.0.0.1:{{port}}#{store.port}"
        async with replica_pool(Path(folder), url, seats=seats, hold_s=hold_s) as pool:
            marks: list[float] = []

            async def play() -> None:
                await asyncio.sleep(2 * SETTLE_S)
                marks.append(time.monotonic())
                for _ in range(4):
                    store.pause()
                    await asyncio.sleep(seconds / 8)
                    store.resume()
                    await asyncio.sleep(seconds / 8)
                marks.append(time.monotonic())
                await asyncio.sleep(2 * hold_s)

            await for_a_while([pool.feed(each, band, 0.05) for each in range(3) for band in range(3)], play)

            def longest(since: float, until: float) -> tuple[str, float, int]:
                times = sorted(each.total_s - hold_s for each in pool.told if since <= each.at < until)
                cuts = " / ".join(f"{1000 * quantile(times, part):.0f}" for part in (0.5, 0.99, 1.0))
                return cuts, quantile(times, 1.0), len(times)

            before, least, _ = longest(marks[0] - SETTLE_S, marks[0])
            during, most, count = longest(*marks)
            note = (
                f"beyond the answer's own time {during} ms (p50, p99, longest of {count}) while the store hung four "
                f"times, before {before} ms; {pool.failed} lost, {len(pool.twice())} sent twice"
            )
            return (f"{name}", f"longest {1000 * (most - least):+.0f} ms", note)


async def _tenants(name: str, seats: int, hold_s: float, seconds: float) -> Row:
    """A tenant at 0.3 times the capacity beside a flood of three times it, which comes to another gateway."""
    listed = ", ".join(
        f'{{name: {each}, keys: ["{key_digest(f"key-{each}")}"], band: p1}}' for each in ("small", "flood")
    )
    with tempfile.TemporaryDirectory() as folder, valkey_process() as store:
        url = f"valkey://127.0.0.1:{{port}}#{store.port}"
        more = f"{NO_RESERVE}tenants: [{listed}]\n"
        async with replica_pool(Path(folder), url, seats=seats, hold_s=hold_s, more=more) as pool:
            found: list[Row] = []

            async def play() -> None:
                await asyncio.sleep(SETTLE_S)
                began = time.monotonic()
                await asyncio.sleep(seconds)
                ended = time.monotonic()
                small = pool.waits(1, began, ended - hold_s - 2.0, 0)
                waits = " / ".join(f"{1000 * quantile(small, part):.0f}" for part in (0.5, 0.99))
                note = f"{len(small)} of its requests, {len(pool.order(began, ended))} of both"
                found.append((name, f"the small one waits {waits} ms (p50 / p99)", note))

            await for_a_while(
                [pool.feed(0, 1, 0.3, key="key-small"), pool.feed(1, 1, 3.0, key="key-flood")],
                play,
            )
            return found[0]


ALONE: dict[str, Callable[[str, int, float, float], Coroutine[None, None, Row]]] = {
    "store hangs, seats to spare": _hang_below_capacity,
    "a tenant beside a flood": _tenants,
}


def _p0(pool: Pool, began: float, ended: float) -> str:
    waits = pool.waits(0, began, ended)
    return f"p0 waits {1000 * quantile(waits, 0.5):.0f} / {1000 * quantile(waits, 0.99):.0f} ms"


def _seen(pool: Pool, began: float, ended: float) -> str:
    most, used = pool.running(began, ended)
    return f"at most {most} of {pool.seats} running, {100 * used:.0f} % used"


if __name__ == "__main__":
    main()
