"""Fair sharing on a real trace: 27 tenants of a chat arena, five of which bring two thirds of the work."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from pathlib import Path

import pytest

from theory.stage import Arrival, Log, band, play, policy
from theory.test_shares import GlobalFifo

TRACE = Path(__file__).parent / "data" / "vtc_arena_27tenants.csv.gz"


def arena() -> list[Arrival]:
    """Return the trace; a request holds its seat for 0.2 ms a prompt token and 25 ms an output token."""
    with gzip.open(TRACE, "rt", encoding="utf-8") as file:
        return [
            Arrival(
                int(row["arrival_ms"]) / 1000,
                0,
                0.0002 * int(row["prompt_tokens"]) + 0.025 * int(row["output_tokens"]),
                tenant=row["tenant"],
                tokens=int(row["prompt_tokens"]) + 2 * int(row["output_tokens"]),
            )
            for row in csv.DictReader(file)
        ]


def mean_wait(log: Log, tenants: set[str]) -> float:
    """Return the mean wait of some tenants' requests, seconds."""
    waits = [row.wait_s for row in log.rows if row.arrival.tenant in tenants]
    return sum(waits) / len(waits)


def served(log: Log, until: float) -> int:
    """Return the tokens of the requests that were done at ``until``."""
    return sum(row.arrival.tokens for row in log.rows if row.finished is not None and row.finished <= until)


@pytest.mark.parametrize("seats", [12, 14, 16])
def test_small_tenants_wait_a_tenth_of_what_fifo_gives_them_at_the_same_throughput(seats: int) -> None:
    """From 1.0 to 1.34 times what the seats can do.

    Beyond that the sixth tenant itself asks for more than its fair share and waits for it (0.14 of FIFO at 2.0 times).
    """
    rows = arena()
    cost = Counter[str]()
    for row in rows:
        cost[row.tenant] += row.tokens
    small = set(cost) - {tenant for tenant, _ in cost.most_common(5)}
    assert len(cost) == 27
    fair, fifo = play(policy([band("p0")], seats), rows), play(GlobalFifo(seats), rows)
    assert mean_wait(fair, small) <= 0.1 * mean_wait(fifo, small)
    end = rows[-1].at
    assert served(fair, end) >= 0.98 * served(fifo, end)
