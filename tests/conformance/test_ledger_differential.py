"""Ledgers that decide elsewhere reply exactly as the model in memory does, whatever replicas report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from conformance.ledger_stage import MemoryStage, Stage, listens, make_stage
from conformance.ledger_walk import Walk
from tidegate.core import Turn
from tidegate.stores.ledger_protocol import Reply

STEPS = 400
SEEDS, PARTS = 3, 18
"""Of walks in one test, so that each takes seconds beside much else, and of tests."""
LEAST = 1120
"""Replies compared in one part: more than 20,000 in all."""
CHANGE_EVERY = 97
FORGET_EVERY, RELEASE_EVERY = 41, 13
"""Steps after which what the store has in memory is gone, or stale."""


def walk(seed: int, model: MemoryStage, *others: Stage) -> Iterator[tuple[Walk, str, Reply]]:
    """Give all the same random reports, and now and then another configuration; yield the replies, all equal."""
    random = Walk(seed)
    model.wipe_all()
    for each in others:
        each.wipe()
    stages = (model, *others)
    for step in range(STEPS):
        if step % CHANGE_EVERY == 0:
            config = random.config()
            for each in stages:
                each.put(config)
        for other in others:
            if step % FORGET_EVERY == 0:
                other.forget()
            if step % RELEASE_EVERY == 0:
                other.change_release()
        now, replica, report = random.step()
        for each in stages:
            each.now = now
        if report is None:
            for each in stages:
                each.leave(replica)
            continue
        reply = model.turn(replica, report)
        for other in others:
            assert other.turn(replica, report) == reply, f"seed {seed}, step {step}"
        random.heard(replica, reply)
        yield random, replica, reply


@pytest.mark.services
@pytest.mark.timeout(60)  # two seconds of work, which other processes may be in the way of
@pytest.mark.parametrize("part", range(PARTS))
def test_the_function_in_valkey_replies_as_the_model(request: pytest.FixtureRequest, part: int) -> None:
    assert check(request, "valkey", range(part * SEEDS, (part + 1) * SEEDS)) >= LEAST


def test_the_parts_compare_more_than_twenty_thousand_replies() -> None:
    assert PARTS * LEAST > 20_000


@pytest.mark.services
@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", range(4))
def test_transactions_in_postgres_reply_as_the_model(request: pytest.FixtureRequest, part: int) -> None:
    assert check(request, "postgres", range(100 + part * 2, 102 + part * 2)) > 500


def check(request: pytest.FixtureRequest, kind: str, seeds: range) -> int:
    """Return how many replies were compared."""
    other, model = make_stage(kind, request), MemoryStage()
    try:
        return sum(1 for seed in seeds for _ in walk(seed, model, other))
    finally:
        other.close()
        model.close()


def test_walks_reach_what_they_are_for() -> None:
    """Cheap, without servers: the first of the very walks of the parts meet every rule."""
    model = MemoryStage()
    seen: Counter[str] = Counter()
    for seed in range(12):
        for random, replica, reply in walk(seed, model):
            seen.update(grant.kind for grant in reply.grants)
            seen["closed"] += reply.open_in_ms > 0
            seen["in debt"] += bool(reply.debts) or bool(reply.closed)
            seen["nobody listens"] += not listens(replica, 0, None)  # type: ignore[arg-type]
            seen[random.discipline] += 1
    model.close()
    assert min(seen[name] for name in (*Turn, "closed", "in debt", "nobody listens", "weighted", "strict", "aging")) > 0
