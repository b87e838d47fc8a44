"""The rules of a replica towards its ledger, each of which cost a failure while it was missing; time is a number."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from tidegate.core import Bid, Capacity, Counters, Granted, Head, PoolBids, Seats, Signal, Turn
from tidegate.stores.ledger_client import (
    FENCE_S,
    HEARTBEAT_S,
    LOOK_S,
    POLL_S,
    QUIET_S,
    RETRY_S,
    SILENT_S,
    Client,
    Standing,
    StoreLoss,
    Terms,
)
from tidegate.stores.ledger_protocol import Grant, Pushed, Reply

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


# -- calls ---------------------------------------------------------------------------------------------------------


def test_a_new_replica_asks_at_once_and_starts_nothing_before_it_knows_more() -> None:
    fresh = client()
    assert fresh.look(0.0) == [Capacity("m", 0, 1)]
    assert fresh.due(0.0)


def test_one_call_is_in_flight_and_what_happens_meanwhile_is_joined_into_the_next() -> None:
    each = joined()
    each.changed()
    assert each.due(0.01)
    each.report(0.01, NOTHING)
    for _ in range(5):
        each.changed()
        assert not each.due(0.02)
    each.answered(0.03, reply(0.03))
    assert each.due(0.03)
    asked(each, 0.03)
    assert not each.due(0.04)


def test_a_replica_without_news_speaks_at_each_heartbeat() -> None:
    each = joined()
    assert not each.due(HEARTBEAT_S - 0.01)
    assert each.due(HEARTBEAT_S)
    assert each.wakes_at() == pytest.approx(LOOK_S)
    each.look(0.4)
    assert each.wakes_at() == pytest.approx(HEARTBEAT_S)


def test_waiting_work_asks_again_after_a_tenth_of_a_second_for_pushes_may_be_lost() -> None:
    each = joined()
    asked(each, 1.0, WAITING)
    assert not each.due(1.0 + POLL_S - 0.01)
    assert each.due(1.0 + POLL_S)


def test_a_subscription_that_begins_anew_leads_to_a_call() -> None:
    each = joined()
    assert not each.due(0.01)
    assert each.subscribed(0.01) == []
    assert each.due(0.01)


def test_reports_are_absolute_and_their_numbers_grow() -> None:
    each = joined()
    first = each.report(2.0, WAITING)
    each.failed(2.0)
    second = each.report(2.1, WAITING)
    assert (first.used, second.used) == ((("b", 0),), (("b", 0),))
    assert second.sequence == first.sequence + 1
    bid = second.bids[0]
    assert (bid.band, bid.count, bid.backends, bid.heads[0].age_ms) == (1, 1, (), 2100)


def test_a_bid_names_backends_only_where_not_all_will_do() -> None:
    each = joined()
    two = dataclasses.replace(WAITING, seats=(("b", 8), ("c", 8)))
    assert each.report(1.0, two).bids[0].backends == ("b",)


def test_a_failed_call_is_tried_again_a_little_later() -> None:
    each = joined()
    each.report(1.0, NOTHING)
    each.failed(1.0)
    assert not each.due(1.0 + RETRY_S / 2)
    assert each.due(1.0 + RETRY_S)
    assert each.counts.failures == 1


# -- grants --------------------------------------------------------------------------------------------------------


def test_a_push_with_the_next_number_starts_work() -> None:
    each = joined()
    assert each.pushed(0.1, Pushed(7, grant(1, 0.1, kind=Turn.OVERTAKE))) == [Granted("m", 1, "b", Turn.OVERTAKE)]
    assert each.report(0.1, NOTHING).ack == 1


def test_a_push_with_a_gap_is_not_taken_but_asked_for() -> None:
    each = joined()
    assert each.pushed(0.1, Pushed(7, grant(2, 0.1))) == []
    assert each.due(0.1)
    assert each.report(0.1, NOTHING).ack == 0


def test_a_reply_may_have_holes() -> None:
    """Numbers that were recalled never come; with a gap check here one recall blocked a replica for ever."""
    each = joined()
    signals = asked(each, 0.1, grants=(grant(3, 0.1), grant(5, 0.1)))
    assert kinds(signals) == [Granted, Granted]
    assert each.report(0.2, NOTHING).ack == 5


def test_a_grant_that_was_pushed_and_is_in_the_reply_counts_once() -> None:
    each = joined()
    each.report(0.1, NOTHING)
    assert kinds(each.pushed(0.1, Pushed(7, grant(1, 0.1)))) == [Granted]
    assert kinds(each.answered(0.1, reply(0.1, grants=(grant(1, 0.1),)))) == []
    assert each.pushed(0.1, Pushed(7, grant(1, 0.1))) == []


def test_a_grant_older_than_the_fence_is_confirmed_and_not_used() -> None:
    each = joined()
    assert each.pushed(1.0, Pushed(7, grant(1, 1.0 - FENCE_S - 0.01))) == []
    assert each.pushed(1.0, Pushed(7, grant(2, 1.0 - FENCE_S + 0.01))) == [Granted("m", 1, "b", Turn.TURN)]
    assert (each.counts.late, each.report(1.0, NOTHING).ack) == (1, 2)


def test_who_slept_with_the_answer_in_the_wire_starts_nothing_of_it() -> None:
    each = joined()
    each.report(1.0, NOTHING)
    woken = each.answered(4.0, reply(1.0, grants=(grant(1, 1.0),)))
    assert kinds(woken) == []
    assert each.counts.late == 1


def test_a_slow_answer_does_not_make_the_ledgers_clock_seem_fast() -> None:
    each = joined()
    each.report(1.0, NOTHING)
    each.answered(1.2, reply(1.2))  # 0.2 s on the way there
    assert kinds(each.pushed(1.21, Pushed(7, grant(1, 1.2)))) == [Granted]


def test_a_grant_that_comes_before_any_answer_is_not_used() -> None:
    fresh = client()
    fresh.look(0.0)
    assert fresh.pushed(0.0, Pushed(0, grant(1, 0.0))) == []


def test_a_grant_for_an_empty_band_goes_back_with_the_next_report() -> None:
    each = joined()
    each.pushed(0.1, Pushed(7, grant(1, 0.1)))
    asked(each, 0.1)
    each.used_up(started=False)
    assert each.due(0.1)
    each.used_up(started=True)
    assert (each.counts.wasted, each.counts.grants) == (1, 1)


def test_another_epoch_begins_numbers_anew_and_voids_old_pushes() -> None:
    each = joined()
    asked(each, 0.1, grants=(grant(1, 0.1), grant(2, 0.1)))
    each.report(0.2, NOTHING)
    signals = each.answered(0.2, reply(0.2, epoch=9, grants=(grant(1, 0.2),)))
    assert kinds(signals) == [Granted]
    assert each.pushed(0.2, Pushed(7, grant(3, 0.2))) == []
    report = each.report(0.3, NOTHING)
    assert (report.epoch, report.ack, report.sequence) == (9, 1, 2)


# -- alone ---------------------------------------------------------------------------------------------------------


def test_without_an_answer_the_scheduler_goes_on_alone_with_its_last_share() -> None:
    each = joined()
    awake(each, 1.0)
    each.report(1.0, NOTHING)
    assert each.look(1.0 + SILENT_S - 0.01) == []
    assert each.wakes_at() <= 1.0 + SILENT_S
    assert each.look(1.0 + SILENT_S) == [Capacity("m", 4, 4, wary=True)]
    assert each.degraded
    each.failed(1.3)
    assert standing(each) is Standing.SOLO
    signals = asked(each, 1.4)
    assert signals == [Capacity("m", 0, 4)]
    assert (standing(each), each.degraded) == (Standing.SHARED, False)
    assert each.counts.solo_s == pytest.approx(0.15)


def test_failed_calls_count_as_silence_from_the_first_on() -> None:
    each = joined()
    awake(each, 1.0)
    told: list[Signal] = []
    for step in range(40):
        now = 1.0 + 0.02 * step
        if each.due(now):
            each.report(now, NOTHING)
            told += each.failed(now + 0.001)
        told += each.look(now + 0.01)
    assert told == [Capacity("m", 4, 4, wary=True)]


def test_a_replica_that_never_had_an_answer_uses_its_first_share() -> None:
    fresh = client()
    fresh.look(0.0)
    fresh.report(0.0, NOTHING)
    assert fresh.look(SILENT_S) == [Capacity("m", 1, 1, wary=True)]


def test_a_share_dealt_while_the_pool_is_closed_is_never_used() -> None:
    """Who is first after a wipe would be told "all": 132 ran on 64 seats."""
    each = joined()
    signals = asked(each, 1.0, epoch=9, open_in_ms=2000, solo_share=8)
    assert signals == [Capacity("m", 4, 4, wary=True)]
    each.report(1.5, NOTHING)
    assert each.look(1.9) == []
    assert standing(each) is Standing.SOLO


def test_before_a_pool_opens_nothing_starts_and_everything_is_told_once_more() -> None:
    each = joined()
    awake(each, 1.0)
    asked(each, 1.0, open_in_ms=2000)
    for at in (1.3, 1.6, 1.9, 2.2, 2.5, 2.7):
        each.look(at)
    each.report(2.7, NOTHING)
    assert each.wakes_at() == pytest.approx(3.0 - QUIET_S)
    each.answered(2.71, reply(2.71, open_in_ms=290))
    asked(each, 2.72, open_in_ms=280)
    assert not each.due(2.74)
    assert each.look(3.0 - QUIET_S) == [Capacity("m", 0, 4)]
    assert standing(each) is Standing.QUIET
    assert each.due(3.0 - QUIET_S)
    asked(each, 3.0 - QUIET_S, open_in_ms=250)
    assert each.look(3.05) == []
    assert standing(each) is Standing.QUIET  # until an answer says that it is open
    asked(each, 3.1)
    assert standing(each) is Standing.SHARED


def test_a_sleep_of_the_process_does_not_count_as_silence_of_the_ledger() -> None:
    each = joined()
    each.report(1.0, NOTHING)
    each.look(1.1)
    assert each.look(6.0) == []
    assert standing(each) is Standing.SHARED
    assert each.look(6.0 + SILENT_S) == [Capacity("m", 4, 4, wary=True)]


@pytest.mark.parametrize(("setting", "share"), [(StoreLoss.KEEP, 4), (StoreLoss.SHRINK, 1)])
def test_what_becomes_of_the_share_in_a_long_outage_is_a_setting(setting: StoreLoss, share: int) -> None:
    each = joined(on_store_loss=setting, ttl_s=5.0)
    awake(each, 1.0)
    now, told = 1.0, [Capacity("m", 0, 4)]
    while now < 7.0:
        if each.due(now):
            each.report(now, NOTHING)
            told += [signal for signal in each.failed(now) if isinstance(signal, Capacity)]
        told += [signal for signal in each.look(now + 0.01) if isinstance(signal, Capacity)]
        now += 0.1
    assert told[-1] == Capacity("m", share, share, wary=True)


def test_who_only_observes_goes_on_alone_and_bids_nothing() -> None:
    each = joined()
    each.observing = True
    assert each.look(0.1) == [Capacity("m", 4, 4, wary=True)]
    assert each.report(0.1, WAITING).bids == ()


# -- accounts ------------------------------------------------------------------------------------------------------


def test_charges_are_numbered_and_told_until_they_are_counted() -> None:
    each = joined()
    each.charged(1, "a", 30, "b")
    each.charged(2, "z", -5, "b")
    first = each.report(0.1, NOTHING)
    assert [(charge.number, charge.tokens) for charge in first.charges] == [(1, 30), (2, -5)]
    each.answered(0.1, reply(0.1, charged=1))
    assert [charge.number for charge in each.report(0.2, NOTHING).charges] == [2]
    each.answered(0.2, reply(0.2, epoch=9))
    assert [charge.number for charge in each.report(0.3, NOTHING).charges] == [1]


def test_charges_that_nobody_takes_are_bounded() -> None:
    each = joined()
    for _ in range(6000):
        each.charged(1, "a", 1, "b")
    charges = each.report(0.1, NOTHING).charges
    assert len(charges) == 256
    assert charges[0].number == 6000 - 4096 + 1


def test_leads_are_told_where_several_bid() -> None:
    each = joined()
    counters = ((1, "a", 9_000), (1, "z", 4_000), (2, "a", 1))
    signals = asked(each, 0.1, counters=counters, clocks=(0, 5_000, 0))
    assert signals == [Counters("m", 1, (("a", 4.0), ("z", 0.0)))]


def test_seats_found_by_another_controller_are_obeyed_and_own_ones_told() -> None:
    each = joined(auto=frozenset({"b"}))
    assert asked(each, 0.1, seats=(("b", 12, 0, 0),)) == [Seats("b", 12)]
    assert asked(each, 0.2, seats=(("b", 12, 0, 0),)) == []
    assert asked(each, 0.3, seats=(("b", 14, 0, 0),), controller=True) == []
    assert each.report(0.4, NOTHING).seats == (("b", 8),)


def test_whoever_runs_the_controller_measures_the_reserve_of_the_pool() -> None:
    each = joined(reserves=(None, 1, 0))
    big = dataclasses.replace(NOTHING, held_s=5.0)
    asked(each, 0.1, controller=True, seats=(("b", 64, 0, 0),), rates_ppm=(5_000_000, 0, 0))
    measured = each.report(0.2, big).reserve
    assert 5 <= measured[0] <= 16
    assert measured[1:] == (1, 0)
    each.answered(0.2, reply(0.2, controller=True))
    assert each.report(0.3, NOTHING).reserve == ()  # nothing has ended yet
