"""What a replica does while its ledger does not answer, or is late."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.replica_client_stage import NOTHING, WAITING, asked, awake, client, grant, joined, kinds, reply, standing
from tidegate.core import Capacity, Granted, Signal
from tidegate.stores.ledger_client import (
    LOOK_S,
    POLL_S,
    STALL_S,
    TOP_POLL_S,
    Standing,
    StoreLoss,
)
from tidegate.stores.ledger_patience import LIFT_S, SHORTEST_S, SILENT_S, Patience
from tidegate.stores.ledger_protocol import Pushed

# -- alone ---------------------------------------------------------------------------------------------------------


def test_without_an_answer_the_scheduler_goes_on_alone_with_its_last_share() -> None:
    each = joined()
    awake(each, 1.0)
    each.report(1.0, NOTHING)
    assert each.look(1.0 + SHORTEST_S - 0.01) == []
    assert each.wakes_at() == pytest.approx(1.0 + SHORTEST_S)
    assert each.look(1.0 + SHORTEST_S) == [Capacity("m", 4, 4, wary=True)]
    assert (standing(each), each.degraded) == (Standing.SOLO, False)
    assert each.look(1.0 + SILENT_S) == []
    assert each.degraded
    each.failed(1.3)
    assert standing(each) is Standing.SOLO
    signals = asked(each, 1.4)
    assert signals == [Capacity("m", 0, 4)]
    assert (standing(each), each.degraded) == (Standing.SHARED, False)
    assert each.counts.solo_s == pytest.approx(0.35)


def test_while_it_waits_for_an_answer_that_does_not_come_it_does_not_look_all_the_time() -> None:
    each = joined()
    awake(each, 1.0)
    each.report(1.0, NOTHING)
    at, looks = 1.0, 0
    while at < 3.0:
        each.look(at)
        at, looks = each.wakes_at(), looks + 1
    assert looks <= 2.0 / LOOK_S + 3


def test_a_slow_ledger_is_given_the_time_that_it_usually_takes() -> None:
    patience = Patience()
    assert patience.limit_s == SILENT_S
    for took_s in (0.02, 0.04) * 20:
        patience.learn(took_s)
    assert 0.06 <= patience.limit_s <= 0.08
    for _ in range(40):
        patience.learn(0.0005)
    assert patience.limit_s == SHORTEST_S
    patience.learn(5.0)  # it was away
    assert patience.limit_s == SHORTEST_S
    for took_s in (0.01, 0.2) * 20:
        patience.learn(took_s)
    assert patience.limit_s == SILENT_S


def test_an_answer_that_a_busy_process_has_not_read_is_none_that_is_missing() -> None:
    each = joined()
    awake(each, 1.0)
    each.report(1.0, NOTHING)
    late = 1.0 + SHORTEST_S + STALL_S + 0.01
    assert each.look(late) == []
    assert each.wakes_at() == pytest.approx(late + STALL_S)
    assert each.look(late + STALL_S) == [Capacity("m", 4, 4, wary=True)]  # but once for a call
    assert each.look(late + 0.1) == []
    assert standing(each) is Standing.SOLO


def test_while_an_answer_is_only_late_it_takes_a_seat_and_now_and_then_another_beyond_its_own() -> None:
    each = joined()
    using = dataclasses.replace(NOTHING, used=(("b", 2),))
    full = (("b", 8, 8, 0),)
    awake(each, 1.0)
    asked(each, 1.0, using, seats=full, solo_share=6)
    each.report(1.0, using)
    late = 1.0 + SHORTEST_S
    assert each.look(late) == [Capacity("m", 3, 6, wary=True)]
    assert each.wakes_at() == pytest.approx(late + LIFT_S)
    assert each.look(late + LIFT_S - 0.01) == []
    assert each.look(late + LIFT_S) == [Capacity("m", 4, 6, wary=True)]
    assert each.look(late + 2 * LIFT_S) == [Capacity("m", 5, 6, wary=True)]
    assert each.wakes_at() == pytest.approx(1.0 + SILENT_S)
    assert each.look(1.0 + SILENT_S) == [Capacity("m", 6, 6, wary=True)]
    asked(each, 1.3, using, seats=(("b", 8, 7, 0),))
    each.report(1.3, using)
    assert each.look(1.3 + SHORTEST_S) == [Capacity("m", 4, 4, wary=True)]  # one was free


def test_what_it_was_granted_since_it_asked_is_its_own_too() -> None:
    each = joined()
    using = dataclasses.replace(NOTHING, used=(("b", 2),))
    awake(each, 1.0)
    asked(each, 1.0, using, seats=(("b", 8, 8, 0),), solo_share=6)
    each.report(1.0, using)
    for number in (1, 2):
        assert kinds(each.pushed(1.01, Pushed(7, grant(number, 1.01)))) == [Granted]
    each.used_up(started=True)
    each.used_up(started=False)
    assert each.look(1.0 + SHORTEST_S) == [Capacity("m", 4, 6, wary=True)]


def test_while_the_highest_band_waits_and_its_share_has_room_it_asks_sooner() -> None:
    first = dataclasses.replace(WAITING, bids=(dataclasses.replace(WAITING.bids[0], band=0),), waiting=(1, 0, 0))
    each = joined()
    asked(each, 1.0, first)
    assert not each.due(1.0 + TOP_POLL_S - 0.001)
    assert each.due(1.0 + TOP_POLL_S)
    asked(each, 1.1, dataclasses.replace(first, used=(("b", 4),)))  # its share is used
    assert not each.due(1.1 + TOP_POLL_S)
    assert each.due(1.1 + POLL_S)


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
    each.answered(2.71, reply(2.71, open_in_ms=290))
    asked(each, 2.72, open_in_ms=280)
    assert not each.due(2.74)
    each.look(2.9)
    assert each.wakes_at() == pytest.approx(3.0 - SHORTEST_S)
    assert each.look(3.0 - SHORTEST_S) == [Capacity("m", 0, 4)]
    assert standing(each) is Standing.QUIET
    assert each.due(3.0 - SHORTEST_S)
    asked(each, 3.0 - SHORTEST_S, open_in_ms=50)
    assert not each.due(2.99)
    assert each.wakes_at() == pytest.approx(3.0)
    assert each.look(3.0) == []
    assert each.due(3.0)  # whoever waits hears at once that it is open
    assert standing(each) is Standing.QUIET  # until an answer says that it is open
    asked(each, 3.01)
    assert standing(each) is Standing.SHARED
    assert not each.due(3.02)


def test_whoever_fell_quiet_before_a_pool_opens_stays_quiet_when_answers_come_faster() -> None:
    """Each fast answer makes it wait less long, so that it went alone again for some milliseconds, thirteen times."""
    each = client()
    each.look(0.0)
    each.report(0.0, NOTHING)
    each.answered(0.04, reply(0.04, open_in_ms=2000))
    now, told = 0.04, []
    while now < 1.99:
        told += each.look(now)
        if each.due(now):
            each.report(now, NOTHING)
            told += each.answered(now + 0.001, reply(now + 0.001, open_in_ms=round(2000 - now * 1000)))
        now = max(each.wakes_at(), now + 0.001)
    assert standing(each) is Standing.QUIET
    assert told == [Capacity("m", 0, 1)]
    asked(each, 1.99, open_in_ms=1000)  # somebody else came: it opens later
    assert standing(each) is Standing.SOLO


def test_a_sleep_of_the_process_does_not_count_as_silence_of_the_ledger() -> None:
    each = joined()
    each.report(1.0, NOTHING)
    each.look(1.01)
    assert each.look(6.0) == []
    assert standing(each) is Standing.SHARED
    assert each.look(6.0 + SHORTEST_S) == [Capacity("m", 4, 4, wary=True)]


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


def test_where_the_ledger_has_other_bands_it_goes_on_alone_within_its_share_and_bids_nothing() -> None:
    each = joined(reserves=(None, 0, 0))
    assert standing(each) is Standing.SHARED
    held = dataclasses.replace(WAITING, held_s=1.0)
    told = asked(each, 0.5, held, clocks=(0, 0), rates_ppm=(0, 0), controller=True)
    assert told == [Capacity("m", 4, 4, wary=True)]
    assert (standing(each), each.degraded) == (Standing.SOLO, False)
    assert each.report(1.0, held).bids == ()
    each.answered(1.0, reply(1.0))
    assert standing(each) is Standing.SHARED
    assert each.report(1.5, held).bids != ()
