"""What else every ledger shares: quotas and budgets, the seat controller, solo shares, and the picture of the pool."""

from __future__ import annotations

from conformance.ledger_stage import Stage, bid
from tidegate.stores.ledger_protocol import BackendConfig, BandConfig, Charge, TenantConfig


def test_a_quota_of_tokens_closes_a_backend_until_it_has_drained(stage: Stage) -> None:
    quota = (BackendConfig(name="b0", seats=9, tokens_per_minute=6000), BackendConfig(name="b1", seats=1))
    stage.configure(backends=quota)
    one = stage.replica("one")
    assert [grant.backend for grant in one.say(bid(1, 1, work=150))] == ["b0"]  # overdrawn by one request
    assert one.answer().closed == (("b0", 509),)  # 50 above the 100 that it holds, at 5,900 a minute
    assert [grant.backend for grant in one.say(bid(1, 1, work=1))] == ["b1"]
    stage.now += 508
    assert not one.say(bid(1, 1, work=1))
    stage.now += 1
    assert [grant.backend for grant in one.say(bid(1, 1, work=1))] == ["b0"]


def test_a_quota_is_never_exceeded_in_any_minute(stage: Stage) -> None:
    stage.configure(backends=(BackendConfig(name="b0", seats=50, requests_per_minute=120),), unconfirmed_max=50)
    one = stage.replica("one")
    times = []
    for _ in range(300):
        stage.now += 250
        times += [grant.at_ms for grant in one.say(bid(1, 9))]
        one.used = {}
    most = max(sum(start <= time < start + 60_000 for time in times) for start in times)
    assert 115 <= most <= 121


def test_a_tenant_in_debt_waits_and_the_next_one_runs(stage: Stage) -> None:
    stage.configure(9, tenants=(TenantConfig(name="limited", tokens_per_minute=600),), unconfirmed_max=9)
    one, two = stage.replica("one"), stage.replica("two")
    two.say()
    assert len(one.say(bid(1, 5, 900, tenant="limited", work=20))) == 1
    assert one.answer().debts == (("limited", 1017),)
    assert not one.say(bid(1, 5, 900, tenant="limited", work=20))
    assert len(two.say(bid(1, 2, tenant="free"), bid(0, 1, tenant="limited"))) == 2
    stage.now += 1017
    assert one.say(bid(1, 5, 900, tenant="limited", work=20))


def test_actual_use_settles_budgets_and_quotas(stage: Stage) -> None:
    backends = (BackendConfig(name="b0", seats=9, tokens_per_minute=600),)
    stage.configure(backends=backends, tenants=(TenantConfig(name="t", tokens_per_minute=600),))
    one = stage.replica("one")
    one.say(bid(1, 1, work=20))
    one.say(charges=(Charge(1, 1, "t", -15, "b0"),))
    assert (one.answer().debts, one.answer().closed) == ((), ())
    one.say(charges=(Charge(2, 1, "t", 25, "b0"),))
    assert (one.answer().debts, one.answer().closed) == ((("t", 2034),), (("b0", 2034),))


def test_one_replica_runs_the_seat_controller_until_it_is_gone(stage: Stage) -> None:
    auto = (BackendConfig(name="b0", seats=2, auto=True), BackendConfig(name="b1", seats=1))
    stage.configure(backends=auto)
    one, two = stage.replica("one"), stage.replica("two")
    one.say()
    two.say(seats=(("b0", 9),))
    assert (one.answer().controller, two.answer().controller) == (True, False)
    assert two.answer().seats == (("b0", 2, 0, 0), ("b1", 1, 0, 0))
    one.say(seats=(("b0", 5), ("b1", 7), ("b2", 1)))
    assert one.answer().seats == (("b0", 5, 0, 0), ("b1", 1, 0, 0))
    stage.configure(backends=(*auto, BackendConfig(name="b2", seats=1)), version=2)
    two.say()
    assert [seats for _, seats, _, _ in two.answer().seats] == [5, 1, 1]
    stage.leave("one")
    two.say(seats=(("b0", 3),))
    assert two.answer().controller
    assert [seats for _, seats, _, _ in two.answer().seats] == [3, 1, 1]
    stage.configure(backends=(BackendConfig(name="b0", seats=4), *auto[1:]), version=3)
    two.say()
    assert [seats for _, seats, _, _ in two.answer().seats] == [4, 1]


def test_the_controller_sets_the_reserve_by_the_arrivals_of_all(stage: Stage) -> None:
    bands = (BandConfig(weight_ppm=2), BandConfig(weight_ppm=1))
    stage.configure(4, bands=bands, cap_ppm=0, unconfirmed_max=9)
    one, two = stage.replica("one"), stage.replica("two")
    one.say(rates_ppm=(3_000_000, 5))
    two.say(rates_ppm=(500_000,))
    assert two.answer().rates_ppm == (3_500_000, 5)
    two.say(rates_ppm=(0, 1), reserve=(3, 0))
    assert two.answer().reserve == (0, 0)
    one.say(rates_ppm=(3_000_000, 5), reserve=(2, 0))
    two.say(bid(1, 9), rates_ppm=(0, 1))
    assert two.answer().reserve == (2, 0)
    assert two.used == {"b0": 2}
    assert two.answer().rates_ppm == (3_000_000, 6)
    stage.leave("one")
    two.say()
    assert two.answer().rates_ppm == (0, 0)


def test_solo_shares_follow_use_and_are_together_at_most_all_seats(stage: Stage) -> None:
    stage.configure(16, heartbeat_ms=20_000, ttl_ms=60_000)
    busy, idle = stage.replica("busy"), stage.replica("idle")
    busy.fill(12)
    for _ in range(20):
        stage.now += 5000
        idle.say()
        busy.say()
    assert busy.answer().solo_share + idle.answer().solo_share <= 16
    assert busy.answer().solo_share >= 12
    assert idle.answer().solo_share >= 1


def test_solo_shares_carry_first_what_the_highest_band_used_at_its_recent_peak(stage: Stage) -> None:
    stage.configure(16, heartbeat_ms=20_000, ttl_ms=60_000)
    vip, batch = stage.replica("vip"), stage.replica("batch")

    def go_on(steps: int, step_ms: int, top: int) -> tuple[int, int]:
        for _ in range(steps):
            stage.now += step_ms
            batch.say()
            vip.say(top=top)
        batch.say()
        return vip.answer().solo_share, batch.answer().solo_share

    vip.fill(1, band=0)
    batch.fill(9)
    assert go_on(50, 2000, top=1) == (2, 14)
    vip.fill(3, band=0)
    go_on(1, 1000, top=4)
    vip.finish(3)
    assert go_on(4, 1000, top=1) == (4, 12)  # by its use on average it would have had 2
    assert go_on(50, 2000, top=1) == (2, 14)


def test_seats_kept_for_bursts_of_the_highest_band_are_an_eighth_of_all(stage: Stage) -> None:
    """Else 15 of 16 seats were dealt to a gateway that used nine, and a store outage cost a third of the throughput."""
    stage.configure(16, heartbeat_ms=20_000, ttl_ms=60_000)
    vip, one, two = (stage.replica(name) for name in ("vip", "one", "two"))
    vip.fill(9, band=0)
    one.fill(4)
    two.fill(3)

    def go_on(steps: int, step_ms: int, top: int) -> tuple[int, ...]:
        for _ in range(steps):
            stage.now += step_ms
            one.say()
            two.say()
            vip.say(top=top)
        one.say()
        two.say()
        return tuple(each.answer().solo_share for each in (vip, one, two))

    go_on(50, 2000, top=6)
    two.finish(3)
    one.finish(3)
    go_on(1, 100, top=6)
    vip.fill(6, band=0)
    go_on(1, 100, top=15)
    vip.finish(6)
    shares = go_on(1, 100, top=6)
    assert shares[0] == 11
    assert sum(shares) == 16


def test_where_the_highest_band_had_all_seats_shares_go_by_it_alone(stage: Stage) -> None:
    stage.configure(8, heartbeat_ms=20_000, ttl_ms=60_000)
    one, two = stage.replica("one"), stage.replica("two")
    one.fill(6, band=0)
    two.fill(2, band=0)
    two.say(top=2)
    one.say(top=6)
    one.finish(6)
    one.say(top=0)
    two.fill(6, band=0)
    two.say(top=8)
    one.say(top=0)
    two.say(top=8)
    assert (one.answer().solo_share, two.answer().solo_share) == (3, 5)


def test_a_replica_alone_may_use_every_seat_alone(stage: Stage) -> None:
    stage.configure(16)
    one = stage.replica("one")
    one.say()
    assert one.answer().solo_share == 16
    stage.replica("two").say()
    one.say()
    assert one.answer().solo_share == 8


def test_granted_tokens_are_counted_per_backend(stage: Stage) -> None:
    stage.configure(3, 3)
    one, two = stage.replica("one"), stage.replica("two")
    one.say(bid(1, 1, work=30))
    two.say(bid(1, 1, work=12))
    assert two.answer().seats == (("b0", 3, 1, 30), ("b1", 3, 1, 12))


def test_the_picture_has_a_row_for_every_replica(stage: Stage) -> None:
    stage.configure(2, 1, mode="calm")
    one, two = stage.replica("one"), stage.replica("two")
    one.say(waiting=(0, 1, 7))
    stage.now += 40
    two.say(bid(0, 1, work=5), waiting=(1, 0, 0))
    one.say(bid(2, 6), waiting=(0, 1, 7))
    stage.now += 25
    two.say()
    view = stage.view()
    assert (view.version, view.mode, view.open_in_ms) == (1, "calm", 0)
    assert (view.backends, view.seats, view.held, view.granted) == (("b0", "b1"), (2, 1), (2, 1), 3)
    first, second = view.rows
    assert (first.name, first.held, first.unconfirmed, first.waiting, first.bid) == (
        "one",
        (1, 1),
        2,
        (0, 1, 7),
        (0, 0, 4),
    )
    assert (second.name, second.held, second.unconfirmed, second.epoch) == ("two", (1, 0), 0, two.epoch)
    assert (first.controller, second.controller) == (True, False)
