"""The rules of a replica towards its ledger, each of which cost a failure while it was missing; time is a number."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.replica_client_stage import NOTHING, WAITING, asked, client, grant, joined, kinds, reply
from tidegate.core import Capacity, Counters, Granted, Seats, Turn
from tidegate.stores.ledger_client import (
    ACK_S,
    FENCE_S,
    HEARTBEAT_S,
    LOOK_S,
    POLL_S,
    RETRY_S,
)
from tidegate.stores.ledger_protocol import Pushed

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


def test_a_grant_that_was_used_is_told_with_the_next_report_or_a_little_later() -> None:
    """The ledger holds its seat as it is; a call of its own would be one more for every dispatch."""
    each = joined()
    asked(each, 0.1, seats=(("b", 64, 0, 0),))
    each.pushed(0.2, Pushed(7, grant(1, 0.2)))
    each.used_up(started=True)
    assert not each.due(0.2)
    assert each.wakes_at() == pytest.approx(0.2 + ACK_S)
    assert each.due(0.2 + ACK_S)
    assert each.report(0.23, NOTHING).ack == 1
    each.answered(0.23, reply(0.23, seats=(("b", 64, 0, 0),)))
    assert not each.due(0.3)
    for number in (2, 3, 4):
        each.pushed(0.3, Pushed(7, grant(number, 0.3)))
        assert not each.due(0.3)
    each.pushed(0.3, Pushed(7, grant(5, 0.3)))
    assert each.due(0.3)  # half of those that may be unconfirmed


def test_in_a_small_pool_every_grant_is_told_at_once() -> None:
    each = joined()
    asked(each, 0.1, seats=(("b", 16, 0, 0),))
    each.pushed(0.2, Pushed(7, grant(1, 0.2)))
    assert each.due(0.2)


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
    said = each.report(0.2, big)
    assert 5 <= said.reserve[0] <= 16
    assert said.reserve[1:] == (1, 0)
    assert said.short == (False, False, False)
    each.answered(0.2, reply(0.2, controller=True, seats=(("b", 64, 0, 0),), rates_ppm=(12_000_000, 0, 0)))
    said = each.report(0.25, big)
    assert (said.reserve, said.short) == ((16, 1, 0), (True, False, False)), "a quarter of the seats is not enough"
    each.answered(0.25, reply(0.25, controller=True))
    assert each.report(0.3, NOTHING).reserve == ()  # nothing has ended yet


def test_a_bid_names_its_backends_where_the_ledger_deals_seats_of_others() -> None:
    """While gateways get a file with one backend more: the old ones cannot use its seats, and say so."""
    replica = joined()
    assert [bid.backends for bid in replica.report(0.1, WAITING).bids] == [()]
    replica.answered(0.1, reply(0.1, seats=(("new", 8, 0, 0), ("b", 8, 0, 0))))
    assert [bid.backends for bid in replica.report(0.2, WAITING).bids] == [("b",)]
    replica.answered(0.2, reply(0.2))
    assert [bid.backends for bid in replica.report(0.3, WAITING).bids] == [()]
