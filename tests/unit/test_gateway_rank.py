"""Which band an engine is told for a dispatch."""

from __future__ import annotations

import pytest

from tidegate.core import Lease, Ticket, Turn
from tidegate.gateway.outgoing import rank_of


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [(Turn.TURN, [0, 1, 2, 3]), (Turn.FLOOR, [0, 1, 1, 2]), (Turn.OVERTAKE, [0, 1, 1, 2])],
)
def test_what_a_wait_has_earned_is_told_as_one_band_higher_but_never_as_the_highest(
    kind: Turn, ranks: list[int]
) -> None:
    leases = [Lease(1, Ticket("1", "m", 3, "t"), "b", kind, band, 0.0, 0.0) for band in range(4)]
    assert [rank_of(lease) for lease in leases] == ranks
