"""What every ledger promises about order: bands by the scheduler's rule, tenants by counters, over all replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from conformance.ledger_stage import BANDS, Replica, Stage, bid
from tidegate.core import Turn
from tidegate.stores.ledger_protocol import PPM, BandConfig, Bid, Charge, Grant, Head, TenantConfig

STRICT = (
    BandConfig(weight_ppm=100 * PPM),
    BandConfig(weight_ppm=20 * PPM),
    BandConfig(weight_ppm=PPM, floor_ppm=50_000),
)
Offers = Callable[[Replica], Sequence[Bid]]


def serve(stage: Stage, replicas: list[Replica], offers: Offers, count: int) -> list[tuple[str, Grant]]:
    """Let one seat go from grant to grant; every replica always bids what ``offers`` says. Return who got what."""
    order: list[tuple[str, Grant]] = []
    for one in replicas:
        order += [(one.name, grant) for grant in one.say(*offers(one))]
    while len(order) < count:
        stage.now += 10
        holder = next(one for one in replicas if one.name == order[-1][0])
        holder.used = {}
        mine = holder.say(*offers(holder))
        if mine:
            order.append((holder.name, mine[0]))
            continue
        (name,) = (row.name for row in stage.view().rows if row.unconfirmed)
        other = next(one for one in replicas if one.name == name)
        (grant,) = other.say(*offers(other))
        order.append((name, grant))
    return order


def windows(kinds: Sequence[bool], size: int = 100) -> list[int]:
    return [sum(kinds[start : start + size]) for start in range(len(kinds) - size + 1)]


def test_a_floor_is_exact_in_every_window_over_many_replicas(stage: Stage) -> None:
    stage.configure(1, discipline="strict", bands=STRICT, cap_ppm=50_000)
    replicas = [stage.replica(f"r{index}") for index in range(16)]
    order = serve(stage, replicas, lambda one: [bid(int(one.name[1:]) % 3, 9)], 220)
    bands = [grant.band for _, grant in order[1:]]  # the first was granted before the others bid
    assert min(windows([band == 2 for band in bands])) == 5
    assert set(bands) == {0, 2}
    assert {grant.kind for _, grant in order if grant.band == 2} == {Turn.FLOOR}


def test_overtakes_stay_within_the_cap_in_every_window(stage: Stage) -> None:
    stage.configure(1)
    replicas = [stage.replica(f"r{index}") for index in range(4)]
    old = [bid(2, 9, 3_000_000)]
    order = serve(stage, replicas, lambda one: [bid(0, 9, 50)] if one.name == "r0" else old, 250)
    overtaken = [grant.kind is not Turn.TURN for _, grant in order]
    assert max(windows(overtaken)) <= 11
    assert sum(overtaken[-200:]) >= 17


def test_an_overtake_is_for_who_has_waited_longest(stage: Stage) -> None:
    stage.configure(1)
    one, old, new = stage.replica("one"), stage.replica("old"), stage.replica("new")
    one.say(bid(0, 1))
    order = []
    for _ in range(30):
        one.say(bid(0, 9))
        old.say(Bid(2, 9, Head(2_000_000, "busy", 1), (Head(10, "other", 1),)))
        new.say(Bid(2, 9, Head(1_900_000, "idle", 1), (Head(1_900_000, "idle", 1),)))
        one.used = {}
        one.say(bid(0, 9))
        for each in (old, new):
            order += [(each.name, grant.kind) for grant in each.say()]
            each.used = {}
            each.say()
    assert ("old", Turn.OVERTAKE) in order
    assert ("new", Turn.OVERTAKE) not in order


def test_a_promoted_ticket_bids_with_the_weights_above(stage: Stage) -> None:
    bands = (*STRICT[:2], BandConfig(weight_ppm=PPM, promote_after_ms=1000))
    stage.configure(1, discipline="strict", bands=bands, cap_ppm=200_000)
    one, two = stage.replica("one"), stage.replica("two")
    order = serve(stage, [one, two], lambda each: [bid(1, 9)] if each is one else [bid(2, 9, 2000)], 40)
    assert Counter(grant.band for _, grant in order)[2] in {7, 8}
    assert {grant.kind for _, grant in order if grant.band == 2} == {Turn.OVERTAKE}


def test_shares_of_the_weighted_discipline(stage: Stage) -> None:
    bands = tuple(BandConfig(weight_ppm=PPM, share=share) for share in (8, 2, 1))
    stage.configure(1, discipline="weighted", by_tokens=False, bands=bands, cap_ppm=0)
    replicas = [stage.replica(f"r{index}") for index in range(3)]
    order = serve(stage, replicas, lambda one: [bid(int(one.name[1:]), 9)], 110)
    assert Counter(grant.band for _, grant in order) == {0: 80, 1: 20, 2: 10}


def test_a_flood_of_one_tenant_does_not_make_another_wait(stage: Stage) -> None:
    stage.configure(1)
    flood, calm = stage.replica("flood"), stage.replica("calm")

    def offers(one: Replica) -> list[Bid]:
        return [bid(1, 9999, 60_000, tenant="flood")] if one is flood else [bid(1, 1, tenant="calm")]

    names = [name for name, _ in serve(stage, [flood, calm], offers, 41)]
    assert all(one != other for one, other in pairwise(names))


def test_a_tenant_on_many_replicas_gets_one_share(stage: Stage) -> None:
    stage.configure(1)
    replicas = [stage.replica(f"r{index}") for index in range(9)]

    def offers(one: Replica) -> list[Bid]:
        return [bid(1, 9, tenant="alone" if one.name == "r0" else "spread")]

    names = Counter(name for name, _ in serve(stage, replicas, offers, 81))
    assert names["r0"] in {40, 41}


def test_ties_between_replicas_of_one_tenant_go_to_the_first_to_arrive(stage: Stage) -> None:
    stage.configure(1)
    one, two, three = (stage.replica(name) for name in ("one", "two", "three"))
    three.say(bid(1, 1))
    one.say(bid(1, 1, 10))
    two.say(bid(1, 1, 30))
    three.used = {}
    three.say(bid(1, 1, 20))
    assert not one.say(bid(1, 1, 10))
    assert two.say(bid(1, 1, 30))


def test_weights_of_tenants(stage: Stage) -> None:
    stage.configure(1, tenants=(TenantConfig(name="heavy", weight_ppm=3 * PPM),))
    one, two = stage.replica("one"), stage.replica("two")
    order = serve(stage, [one, two], lambda each: [bid(1, 9, tenant="heavy" if each is one else "light", work=50)], 80)
    assert Counter(name for name, _ in order)["one"] in {59, 60, 61}


def test_charges_are_counted_once_however_often_they_are_sent(stage: Stage) -> None:
    stage.configure(1, tenants=(TenantConfig(name="t", weight_ppm=2 * PPM),))
    one = stage.replica("one")
    one.say(bid(1, 1, work=10))
    charge = Charge(1, 1, "t", 7)
    one.say(bid(1, 1), charges=(charge,))
    assert one.answer().charged == 1
    assert one.answer().counters == ((1, "t", 5_000 + 3_500),)
    one.say(bid(1, 1), charges=(charge, Charge(2, 1, "t", -1)))
    assert one.answer().charged == 2
    assert one.answer().counters == ((1, "t", 8_000),)
    one.say(bid(1, 1), charges=(charge,))
    assert one.answer().counters == ((1, "t", 8_000),)


def test_a_newcomer_starts_at_the_clock_of_the_band(stage: Stage) -> None:
    stage.configure(1)
    one = stage.replica("one")
    for _ in range(5):
        one.used = {}
        one.say(bid(1, 9, tenant="old", work=100))
    assert one.answer().clocks == (0, 400_000, 0)
    one.say(bid(1, 1, tenant="new"), bid(0, 1, tenant="new"))
    assert one.answer().counters == ((1, "new", 400_000), (0, "new", 0))


def test_counters_below_the_clock_are_forgotten_now_and_then(stage: Stage) -> None:
    stage.configure(1)
    one = stage.replica("one")
    one.say(bid(1, 1, tenant="old", work=100))
    for _ in range(260):
        one.used = {}
        one.say(bid(1, 9, tenant="busy", work=10))
    one.say(bid(1, 1, tenant="old"), charges=(Charge(1, 1, "old", 1),))
    assert one.answer().counters == ((1, "old", one.answer().clocks[1]),)


def test_the_preferred_backend_if_it_is_free_else_the_one_with_most_free(stage: Stage) -> None:
    stage.configure(1, 3, 2)
    one = stage.replica("one")
    grants: list[Grant] = []
    for prefer in ("b2", "", "b0", "b0", "gone"):
        grants += one.say(Bid(1, 1, Head(0, "t", 1, prefer), (Head(0, "t", 1, prefer),)))
    assert [grant.backend for grant in grants] == ["b2", "b1", "b0", "b1", "b1"]


def test_a_band_runs_only_where_the_replica_says_it_may(stage: Stage) -> None:
    stage.configure(2, 1)
    one = stage.replica("one")
    assert [grant.backend for grant in one.say(bid(0, 5, backends=("b1",)), bid(2, 1))] == ["b1", "b0"]
    assert not one.say(bid(0, 5, backends=("b1",)))
    assert [grant.backend for grant in one.say(bid(0, 5, backends=("b1", "b0")))] == ["b0"]


def test_a_gate_in_one_replica_does_not_stop_the_band_of_another(stage: Stage) -> None:
    stage.configure(1, 1)
    one, two, three = (stage.replica(name) for name in ("one", "two", "three"))
    three.fill(2)
    one.say(bid(0, 5, 900, backends=("b1",)))
    two.say(bid(0, 1, backends=("b0",)), bid(1, 9))
    three.finish(backend="b0")
    three.say()
    assert [grant.band for grant in two.say()] == [0]


def test_age_passes_a_reserve_and_none_that_is_short_but_floors_do(stage: Stage) -> None:
    for version, (short, floor) in enumerate([(False, 0), (True, 0), (True, 100_000)], start=1):
        bands = (BandConfig(weight_ppm=PPM), BandConfig(weight_ppm=PPM, aging_ppm=PPM, floor_ppm=floor))
        stage.configure(8, version=version, bands=bands, cap_ppm=500_000, unconfirmed_max=99)
        controller, other = stage.replica("one"), stage.replica("two")
        controller.say(reserve=(4, 0), short=(short, False))
        other.used = {"b0": 4}
        grants: list[Grant] = []
        for _ in range(20):  # four seats are left, of which one is given at a time
            other.used = {"b0": 7}
            stage.now += 1
            grants += other.say(bid(0, 9, 10), bid(1, 9, 60_000), waiting=(9, 9))
            stage.now += 1
        kinds = {grant.kind for grant in grants if grant.band == 1}
        assert len(grants) >= 15
        assert kinds == ({Turn.FLOOR} if floor else set() if short else {Turn.OVERTAKE}), (short, floor)


def test_a_ceiling_holds_a_band_back_and_a_reserve_those_below(stage: Stage) -> None:
    ceiling = (BANDS[0], BandConfig(weight_ppm=PPM, ceiling_ppm=500_000))
    stage.configure(4, bands=ceiling, cap_ppm=0, unconfirmed_max=8)
    one = stage.replica("one")
    assert len(one.say(bid(1, 9))) == 3  # the third while no more than half is taken
    reserve = (BandConfig(weight_ppm=2 * PPM, reserve=1), BandConfig(weight_ppm=PPM))
    stage.configure(4, version=2, bands=reserve, cap_ppm=0, unconfirmed_max=8)
    one.used = {}
    assert len(one.say(bid(1, 9))) == 3
    assert len(one.say(bid(0, 1))) == 1
