"""A scheduler's bids as a report says them: ages for times, and backends only where not all will do. Pure."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.core import Bid as CoreBid
from tidegate.core import Head as CoreHead
from tidegate.core import PoolBids
from tidegate.stores.ledger_protocol import Bid, Head


def said(bids: PoolBids, now: float, dealt: Collection[str]) -> tuple[Bid, ...]:
    """Return what a report says of them at ``now``.

    Args:
        bids: the scheduler's.
        now: seconds.
        dealt: backends that the ledger may deal seats of: while files are changed, more than are ours.
    """
    return tuple(_bid(bid, now, dealt) for bid in bids.bids)


def _bid(bid: CoreBid, now: float, dealt: Collection[str]) -> Bid:
    backends = () if all(name in bid.backends for name in dealt) else bid.backends
    return Bid(bid.band, bid.count, _head(bid.oldest, now), tuple(_head(each, now) for each in bid.heads), backends)


def _head(head: CoreHead, now: float) -> Head:
    return Head(max(0, round((now - head.arrived) * 1000.0)), head.payer, head.cost, head.prefer or "")
