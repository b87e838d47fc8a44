"""A client of a ledger on a clock of the test, and the answers that it gets."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from tidegate.core import Bid, Head, PoolBids, Signal, Turn
from tidegate.stores.ledger_client import (
    Client,
    Standing,
    Terms,
)
from tidegate.stores.ledger_protocol import Grant, Reply

SERVER_MS = 1_000_000
NOTHING = PoolBids((("b", 0),), (), (0, 0, 0), (0.0, 0.0, 0.0), (("b", 8),), 0.0)
WAITING = dataclasses.replace(
    NOTHING,
    bids=(Bid(1, 1, Head(0.0, "a", 7, None), (Head(0.0, "a", 7, None),), ("b",)),),
    waiting=(0, 1, 0),
)


def reply(at: float, **changes: Any) -> Reply:
    """A reply of a ledger whose clock is a thousand seconds ahead."""
    plain = Reply(
        epoch=7, grants=(), open_in_ms=0, solo_share=4, now_ms=SERVER_MS + round(at * 1000), version=1, mode="",
        replicas=2, charged=0, controller=False, counters=(), clocks=(0, 0, 0), seats=(("b", 8, 0, 0),), reserve=(),
        rates_ppm=(0, 0, 0), debts=(), closed=(),
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def grant(number: int, at: float, band: int = 1, kind: Turn = Turn.TURN) -> Grant:
    return Grant(number, band, "b", kind, SERVER_MS + round(at * 1000))


def client(**terms: Any) -> Client:
    return Client("m", Terms(first_share=1, **terms))


def joined(at: float = 0.0, **terms: Any) -> Client:
    """A client that has had its first answer."""
    fresh = client(**terms)
    fresh.look(at)
    fresh.report(at, NOTHING)
    fresh.answered(at, reply(at))
    return fresh


def asked(each: Client, now: float, bids: PoolBids = NOTHING, **changes: Any) -> list[Signal]:
    """Make a call that is answered at once."""
    each.report(now, bids)
    return each.answered(now, reply(now, **changes))


def awake(each: Client, until: float) -> None:
    """Look as often as a process does that does not sleep; calls are answered at once."""
    at = each.wakes_at()
    while at < until:
        each.look(at)
        if each.due(at):
            asked(each, at)
        at = each.wakes_at()


def standing(each: Client) -> Standing:
    return each.standing


def kinds(signals: list[Signal]) -> list[type]:
    return [type(signal) for signal in signals]
