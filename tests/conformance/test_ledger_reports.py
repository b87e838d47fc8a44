"""What every ledger promises about reports: absolute, repeatable, and never more seats out than there are."""

from __future__ import annotations

import random

import pytest

from conformance.ledger_stage import BANDS, Replica, Stage, bid, config
from tidegate.stores import StoreError
from tidegate.stores.ledger_protocol import BandConfig, Bid, LedgerConflict, LedgerUnavailable, PoolConfig


def held(stage: Stage) -> int:
    return sum(stage.view().held)


def test_free_seats_go_to_whoever_bids(stage: Stage) -> None:
    stage.configure(2)
    one = stage.replica("one")
    grants = one.say(bid(0, 3))
    assert [(grant.number, grant.band, grant.backend, grant.at_ms) for grant in grants] == [
        (1, 0, "b0", stage.now),
        (2, 0, "b0", stage.now),
    ]
    assert one.answer().seats == (("b0", 2, 2, 2),)
    assert not stage.replica("two").say(bid(0))


def test_repeated_report_changes_nothing(stage: Stage) -> None:
    stage.configure(4)
    one = stage.replica("one")
    one.say(bid(1, 1))
    report = one.report(bid(1, 1))
    first = stage.turn("one", report)
    assert stage.turn("one", report) == first
    assert held(stage) == 2


def test_older_sequence_changes_nothing(stage: Stage) -> None:
    stage.configure(4)
    one = stage.replica("one")
    one.say(bid(1, 2))
    late = one.report(bid(1, 2))
    one.used = {"b0": 1}
    one.say()
    assert stage.turn("one", late).grants == ()
    assert held(stage) == 1


def test_used_falls_and_exactly_that_many_seats_are_free(stage: Stage) -> None:
    stage.configure(5)
    one, two = stage.replica("one"), stage.replica("two")
    one.fill(5)
    two.say(bid(1, 9))
    one.finish(3)
    one.say()
    stage.now += 1
    two.say(bid(1, 9))
    two.say(bid(1, 9))
    assert sum(two.used.values()) == 3
    assert held(stage) == 5


def test_a_seat_granted_to_a_replica_that_crashed_comes_back_after_recall(stage: Stage) -> None:
    stage.configure(1)
    gone, other = stage.replica("gone"), stage.replica("other")
    stage.turn("gone", gone.report(bid(1, 1)))  # the answer is never read
    stage.now += 499
    assert not other.say(bid(1, 1))
    stage.now += 1
    assert other.say(bid(1, 1))


def test_what_is_recalled_is_not_granted_again_before_the_replica_speaks(stage: Stage) -> None:
    stage.configure(2)
    frozen, other = stage.replica("frozen"), stage.replica("other")
    stage.turn("frozen", frozen.report(bid(0, 9)))
    stage.now += 500
    other.say(bid(2, 1))
    assert other.used == {"b0": 1}
    assert [row.bid for row in stage.view().rows] == [(0, 0, 0), (0, 0, 0)]


def test_a_silent_replica_is_forgotten_and_comes_back_with_what_it_uses(stage: Stage) -> None:
    stage.configure(4, heartbeat_ms=3000)
    silent, other = stage.replica("silent"), stage.replica("other")
    silent.fill(3)
    epoch = silent.epoch
    stage.now += 4999
    other.say(bid(1, 9))
    assert other.used == {"b0": 1}
    stage.now += 1
    other.fill(3)
    assert other.used == {"b0": 4}
    assert other.answer().replicas == 1
    stage.now += 1
    silent.say()
    assert silent.epoch > epoch
    assert held(stage) == 7  # what really runs; nothing is granted before it has ended
    assert not silent.say(bid(0, 1))


def test_nobody_is_late_when_the_ledger_was_away(stage: Stage) -> None:
    stage.configure(2, rebuild_ms=2000)
    one, two = stage.replica("one"), stage.replica("two")
    one.say()
    stage.now += 2000
    one.say(bid(1, 2))
    two.say()
    stage.now += 6000
    two.say(bid(1, 1))
    assert two.answer().replicas == 2
    assert two.answer().open_in_ms == 2000
    one.used = {}
    one.say()
    assert two.used == {}
    stage.now += 1999
    assert not two.say(bid(1, 1))
    stage.now += 1
    assert two.say(bid(1, 1))


def test_after_a_wipe_nothing_is_granted_until_all_have_reported(stage: Stage) -> None:
    stage.configure(4, rebuild_ms=2000)
    one, two = stage.replica("one"), stage.replica("two")
    one.say()
    stage.now += 2000
    one.fill(3)
    epoch = one.epoch
    stage.wipe()
    stage.now += 1
    two.say(bid(1, 9))
    assert two.answer().open_in_ms == 2000
    one.say()
    assert one.epoch > epoch
    stage.now += 2000
    two.say(bid(1, 9))
    assert two.used == {"b0": 1}
    assert held(stage) == 4 == sum(one.used.values()) + sum(two.used.values())


def test_epochs_differ_over_a_wipe_though_all_counts_begin_anew(stage: Stage) -> None:
    stage.configure(4)
    one = stage.replica("one")
    one.say(bid(1, 1))
    first = one.epoch
    stage.wipe()
    stage.now += 1
    stage.turn("one", one.report())
    one.say()
    assert one.epoch not in {first, 1}
    assert one.answer().grants == ()


def test_an_acknowledgement_ahead_of_the_ledger_moves_its_numbers_on(stage: Stage) -> None:
    stage.configure(4)
    one = stage.replica("one")
    one.say(bid(1, 1))
    one.ack = 7  # the store fell back to an older copy
    (grant,) = one.say(bid(1, 1))
    assert grant.number == 8


def test_nobody_listens_and_the_next_best_gets_the_seat_at_the_same_accounts(stage: Stage) -> None:
    stage.configure(1)
    holder, gone, other = stage.replica("holder"), stage.replica("x gone"), stage.replica("other")
    holder.say(bid(1, 1))
    gone.say(bid(2, 5, 100), bid(1, 1, 90))
    other.say(bid(1, 1, 10))
    before = stage.view()
    holder.finish()
    holder.say()
    after = stage.view()
    assert {row.name: row.unconfirmed for row in after.rows} == {"holder": 0, "other": 1, "x gone": 0}
    assert {row.name: sum(row.bid) for row in after.rows} == {"holder": 0, "other": 0, "x gone": 0}
    assert after.granted == before.granted + 1
    assert after.gaps == (0, 0, 0)  # no bid of band 2 counted as waiting when the seat was really granted


def test_a_grant_that_was_pushed_is_in_the_next_reply(stage: Stage) -> None:
    stage.configure(1)
    holder, other = stage.replica("holder"), stage.replica("other")
    holder.say(bid(1, 1))
    other.say(bid(1, 1))
    holder.finish()
    holder.say()
    stage.now += 20
    (grant,) = other.say(bid(1, 1))
    assert grant.at_ms == stage.now - 20


def test_tickets_that_unconfirmed_grants_will_take_are_not_bid_twice(stage: Stage) -> None:
    stage.configure(3)
    holder, other = stage.replica("holder"), stage.replica("other")
    holder.fill(3)
    other.say(bid(1, 1))
    holder.finish(3)
    holder.say()
    assert held(stage) == 1
    stage.turn("other", other.report(bid(1, 1)))  # sent before the push came
    assert held(stage) == 1


def test_no_replica_has_more_unconfirmed_grants_than_allowed(stage: Stage) -> None:
    stage.configure(9, unconfirmed_max=2)
    holder, one, two = stage.replica("holder"), stage.replica("one"), stage.replica("two")
    holder.fill(9)
    assert holder.used == {"b0": 9}
    one.say(bid(0, 9, 500))
    two.say(bid(0, 9))
    holder.finish(9)
    holder.say()
    assert {row.name: row.unconfirmed for row in stage.view().rows} == {"holder": 0, "one": 2, "two": 2}


def test_a_replica_that_leaves_gives_all_back(stage: Stage) -> None:
    stage.configure(2)
    one, two = stage.replica("one"), stage.replica("two")
    one.say(bid(1, 2))
    stage.leave("one")
    stage.leave("nobody")
    assert len(two.say(bid(1, 5))) == 2
    assert two.answer().replicas == 1


def test_an_older_configuration_is_refused(stage: Stage) -> None:
    stage.configure(4, version=3)
    with pytest.raises(LedgerConflict, match="newer than version 3, got version 2") as caught:
        stage.configure(4, version=2)
    assert caught.value.version == 3
    with pytest.raises(LedgerConflict):
        stage.configure(5, version=3)
    stage.configure(4, version=3)  # the same again
    assert stage.configuration() == config(4, version=3)


FOUR = (*BANDS, BandConfig(name="p3", weight_ppm=1))


@pytest.mark.parametrize("bands", [FOUR, BANDS[:2]])
@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_another_number_of_bands_waits_until_nobody_with_the_old_one_is_left(
    stage: Stage, bands: tuple[BandConfig, ...], how: str
) -> None:
    stage.configure(4)
    old, new = stage.replica("old"), stage.replica("new")
    old.say(bid(1, 2), waiting=(0, 2, 0))
    new.say(waiting=(0,) * len(bands))
    with pytest.raises(StoreError, match="bands") as caught:
        stage.configure(4, version=2, bands=bands)
    assert not isinstance(caught.value, LedgerConflict), "no version above his helps"
    assert stage.configuration() == config(4)
    if how == "leaves":
        stage.leave("old")
    else:
        for _ in range(6):
            stage.now += 1000
            new.say(waiting=(0,) * len(bands))
    stage.configure(4, version=2, bands=bands)
    assert stage.configuration() == config(4, version=2, bands=bands)
    if hasattr(stage, "handle"):
        stage.handle.known = config(4)  # of a gateway that has not read the new one yet
    assert len(new.say(bid(1, 9), waiting=(0, 9))) == 2
    assert len(new.answer().clocks) == len(bands)
    assert new.answer().replicas == 1


def test_a_change_reaches_everyone_with_the_next_reply(stage: Stage) -> None:
    stage.configure(4)
    one = stage.replica("one")
    one.fill(4)
    assert (one.answer().version, one.answer().mode) == (1, "")
    stage.configure(6, version=2, mode="transactions_only", document="who and why")
    grants = one.say(bid(1, 2))
    assert (one.answer().version, one.answer().mode) == (2, "transactions_only")
    assert len(grants) == 2
    assert stage.configuration() == config(6, version=2, mode="transactions_only", document="who and why")


def test_a_pool_without_configuration_says_so(stage: Stage) -> None:
    with pytest.raises(LedgerUnavailable, match="no configuration"):
        stage.turn("one", stage.replica("one").report())
    assert stage.configuration() is None


def test_a_store_that_lost_its_configuration_gets_it_from_who_reports(stage: Stage) -> None:
    stage.configure(4, version=5)
    stage.wipe()
    one = stage.replica("one")
    one.say()
    assert one.answer().version == 5
    assert stage.configuration() == config(4, version=5)


def test_seats_of_a_backend_that_is_taken_out_count_no_more(stage: Stage) -> None:
    stage.configure(2, 2)
    one = stage.replica("one")
    one.fill(4)
    assert one.used == {"b0": 2, "b1": 2}
    stage.configure(2, version=2)
    one.say()
    assert stage.view().held == (2,)
    stage.configure(2, 2, version=3)
    one.say()
    assert stage.view().held == (2, 2)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (config(4, bands=()), "bands"),
        (config(4, discipline="fifo"), "discipline"),
        (PoolConfig(version=1, bands=config().bands, backends=()), "backends"),
        (config(-1), "seats"),
        (config(4, cap_ppm=10_000), "cap"),
        (config(4, ttl_ms=0), "times"),
        (config(4, bands=(BandConfig(share=0),)), "out of range"),
    ],
)
def test_a_configuration_that_cannot_be_obeyed_is_refused(stage: Stage, bad: PoolConfig, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        stage.put(bad)


def test_time_never_goes_back(stage: Stage) -> None:
    stage.configure(1)
    one = stage.replica("one")
    (grant,) = one.say(bid(1, 1))
    stage.now -= 5000
    one.say()
    assert one.answer().now_ms == grant.at_ms


def test_a_clock_that_is_set_back_keeps_no_seat_of_who_is_gone(stage: Stage) -> None:
    stage.configure(4)
    gone, frozen, other = stage.replica("gone"), stage.replica("frozen"), stage.replica("other")
    gone.fill(3)
    stage.turn("frozen", frozen.report(bid(0, 1)))
    stage.now -= 3_600_000
    assert not other.say(bid(1, 9))
    stage.now += 500
    assert len(other.say(bid(1, 9))) == 1, "what nobody confirmed is taken back in time"
    for _ in range(6):
        stage.now += 1000
        other.say(bid(1, 9))
    assert sum(other.used.values()) == 4, "and seats of a replica that is gone come back"
    assert [row.name for row in stage.view().rows] == ["other"]


def test_out_of_place_words_in_a_report_change_nothing_else(stage: Stage) -> None:
    stage.configure(2)
    one = stage.replica("one")
    empty = Bid(1, 3, bid(1).oldest, ())
    one.used = {"elsewhere": 3}
    assert len(one.say(bid(7), empty, bid(0, 0), bid(1, 1))) == 1
    assert held(stage) == 1


@pytest.mark.parametrize("seed", range(3))
def test_never_more_seats_are_out_than_there_are_and_none_is_idle_for_long(stage: Stage, seed: int) -> None:
    rng = random.Random(seed)
    stage.configure(4, 2)
    replicas = [Replica(stage, f"r{index}") for index in range(4)]
    for _ in range(150):
        stage.now += rng.choice([0, 1, 10, 100])
        one = rng.choice(replicas)
        for backend, count in one.used.items():
            one.used[backend] = max(0, count - rng.choice([0, 0, 1, 2]))
        bids = [bid(band, rng.randint(1, 5), rng.randint(0, 900)) for band in range(3) if rng.random() < 0.7]
        while one.say(*bids):  # what is taken is confirmed at once
            pass
        view = stage.view()
        assert all(out <= seats for out, seats in zip(view.held, view.seats, strict=True))
        assert sum(sum(each.used.values()) for each in replicas) <= sum(view.held)
        waits = [row for row in view.rows if any(row.bid) and row.unconfirmed < 2]
        assert not waits or view.held == view.seats
