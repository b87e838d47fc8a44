"""Two gateways of one name, a gateway that was started anew, and gateways whose files differ: on every ledger."""

from __future__ import annotations

from conformance.ledger_stage import Stage, bid
from tidegate.stores.ledger_identity import doubled, ended, key_of

FIRST, SECOND = key_of("gw-0", "1a"), key_of("gw-0", "2b")


def test_two_gateways_of_one_name_never_run_more_than_the_seats_and_are_told_apart(stage: Stage) -> None:
    stage.configure(4, unconfirmed_max=4)
    one, two = stage.replica(FIRST), stage.replica(SECOND)
    other = stage.replica(key_of("gw-1", "3c"))
    for _ in range(5):
        stage.now += 100
        for each in (one, two, other):
            each.say(bid(1, 3))
            assert sum(sum(replica.used.values()) for replica in (one, two, other)) <= 4
    assert (one.answer().replicas, one.answer().epoch == two.answer().epoch) == (3, False)
    assert doubled(stage.view()) == {FIRST, SECOND}
    assert ended(stage.view(), FIRST) == ended(stage.view(), SECOND) == []


def test_a_gateway_that_is_started_anew_under_its_name_is_no_second_one(stage: Stage) -> None:
    stage.configure(4, ttl_ms=5000)
    before = stage.replica(FIRST)
    before.fill(3)
    stage.now += 200  # it is killed; its requests may go on at the engine for a while
    after = stage.replica(SECOND)
    for _ in range(20):
        assert len(after.say(bid(1, 1))) <= 1
        stage.now += 100
        assert sum(after.used.values()) <= 1
    assert doubled(stage.view()) == set()
    stage.now += 500
    after.say()
    assert ended(stage.view(), SECOND) == [FIRST]
    assert ended(stage.view(), FIRST) == []
    stage.leave(FIRST)
    after.fill(3)
    assert after.used == {"b0": 4}


def test_an_earlier_run_that_only_slept_is_a_second_gateway_when_it_wakes(stage: Stage) -> None:
    stage.configure(4)
    before = stage.replica(FIRST)
    before.fill(2)
    stage.now += 400
    after = stage.replica(SECOND)
    after.say(bid(1, 4))
    stage.now += 3000
    after.say()
    stage.leave(FIRST)  # as the later one does
    stage.now += 100
    before.say(bid(1, 4))
    stage.now += 100
    after.say()
    stage.now += 1
    before.say()
    assert doubled(stage.view()) == {FIRST, SECOND}
    assert sum(stage.view().held) <= 4


def test_the_picture_says_what_file_each_has(stage: Stage) -> None:
    stage.configure(4)
    one, two, three = (stage.replica(name) for name in ("one", "two", "three"))
    one.say(file="aa")
    two.say(file="bb")
    three.say()
    stage.forget()
    one.say(file="ab")
    assert {row.name: row.file for row in stage.view().rows} == {"one": "ab", "two": "bb", "three": ""}
