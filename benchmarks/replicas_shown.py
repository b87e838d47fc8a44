"""What is promised of three gateways that share 16 seats on a real Valkey, with a yes or a no for each part.

One gateway alone and three are sent the same requests at the same times, 2.5 times the load, and their engine gives
seats back at the same times (``tidegate.testing.replica_course``); all of p0 comes to one gateway and all of p2 to
another. So each p0 request has its like, and the difference of their waits is what coordination costs. A wait is the
time from when the client sends a request until the engine has it, the order of grants what the store itself wrote down.

``python -m benchmarks.replicas_shown [--seats N] [--hold-s S] [--seconds S]``; ends with 1 when something is a no.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.config import key_digest
from tidegate.core import Policy
from tidegate.testing.gateway_process import GatewayProcess
from tidegate.testing.grant_journal import GrantJournal, Noted, least_of, most_passing
from tidegate.testing.replica_course import Course, Stream, course, difference, idle_s, overload, play, waits_s
from tidegate.testing.replicas import NO_RESERVE, quantile, replica_pool
from tidegate.testing.valkey import valkey_process

Row = tuple[str, str, str]
WARM_S = 4.0
LEARN_S = 20.0
"""Tenants are charged what their requests are expected to take; for so long each gateway learns how much that is."""
COOL_S = 5.0
"""Waits are of requests that were sent up to so long before the end."""
WINDOW = 100
MOST_IDLE = 0.01
SMALL_S = 2.0
FLOOD = (Stream(0, 1, 0.3, "key-small"), Stream(1, 1, 3.0, "key-flood"))
_TENANTS = ", ".join(f'{{name: {each.key}, keys: ["{key_digest(each.key)}"], band: p1}}' for each in FLOOD)
_CALLS, _SPENT = 'tidegate_store_calls_total{outcome="completed"}', "tidegate_store_call_seconds_total"


@dataclass(slots=True, frozen=True)
class Seen:
    """Of one course. Times in seconds.

    Attributes:
        waits: by the number of the request; ``early`` those before the time that counts.
        most: requests that ran at once.
        used: part of the seats.
        idle_s: of a seat between two requests, in the mean.
        round_trip_s: a call to the store, in the mean; 0 without one.
        grants: in order, as the store made them.
        passed_on: requests that the engine was asked for meanwhile.
    """

    waits: dict[int, float]
    early: dict[int, float]
    most: int
    used: float
    idle_s: float
    round_trip_s: float
    grants: list[Noted]
    passed_on: int


def run() -> Iterator[Row]:
    """Give the rows of the table of all benchmarks."""
    yield from (row for _, row in _rows(16, 1.0, 120.0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--hold-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    good = True
    for holds, (name, value, note) in _rows(options.seats, options.hold_s, options.seconds):
        sys.stdout.write(f"{name:<46} {value:<26} {note}\n")
        sys.stdout.flush()
        good = good and holds
    return 0 if good else 1


def _rows(seats: int, hold_s: float, seconds: float) -> Iterator[tuple[bool, Row]]:
    plan = course(overload(3), seats=seats, hold_s=hold_s, seconds=seconds)
    alone, three = (asyncio.run(_measure(count, seats, hold_s, plan)) for count in (1, 3))
    yield _within_two(alone, three)
    yield from _floors(three.grants)
    yield _passing(three.grants)
    yield _idle(alone, three)
    plan = course(FLOOD, seats=seats, hold_s=hold_s, seconds=seconds)
    more = f"{NO_RESERVE}tenants: [{_TENANTS}]\n"
    yield _small(asyncio.run(_measure(3, seats, hold_s, plan, band=1, warm_s=LEARN_S, more=more)))


async def _measure(
    count: int,
    seats: int,
    hold_s: float,
    plan: Course,
    *,
    band: int = 0,
    warm_s: float = WARM_S,
    more: str = NO_RESERVE,
) -> Seen:
    """Play a course; the waits are those of a band at the first gateway."""
    with (
        tempfile.TemporaryDirectory() as folder,
        valkey_process() as store,
        contextlib.closing(GrantJournal(store)) as journal,
    ):
        url = "" if count == 1 else f"valkey://127.0.0.1:{{port}}#{store.port}"
        async with replica_pool(Path(folder), url, gateways=count, seats=seats, hold_s=hold_s, more=more) as pool:
            before = await _calls(pool.gateways)
            began = await play(pool, plan)
            after = await _calls(pool.gateways)
            since, until = began + warm_s, began + plan.seconds - COOL_S
            most, used = pool.running(since, until)
            return Seen(
                waits=waits_s(pool, band, since, until, gateway=0),
                early=waits_s(pool, band, began + WARM_S, since, gateway=0),
                most=most,
                used=used,
                idle_s=idle_s(pool, since, until),
                round_trip_s=(after[1] - before[1]) / max(1.0, after[0] - before[0]),
                grants=journal.grants(since, until),
                passed_on=len(pool.order(since, until)),
            )


async def _calls(gateways: list[GatewayProcess]) -> tuple[float, float]:
    """Return how many calls to the store there were so far, and the time they took."""
    told = [await asyncio.to_thread(each.metrics) for each in gateways]
    return sum(each.get(_CALLS, 0.0) for each in told), sum(each.get(_SPENT, 0.0) for each in told)


def _within_two(alone: Seen, three: Seen) -> tuple[bool, Row]:
    found = difference(three.waits, alone.waits)
    waits = [
        " / ".join(f"{1000 * quantile(sorted(each.waits.values()), part):.0f}" for part in (0.5, 0.9, 0.99))
        for each in (alone, three)
    ]
    by_quantile = " / ".join(f"{1000 * each:+.1f}" for each in found.by_quantile)
    note = (
        f"mean {1000 * found.mean:+.1f}, median of pairs {1000 * found.median:+.1f}, p50 / p90 / p99 {by_quantile} ms "
        f"of {found.count} p0; one gateway's waits {waits[0]}, three's {waits[1]} ms"
    )
    value = f"{1000 * found.most:+.1f} ms, round trip {1000 * three.round_trip_s:.1f}"
    return _row("p0 waits within two round trips of one's", found.most <= 2 * three.round_trip_s, value, note)


def _floors(grants: list[Noted]) -> Iterator[tuple[bool, Row]]:
    for number, band in enumerate(Policy().bands):
        want = int(WINDOW * band.floor)
        if want:
            least, windows = least_of(grants, number, WINDOW)
            note = f"in {windows} windows of {len(grants)} grants in which it always waited"
            name = f"{band.name} at least {want} in every {WINDOW} grants"
            yield _row(name, least >= want, f"{least} at least" if windows else "never waited so long", note)


def _passing(grants: list[Noted]) -> tuple[bool, Row]:
    cap = int(WINDOW * Policy().overtake_cap)
    most, passing = most_passing(grants, WINDOW), sum(each.passes for each in grants)
    note = f"{100 * passing / max(1, len(grants)):.1f} % of {len(grants)} pass higher work"
    return _row(f"overtakes <= {cap} + 1 in every {WINDOW} grants", most <= cap + 1, f"{most} at most", note)


def _idle(alone: Seen, three: Seen) -> tuple[bool, Row]:
    idle = 1.0 - three.used
    note = (
        f"{1000 * three.idle_s:.1f} ms between two requests; one gateway {100 * (1 - alone.used):.2f} %, "
        f"{1000 * alone.idle_s:.1f} ms; at most {three.most} ran, {three.passed_on} in all"
    )
    return _row("seats idle while work waits <= 1 %", idle <= MOST_IDLE, f"{100 * idle:.2f} %", note)


def _small(three: Seen) -> tuple[bool, Row]:
    waits = sorted(three.waits.values())
    cuts = " / ".join(f"{1000 * quantile(waits, part):.0f}" for part in (0.5, 0.9, 0.99))
    late = quantile(waits, 0.99)
    note = (
        f"p50 / p90 / p99 {cuts} ms of {len(waits)} requests, {three.passed_on} of both; before, while "
        f"gateways learn how long answers are, p99 {1000 * quantile(sorted(three.early.values()), 0.99):.0f} ms"
    )
    return _row("a tenant at 0.3 beside a flood of 3, p99 <= 2 s", late <= SMALL_S, f"{late:.2f} s", note)


def _row(name: str, holds: bool, value: str, note: str) -> tuple[bool, Row]:
    return holds, (name, f"{'yes' if holds else 'NO'}: {value}", note)


if __name__ == "__main__":
    sys.exit(main())
