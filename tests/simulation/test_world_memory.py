"""A run that keeps no log holds only what is open, however long it is."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tidegate.core import BackendSpec, Outcome, Policy, PoolSpec
from tidegate.core.policy import Full
from tidegate.simulation import EngineModel, EngineServer, FixedServer, Fleeting, Record, Request, Scrape, Server, World

CAPACITY = 100


def policy(seats: int) -> Policy:
    """Bands so short that newcomers are refused, displaced and time out."""
    bands = [replace(band, capacity=CAPACITY, shed_hopeless=False) for band in Policy().bands]
    bands[2] = replace(bands[2], full=Full.EVICT_OLDEST)
    return Policy(bands=tuple(bands), pools=(PoolSpec("m", (BackendSpec("b", seats),)),))


def load(count: int, rate: float) -> Iterator[Request]:
    for number in range(count):
        patience_s = 0.4 if number % 7 == 0 else float("inf")
        yield Request(number / rate, number % 3, f"t{number % 20}", 300, 40, patience_s=patience_s)


def play(server: Server, requests: Iterator[Request], *, seats: int) -> tuple[Counter[Outcome | None], list[int]]:
    """Outcomes, and the traced memory in bytes after each 500 records."""
    outcomes: Counter[Outcome | None] = Counter()
    memory: list[int] = []

    def sink(record: Record) -> None:
        outcomes[record.outcome] += 1
        if outcomes.total() % 500 == 0:
            memory.append(tracemalloc.get_traced_memory()[0])

    world = World(policy(seats), {"b": server}, requests, scrape=Scrape(), sink=sink, log=Fleeting())
    tracemalloc.start()
    try:
        world.run()
    finally:
        tracemalloc.stop()
    return outcomes, memory


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fixed", "engine"])
def test_memory_does_not_grow_with_the_requests(kind: str) -> None:
    server: Server = FixedServer(0.25) if kind == "fixed" else EngineServer(EngineModel())
    outcomes, memory = play(server, load(6000, 400.0), seats=48)
    assert outcomes.total() == 6000
    assert outcomes[None] == 0
    assert all(outcomes[each] for each in (Outcome.COMPLETED, Outcome.REJECTED, Outcome.EVICTED, Outcome.CANCELLED))
    early, late = max(memory[:10]), max(memory[10:])
    assert late < early * 1.05 + 20_000  # a kept entry takes some 300 bytes: 3,000 of them 0.9 MB


def test_what_is_not_kept_is_the_same_run() -> None:
    told: dict[str, list[Record]] = {"kept": [], "fleeting": []}
    for name, log in (("kept", None), ("fleeting", Fleeting())):
        server = EngineServer(EngineModel(noise=0.1))
        World(policy(64), {"b": server}, load(600, 100.0), scrape=Scrape(), sink=told[name].append, log=log).run()
    figures = [[(r.id, r.outcome, r.turn, r.finished_s, r.first_token_s) for r in each] for each in told.values()]
    assert figures[0] == figures[1]
    assert len(figures[0]) == 600
