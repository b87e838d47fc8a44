"""Several gateways on one pool, with calls that take time, get lost, or come to nothing; all on virtual time."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from runtime.replica_stage import POLICY, SEATS, during, feed, overload, p99, stage, watch
from runtime.stories import Noting
from tidegate.core import Release, Requeue, Ticket, WorkEstimate
from tidegate.stores.ledger_client import Standing
from tidegate.stores.ledger_protocol import (
    Lost,
    Subscribed,
)
from tidegate.testing import run_virtual


def test_replicas_keep_one_order_and_the_seats() -> None:
    async def story() -> None:
        _, gateways = await stage(3)
        most = await during(overload(gateways[0], gateways[2], 20.0), watch(gateways, 20.0))
        assert most == SEATS
        first, last = gateways[0], gateways[2]
        assert p99(first.waits[0]) < 0.3
        done = sum(len(waits) for each in gateways for waits in each.waits.values())
        assert done >= 0.97 * 20.0 * SEATS / 0.2
        assert len(last.waits[2]) >= 0.05 * done
        for each in gateways:
            assert each.wire.most_at_once == 1
            assert each.client.counts.solo_s < 2.5

    run_virtual(story())


def test_without_pushes_waiting_work_is_granted_by_asking() -> None:
    async def story() -> None:
        _, (a, b) = await stage(2)
        b.wire.deaf = True
        for _ in range(SEATS):
            a.send(0)
        b.send(1)
        await asyncio.sleep(0.35)
        assert len(b.waits[1]) == 1

    run_virtual(story())


@pytest.mark.parametrize("way", ["cut", "refuses"])
def test_in_an_outage_each_goes_on_with_its_share_and_back(way: str) -> None:
    async def story() -> None:
        _, gateways = await stage(3)
        load = overload(gateways[0], gateways[2], 60.0)

        async def events() -> None:
            await asyncio.sleep(15.0)
            shares = [each.client.reply.solo_share for each in gateways if each.client.reply]
            assert sum(shares) <= SEATS
            for each in gateways:
                setattr(each.wire, way, True)
            before = sum(len(waits) for each in gateways for waits in each.waits.values())
            most = await watch(gateways, 10.0)
            assert most <= SEATS + 1
            assert all(each.client.degraded for each in gateways)
            done = sum(len(waits) for each in gateways for waits in each.waits.values()) - before
            assert done >= 0.75 * 10.0 * SEATS / 0.2
            for each in gateways:
                setattr(each.wire, way, False)
            most = await watch(gateways, 5.0)
            assert most <= SEATS + 1
            assert all(each.client.standing is Standing.SHARED for each in gateways)

        await during(load, events())
        assert max(gateways[0].waits[0]) < 10.0  # none was lost, none expired

    run_virtual(story())


def test_a_ledger_that_hangs_makes_no_request_wait_a_tenth_of_a_second_for_it() -> None:
    """Below capacity, so that nothing but the ledger makes anybody wait; over its end and its return."""

    async def story() -> None:
        _, gateways = await stage(3)
        load = [feed(each, band, 1 / 5, 30.0) for each in gateways for band in range(3)]

        async def events() -> None:
            await asyncio.sleep(10.0)
            for _ in range(3):
                for each in gateways:
                    each.wire.cut = True
                await asyncio.sleep(1.6)
                for each in gateways:
                    each.wire.cut = False
                await asyncio.sleep(3.0)

        await during(load, events())
        waits = [wait for each in gateways for band in each.waits.values() for wait in band]
        assert len(waits) > 900
        assert max(waits) <= 0.1
        assert sum(each.refused for each in gateways) == 0

    run_virtual(story())


def test_a_ledger_that_stumbles_again_and_again_costs_neither_seats_nor_throughput() -> None:
    async def story() -> None:
        _, gateways = await stage(3)

        async def events() -> None:
            await asyncio.sleep(10.0)
            before = sum(len(waits) for each in gateways for waits in each.waits.values())
            watching = asyncio.ensure_future(watch(gateways, 10.0))
            for _ in range(25):
                for each in gateways:
                    each.wire.cut = True
                await asyncio.sleep(0.15)
                for each in gateways:
                    each.wire.cut = False
                await asyncio.sleep(0.25)
            assert await watching <= SEATS + 2  # one for each that is below its share, and one of the three is not
            done = sum(len(waits) for each in gateways for waits in each.waits.values()) - before
            assert done >= 0.85 * 10.0 * SEATS / 0.2
            assert not any(each.client.degraded for each in gateways)

        await during(overload(gateways[0], gateways[2], 40.0), events())

    run_virtual(story())


def test_that_an_answer_is_late_is_not_logged_and_that_the_ledger_is_away_is() -> None:
    async def story() -> list[str]:
        _, (a, _) = await stage(2)
        with capture_logs() as logs:
            for seconds in (0.1, 0.6):
                a.wire.cut = True
                a.send(0)
                await asyncio.sleep(seconds)
                assert a.client.standing is Standing.SOLO
                a.wire.cut = False
                await asyncio.sleep(0.5)
        assert a.client.counts.grants + len(a.waits[0]) >= 2
        return [entry["event"] for entry in logs if entry["event"].startswith("cluster.")]

    assert run_virtual(story()) == ["cluster.solo", "cluster.shared"]


def test_the_end_of_being_alone_is_logged_once_when_seats_are_dealt_again() -> None:
    async def story() -> tuple[list[str], list[str]]:
        store, (a, _) = await stage(2)
        with capture_logs() as wiped:
            store.pool("m")._pool.state = None  # as a server that was started anew, empty
            await asyncio.sleep(4.0)
        with capture_logs() as away:
            a.wire.cut = True
            await asyncio.sleep(1.5)
            store.pool("m")._pool.state = None
            a.wire.cut = False
            await asyncio.sleep(0.5)
            a.wire.cut = True  # late once more before the pool opens: one outage
            await asyncio.sleep(0.2)
            a.wire.cut = False
            await asyncio.sleep(4.0)
        assert a.client.standing is Standing.SHARED
        return [each["event"] for each in wiped], [each["event"] for each in away]

    for told in run_virtual(story()):
        assert told == ["cluster.solo"] * 2 + ["cluster.shared"] * 2, "once for each of the two gateways"


def test_why_the_ledger_does_not_answer_is_logged_once_and_again_when_it_is_another_reason() -> None:
    async def story() -> list[str]:
        _, (a, _) = await stage(2)
        with capture_logs() as logs:
            for refuses, cut, seconds in (
                (True, False, 30.0),
                (False, True, 30.0),
                (False, False, 4.0),
                (True, False, 1.0),
            ):
                a.wire.refuses, a.wire.cut = refuses, cut
                await asyncio.sleep(seconds)
        return [entry["why"] for entry in logs if entry["event"] == "cluster.no_answer"]

    assert run_virtual(story()) == ["no", "it took too long", "no"]


def test_a_wiped_ledger_starts_nothing_twice() -> None:
    async def story() -> None:
        store, gateways = await stage(3)

        async def events() -> None:
            await asyncio.sleep(10.0)
            store.pool("m")._pool.state = None  # as a server that was started anew, empty
            most = await watch(gateways, 6.0)
            assert most <= SEATS + 2
            assert all(each.client.standing is Standing.SHARED for each in gateways)
            view = await gateways[0].wire.view()
            assert sum(view.held) <= SEATS

        await during(overload(gateways[0], gateways[2], 30.0), events())

    run_virtual(story())


def test_a_replica_cut_off_keeps_within_its_share_and_the_others_get_its_seats() -> None:
    async def story() -> None:
        _, gateways = await stage(3)

        async def events() -> None:
            await asyncio.sleep(15.0)
            lost = gateways[0]
            assert lost.client.reply is not None
            share = lost.client.reply.solo_share
            lost.wire.cut = True
            most = await watch(gateways, 15.0)
            assert most <= SEATS + share
            assert lost.running <= share
            assert p99(lost.waits[0]) < 0.5
            lost.wire.cut = False
            await asyncio.sleep(1.0)
            assert await watch(gateways, 5.0) <= SEATS

        await during(overload(gateways[0], gateways[2], 60.0), events())

    run_virtual(story())


def test_a_replica_that_leaves_frees_its_seats_at_once() -> None:
    async def story() -> None:
        _, (a, b) = await stage(2, hold_s=5.0)
        for _ in range(SEATS):
            a.send(0)
        await asyncio.sleep(0.1)
        assert a.running == SEATS
        await a.link.stop()
        await a.link.stop()
        b.send(1)
        await asyncio.sleep(0.2)
        assert b.running == 1
        a.link.changed()
        a.link.go_on()
        a.link._hear(Subscribed())
        a.link._hear(Lost())

    run_virtual(story())


def test_what_is_used_beyond_the_estimate_is_charged_and_corrected() -> None:
    async def story() -> None:
        _, (a, _) = await stage(2)
        waiter = Noting()
        a.driver.submit(Ticket("1", "m", 1, "t", WorkEstimate(10, 10)), waiter)
        await asyncio.sleep(0.1)
        a.driver.release(waiter.leases[0], Release(input_tokens=10, output_tokens=500))
        again = Noting()
        a.driver.submit(Ticket("2", "m", 1, "t", WorkEstimate(10, 10)), again)
        await asyncio.sleep(0.1)
        a.driver.requeue(again.leases[0], Requeue(), Noting(on_lease=a._run))
        await asyncio.sleep(0.5)
        assert a.client.reply is not None
        assert a.client.reply.charged == 2

    run_virtual(story())


def test_an_idle_pool_costs_a_heartbeat_and_no_more() -> None:
    async def story() -> None:
        _, (a, b) = await stage(2)
        before = a.wire.calls
        await asyncio.sleep(10.0)
        assert 20 <= a.wire.calls - before <= 24
        b.driver.set_policy(POLICY)
        b.driver.cancel("nobody")
        await asyncio.sleep(0.1)

    run_virtual(story())
