"""What nobody has foreseen costs a link a call and a line in the log; it never falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from runtime.replica_stage import Gateway, stage
from tidegate.core import Counters, Signal
from tidegate.runtime import replica
from tidegate.stores.ledger_client import Standing
from tidegate.stores.ledger_protocol import Subscribed
from tidegate.testing import run_virtual


class Broken(Exception):
    """None that anybody has thought of."""


class Breaks:
    """A function that fails while ``broken``."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        self.plain = plain
        self.broken = True
        self.raised = 0

    def __call__(self, *arguments: Any) -> Any:
        if self.broken:
            self.raised += 1
            raise Broken("as never before")
        return self.plain(*arguments)


def break_it(each: Gateway, way: str) -> Breaks:
    """Break what ``owner.name`` says of a gateway."""
    owner, name = way.split(".")
    at = getattr(each, owner)
    breaks = Breaks(getattr(at, name))
    setattr(at, name, breaks)
    return breaks


WAYS = ["wire.turn", "link._bids", "link._answered", "client.look", "link._observe"]


@pytest.mark.parametrize("way", WAYS)
def test_a_link_outlives_any_fault_and_is_as_before(way: str) -> None:
    async def story() -> None:
        _, (a, b) = await stage(2)
        with capture_logs() as logs:
            breaks = break_it(a, way)
            for _ in range(5):
                a.send(0)
                await asyncio.sleep(1.0)
            breaks.broken = False
            await asyncio.sleep(3.5)  # a pool that was not spoken to for so long closes for two seconds
        assert breaks.raised > 0
        faults = [entry for entry in logs if entry["event"] == "cluster.fault"]
        assert faults
        assert len(faults) <= 8.5 / replica.TELL_S + 1
        assert faults[0]["log_level"] == "error"
        assert a.client.standing is Standing.SHARED
        before = a.client.counts.calls, len(a.waits[0])
        a.send(0)
        await asyncio.sleep(1.0)
        assert a.client.counts.calls > before[0]
        assert len(a.waits[0]) == before[1] + 1
        assert b.client.standing is Standing.SHARED

    run_virtual(story())


@pytest.mark.parametrize("way", WAYS[:2])
def test_who_cannot_ask_is_alone_within_its_share_and_says_so(way: str) -> None:
    async def story() -> None:
        _, (a, _) = await stage(2)
        break_it(a, way)
        await asyncio.sleep(1.0)
        a.send(0)
        await asyncio.sleep(0.01)
        assert len(a.waits[0]) == 1
        assert a.client.degraded
        assert a.client.counts.failures > 10  # tidegate_store_calls_total{outcome="failed"}

    run_virtual(story())


def test_a_signal_that_cannot_be_told_does_not_take_the_others_along() -> None:
    async def story() -> None:
        _, (a, _) = await stage(2)
        heard: list[Signal] = []

        def observe(signal: Signal) -> None:
            if isinstance(signal, Counters):
                raise Broken("as never before")
            heard.append(signal)

        a.link._observe = observe
        rest = list(a.client.look(0.0))
        a.link._tell([Counters("m", 0, ()), *rest, Counters("m", 0, ())])
        assert heard == rest

    run_virtual(story())


def test_a_pool_that_cannot_be_left_does_not_keep_the_others() -> None:
    async def story() -> None:
        _, (a, _) = await stage(2)
        a.wire.leave = Breaks(a.wire.leave)  # type: ignore[method-assign,assignment]
        with capture_logs() as logs:
            await a.link.stop()
        assert [entry["what"] for entry in logs] == ["leave"]

    run_virtual(story())


def test_a_subscription_is_not_ended_by_who_hears_it() -> None:
    async def story() -> None:
        _, (a, _) = await stage(2)
        a.client.subscribed = Breaks(a.client.subscribed)  # type: ignore[method-assign,assignment]
        with capture_logs() as logs:
            a.link._hear(Subscribed())
        assert [entry["what"] for entry in logs] == ["hear a push"]

    run_virtual(story())
