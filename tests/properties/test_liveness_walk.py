"""Long walks through modes, stops, failures, grants and lent bands: every ticket ends once, and none waits for ever."""

from __future__ import annotations

from collections import Counter

import pytest

from properties.liveness import Walk


@pytest.mark.parametrize("seed", range(24))
def test_every_ticket_ends_once_and_none_waits_for_ever(seed: int) -> None:
    walk = Walk(seed)
    walk.go(300)
    walk.finish()


def test_the_walks_come_by_what_they_are_to_try() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 108):
        walk = Walk(seed)
        walk.go(300)
        seen.update(stops=walk.books.stops, went_on=walk.books.went_on, begun=len(walk.books.begun))
    assert min(seen.values()) > 0, seen
