"""Ledgers that decide elsewhere reply exactly as the model in memory does, whatever replicas report."""

from __future__ import annotations

from collections import Counter

import pytest

from conformance.ledger_stage import MemoryStage, Stage, listens, make_stage
from conformance.ledger_walk import Walk
from tidegate.core import Turn
from tidegate.stores.ledger_protocol import Reply

STEPS = 400
SEEDS = 9
CHANGE_EVERY = 97


def walk(model: MemoryStage, other: Stage, seed: int) -> list[Reply]:
    """Give both the same random reports, and now and then another configuration; return the replies, all equal."""
    random = Walk(seed)
    replies = []
    other.wipe()
    model.wipe_all()
    for step in range(STEPS):
        if step % CHANGE_EVERY == 0:
            config = random.config()
            model.put(config)
            other.put(config)
        now, replica, report = random.step()
        model.now = other.now = now
        if report is None:
            model.leave(replica)
            other.leave(replica)
            continue
        reply = model.turn(replica, report)
        assert other.turn(replica, report) == reply, f"seed {seed}, step {step}"
        random.heard(replica, reply)
        replies.append(reply)
    return replies


@pytest.mark.services
@pytest.mark.parametrize("part", range(6))
def test_the_function_in_valkey_replies_as_the_model(request: pytest.FixtureRequest, part: int) -> None:
    replies = check(request, "valkey", range(part * SEEDS, (part + 1) * SEEDS))
    assert len(replies) >= 3450  # six parts make more than 20,000


@pytest.mark.services
@pytest.mark.parametrize("part", range(2))
def test_transactions_in_postgres_reply_as_the_model(request: pytest.FixtureRequest, part: int) -> None:
    check(request, "postgres", range(100 + part * 4, 104 + part * 4))


def check(request: pytest.FixtureRequest, kind: str, seeds: range) -> list[Reply]:
    other, model = make_stage(kind, request), MemoryStage()
    try:
        replies = [reply for seed in seeds for reply in walk(model, other, seed)]
    finally:
        other.close()
        model.close()
    kinds = Counter(grant.kind for reply in replies for grant in reply.grants)
    assert min(kinds[kind] for kind in Turn) > 0, "a walk that shows nothing"
    return replies


def test_walks_reach_what_they_are_for() -> None:
    """Cheap, without servers: the random reports meet every rule."""
    model = MemoryStage()
    seen: Counter[str] = Counter()
    for seed in range(12):
        random = Walk(seed)
        model.wipe_all()
        model.put(random.config())
        for _ in range(STEPS):
            now, replica, report = random.step()
            if report is None:
                model.leave(replica)
                continue
            model.now = now
            reply = model.turn(replica, report)
            random.heard(replica, reply)
            seen.update(grant.kind for grant in reply.grants)
            seen["closed"] += reply.open_in_ms > 0
            seen["in debt"] += bool(reply.debts) or bool(reply.closed)
            seen["nobody listens"] += not listens(replica, 0, None)  # type: ignore[arg-type]
            seen[random.discipline] += 1
    model.close()
    assert min(seen[name] for name in (*Turn, "closed", "in debt", "nobody listens", "weighted", "strict", "aging")) > 0
