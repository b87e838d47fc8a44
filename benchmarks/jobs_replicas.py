"""Batches on several gateways that share a PostgreSQL and one order, beside one gateway alone; then one is killed.

All of p0 comes to the first gateway; p1, more than there are seats for, to all but the last. The rows of two batches
are pumped by all, and compete for seats as any work of p2 does. Halfway the last gateway, which has nothing but rows,
is killed. Then the load ends, and the batches run to their end. What the engine was asked for, and in which order, is
read from its own record. All share the machine, so waits are upper bounds; compare the rows of one run.

``python -m benchmarks.jobs_replicas [--gateways N] [--rows N] [--seats N] [--hold-s S] [--seconds S]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.cli._server import Server
from tidegate.testing.postgres import postgres_process
from tidegate.testing.replicas import NO_RESERVE, Pool, for_a_while, quantile, replica_pool
from tidegate.testing.valkey import valkey_process

Row = tuple[str, str, str]
FIRST_ROW = 2_500_000
"""The engine's record takes a number for one of p2 by its millions."""
SETTLE_S = 2.0
END_S = 60.0
P0_LOAD, P1_LOAD = 0.4, 1.2
"""Of the capacity."""


@dataclass(slots=True, frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        waits: of p0, seconds, in order.
        others: of p1, likewise.
        window: least of p2 among any 100 requests that the engine got in a row; ``None``: there were fewer.
        shares: rows that each gateway sent before the kill.
        in_flight: rows that the killed gateway had at the engine just before.
        records: how many records each row has in the files.
        calls: how often the engine was asked for each row.
        failed: requests of p0 and p1 without an answer.
        end_s: seconds from the end of the load until both batches had ended.
    """

    waits: list[float]
    others: list[float]
    window: int | None
    shares: list[int]
    in_flight: int
    records: Counter[str]
    calls: Counter[int]
    failed: int
    end_s: float


def run() -> Iterator[Row]:
    """Give the rows of the table of all benchmarks."""
    for gateways in (1, 3):
        outcome = asyncio.run(story(gateways=gateways, rows=400, seats=16, hold_s=0.5, seconds=20.0))
        yield row_of(gateways, 400, outcome)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--hold-s", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for gateways in sorted({1, options.gateways}):
        sizes = {"rows": options.rows, "seats": options.seats}
        outcome = asyncio.run(story(gateways=gateways, hold_s=options.hold_s, seconds=options.seconds, **sizes))
        name, value, note = row_of(gateways, options.rows, outcome)
        sys.stdout.write(f"{name:<44} {value}  {note}\n")
        sys.stdout.flush()


def row_of(gateways: int, rows: int, outcome: Outcome) -> Row:
    """Write an outcome as a row of the table."""
    more = outcome.calls.total() - len(outcome.calls)
    note = (
        f"{len(outcome.records)} of {rows} rows with a record, most of one {max(outcome.records.values(), default=0)}; "
        f"{more} asked for again, {outcome.in_flight} in flight at the kill; p2 in any 100 at least {outcome.window}; "
        f"rows by gateway {outcome.shares}; {outcome.failed} requests lost; ended {outcome.end_s:.0f} s after the load"
    )
    waits = f"p0 waits {1000 * quantile(outcome.waits, 0.5):.0f} / {1000 * quantile(outcome.waits, 0.99):.0f} ms"
    return f"batches at {gateways} gateway{'s' if gateways > 1 else ''}, 1.6 times the load", waits, note


async def story(*, gateways: int, rows: int, seats: int, hold_s: float, seconds: float) -> Outcome:
    """Play it once. The last gateway is killed where there is more than one."""
    with tempfile.TemporaryDirectory() as name, valkey_process() as store, postgres_process() as postgres:
        folder = Path(name)
        more = NO_RESERVE + f'jobs: {{store: "{postgres.url}", files: "{folder}/files"}}\n'
        url = "" if gateways == 1 else f"valkey://127.0.0.1:{{port}}#{store.port}"
        async with replica_pool(folder, url, gateways=gateways, seats=seats, hold_s=hold_s, more=more) as pool:
            return await _play(pool, folder, rows, seconds)


async def _play(pool: Pool, folder: Path, rows: int, seconds: float) -> Outcome:
    batches = [
        await asyncio.to_thread(_submit, pool.gateways[0].url, folder, range(first, rows, 2)) for first in range(2)
    ]
    count = len(pool.gateways)
    busy = max(1, count - 1)
    tasks = [pool.feed(0, 0, P0_LOAD)] + [pool.feed(each, 1, P1_LOAD / busy) for each in range(busy)]
    waits: list[float] = []
    others: list[float] = []
    order: list[int] = []
    shares: list[int] = []
    in_flight = 0

    async def load() -> None:
        nonlocal in_flight
        await asyncio.sleep(SETTLE_S)
        began = time.monotonic()
        await asyncio.sleep(seconds / 2)
        totals = [await asyncio.to_thread(each.total, "tidegate_dispatch_total", band="p2") for each in pool.gateways]
        shares.extend(int(each) for each in totals)
        if count > 1:
            dead = pool.gateways[-1]
            in_flight = int(await asyncio.to_thread(dead.total, "tidegate_running", band="p2"))
            dead.signal(signal.SIGKILL)
            await asyncio.to_thread(dead.wait, 10.0)
        await asyncio.sleep(seconds / 2)
        ended = time.monotonic()
        waits.extend(pool.waits(0, began, ended))
        others.extend(pool.waits(1, began, ended))
        order.extend(pool.order(began, ended))

    await for_a_while(tasks, load)
    over = time.monotonic()
    records = Counter[str]()
    for batch in batches:
        records += await asyncio.to_thread(_records, pool.gateways[0].url, batch)
    windows = [order[at : at + 100].count(2) for at in range(len(order) - 99)]
    calls = Counter(row for row in pool.engine.calls().elements() if row >= FIRST_ROW)
    return Outcome(
        waits,
        others,
        min(windows, default=None),
        shares,
        in_flight,
        records,
        calls,
        pool.failed,
        time.monotonic() - over,
    )


def _submit(url: str, folder: Path, numbers: range) -> dict[str, Any]:
    source = folder / f"in-{numbers.start}.jsonl"
    with source.open("w", encoding="utf-8") as target:
        for number in numbers:
            body = {"model": "raw", "messages": [{"role": "user", "content": f"row {FIRST_ROW + number}"}]}
            line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            target.write(json.dumps(line) + "\n")
    file = Server(url, None).upload(source)
    wish = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return Server(url, None).ask("POST", "/v1/batches", wish)


def _records(url: str, batch: dict[str, Any]) -> Counter[str]:
    """Wait for a batch's end; return how many records each of its rows has."""
    end = time.monotonic() + END_S
    while batch["status"] != "completed":
        if time.monotonic() > end:
            raise RuntimeError(f"expected the batch to end within {END_S:g} s, got {batch}")
        batch = Server(url, None).ask("GET", f"/v1/batches/{batch['id']}?wait=10s")
    names = Counter[str]()
    for key in ("output_file_id", "error_file_id"):
        if batch[key]:
            with urllib.request.urlopen(f"{url}/v1/files/{batch[key]}/content", timeout=60) as answer:
                names.update(json.loads(line)["custom_id"] for line in answer)
    return names


if __name__ == "__main__":
    main()
