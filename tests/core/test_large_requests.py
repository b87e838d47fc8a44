"""A long prompt of a low band waits until the cache has room for it, but not for ever."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from core.capacity_stage import leases, policy
from tidegate.core import (
    BackendSpec,
    Band,
    Dispatch,
    Evict,
    Policy,
    PoolSpec,
    Reading,
    Reason,
    Reject,
    Release,
    Saturated,
    Scheduler,
    Ticket,
    Turn,
    WorkEstimate,
)
from tidegate.core.gates import NO_ROOM
from tidegate.core.readings import Sensor
from tidegate.core.room import PATIENCE_S

BANDS = (
    Band("p0", 100, 0.05),
    Band("p1", 20, 0.02, kv_watermark=0.08, kv_resume=0.12),
    Band("p2", 1, 0.005, kv_watermark=0.15, kv_resume=0.2),
)


def page(at: float, kv_free: float) -> Reading:
    return Reading("b", at, kv_free, running=4, waiting=0, preemptions=0, kv_tokens=10_000, generated=int(at * 100))


def started(scheduler: Scheduler, now: float, id_: str, band: int, tokens: int, tenant: str = "t") -> list[str]:
    actions = scheduler.submit(now, Ticket(id_, "m", band, tenant, WorkEstimate(tokens, 0)))
    return [action.ticket.id for action in actions if isinstance(action, Dispatch)]


def read(scheduler: Scheduler, now: float, kv_free: float) -> list[str]:
    actions = scheduler.observe(now, page(now, kv_free))
    return [action.ticket.id for action in actions if isinstance(action, Dispatch)]


@pytest.fixture
def scheduler() -> Scheduler:
    made = Scheduler(policy(BackendSpec("b", 64, stale_after_s=1000.0), bands=BANDS))
    assert started(made, 0.0, "runs", 2, 10) == ["runs"]
    assert not read(made, 1.0, 0.3)
    return made


def test_a_prompt_that_does_not_fit_waits_and_a_short_one_starts(scheduler: Scheduler) -> None:
    assert started(scheduler, 1.1, "long", 2, 3500) == []
    assert started(scheduler, 1.2, "other band", 1, 500) == ["other band"]
    assert read(scheduler, 2.0, 0.34) == []
    assert read(scheduler, 3.0, 0.36) == ["long"]


def test_the_highest_band_has_no_watermark_and_does_not_wait_for_its_size(scheduler: Scheduler) -> None:
    assert started(scheduler, 1.1, "long", 0, 3500) == ["long"]


def test_four_tenths_of_the_cache_are_room_for_anything(scheduler: Scheduler) -> None:
    assert started(scheduler, 1.1, "huge", 2, 9000) == []
    assert read(scheduler, 2.0, 0.41) == ["huge"]


def test_nobody_waits_for_room_longer_than_half_a_minute_and_the_next_has_a_wait_of_its_own(
    scheduler: Scheduler,
) -> None:
    assert started(scheduler, 1.1, "first", 2, 3500) == []
    assert started(scheduler, 1.2, "second", 2, 3400) == []
    assert scheduler.next_wakeup() == pytest.approx(1.1 + PATIENCE_S)
    assert not scheduler.tick(1.0 + PATIENCE_S)
    (first,) = scheduler.tick(1.1 + PATIENCE_S)
    assert isinstance(first, Dispatch)
    assert first.ticket.id == "first"
    assert read(scheduler, 32.0, 0.3) == []
    assert read(scheduler, 33.0, 0.35) == ["second"]


def test_it_is_the_size_of_the_ticket_whose_turn_it_is(scheduler: Scheduler) -> None:
    """Not of the oldest, which another tenant has."""
    assert read(scheduler, 1.05, 0.1) == []
    assert started(scheduler, 1.1, "long", 2, 3500) == []
    assert started(scheduler, 1.2, "short", 2, 100, tenant="new") == []
    assert read(scheduler, 2.0, 0.3) == ["short"]


def test_a_band_that_sheds_refuses_what_is_too_large_and_lets_the_rest_in() -> None:
    bands = (*BANDS[:2], replace(BANDS[2], when_saturated=Saturated.SHED))
    scheduler = Scheduler(policy(BackendSpec("b", 64, stale_after_s=1000.0), bands=bands))
    started(scheduler, 0.0, "runs", 2, 10)
    read(scheduler, 1.0, 0.3)
    (refused,) = scheduler.submit(1.1, Ticket("long", "m", 2, "t", WorkEstimate(3500, 0)))
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.SHED
    assert started(scheduler, 1.2, "short", 2, 100) == ["short"]


def test_while_only_observing_nothing_waits() -> None:
    watching = Scheduler(policy(BackendSpec("b", 64, stale_after_s=1000.0), bands=BANDS, observe_only=True))
    read(watching, 1.0, 0.3)
    assert started(watching, 1.1, "long", 2, 3500) == ["long"]


def test_without_a_known_size_anything_fits() -> None:
    bare = Sensor(BackendSpec("b", 64), Policy().bands)
    assert bare.fits(0.0, 0, 10**9)
    bare.read(Reading("b", 0.0, 0.1), 1, 0)
    assert bare.fits(0.0, 0, 10**9)


def test_a_prompt_that_does_not_fit_holds_up_its_own_tenant_only(scheduler: Scheduler) -> None:
    assert started(scheduler, 1.1, "long", 2, 3500, tenant="a") == []
    assert started(scheduler, 1.2, "behind it", 2, 100, tenant="a") == []
    assert started(scheduler, 1.3, "short", 2, 100, tenant="b") == ["short"]
    assert started(scheduler, 1.4, "another", 2, 100, tenant="b") == ["another"]
    (first,) = scheduler.tick(1.1 + PATIENCE_S)
    assert isinstance(first, Dispatch)
    assert first.ticket.id == "long"


def test_of_several_tenants_with_too_long_prompts_none_starts_and_the_first_that_fits_does(
    scheduler: Scheduler,
) -> None:
    for tenant in "abc":
        assert started(scheduler, 1.1, f"long {tenant}", 2, 3500, tenant=tenant) == []
    assert started(scheduler, 1.2, "short", 2, 100, tenant="d") == ["short"]


def test_patience_is_not_that_of_one_that_has_left(scheduler: Scheduler) -> None:
    assert started(scheduler, 1.1, "left", 2, 3500) == []
    scheduler.cancel(2.0, "left")
    assert started(scheduler, 100.0, "long", 2, 3500) == []
    assert scheduler.next_wakeup() == pytest.approx(100.0 + PATIENCE_S)


def test_why_says_that_there_is_no_room(scheduler: Scheduler) -> None:
    assert started(scheduler, 1.1, "long", 2, 3500) == []
    assert scheduler.why(1.2, "long").gate is NO_ROOM


@pytest.mark.parametrize("tokens", [5000, 7900, 8192, 30_000])
@pytest.mark.parametrize("band", [0, 1, 2])
def test_an_idle_engine_without_a_gauge_takes_anything_whatever_it_ran_before(tokens: int, band: int) -> None:
    scheduler = Scheduler(policy(BackendSpec("b", 4, kv_tokens=8192), bands=BANDS))
    for number, size in enumerate((tokens, tokens, 100)):
        actions = scheduler.submit(float(number), Ticket(str(number), "m", band, "t", WorkEstimate(size, 0)))
        (lease,) = leases(actions).values()
        scheduler.release(number + 0.5, lease, Release())


def test_one_that_is_larger_than_the_cache_is_not_remembered_as_larger() -> None:
    ledger = Sensor(BackendSpec("b", 4, kv_tokens=1000), BANDS)
    ledger.dispatched(100_000)
    for _ in range(100):
        ledger.dispatched(10)
    assert ledger.free(0.0, 10) == pytest.approx(1.0 - 0.01 - 0.99**100)


@pytest.mark.parametrize("floor", [Fraction(0), Fraction(1, 2)])
def test_who_goes_before_it_claims_by_an_age_and_takes_a_floor_of_its_own(floor: Fraction) -> None:
    bands = (*BANDS[:2], replace(BANDS[2], floor=floor, aging_per_ms=1.0))
    pools = (PoolSpec("m", (BackendSpec("b", 2, stale_after_s=1000.0),)),)
    scheduler = Scheduler(Policy(bands=bands, pools=pools, overtake_cap=floor or Fraction(1)))
    running = [
        *leases(scheduler.submit(0.0, Ticket("runs", "m", 2, "t", WorkEstimate(10)))).values(),
        *leases(scheduler.submit(0.0, Ticket("runs too", "m", 2, "t", WorkEstimate(10)))).values(),
    ]
    read(scheduler, 1.0, 0.3)
    started(scheduler, 1.1, "long", 2, 3500, tenant="a")
    started(scheduler, 1.2, "short", 2, 100, tenant="b")
    for name in ("first", "second"):
        started(scheduler, 1.3, name, 1, 100)
    actions = [action for lease in running for action in scheduler.release(9.0, lease, Release())]
    kinds = {each.ticket.id: each.lease.kind for each in actions if isinstance(each, Dispatch)}
    assert kinds["short"] is (Turn.FLOOR if floor else Turn.OVERTAKE)
    assert "long" not in kinds


def test_an_engine_without_a_gauge_is_not_filled_beyond_its_cache() -> None:
    """Four tenths of it are no room for more than that: it fails all that runs when it is full."""
    scheduler = Scheduler(policy(BackendSpec("b", 4, kv_tokens=8192), bands=BANDS))
    (lease,) = leases(scheduler.submit(0.0, Ticket("runs", "m", 1, "t", WorkEstimate(2000)))).values()
    assert started(scheduler, 1.0, "long", 1, 7000) == []
    (dispatch,) = [each for each in scheduler.release(2.0, lease, Release()) if isinstance(each, Dispatch)]
    assert dispatch.ticket.id == "long"


def test_the_oldest_claims_nothing_by_its_age_while_there_is_no_room_for_it() -> None:
    bands = (*BANDS[:2], replace(BANDS[2], aging_per_ms=1.0))
    pools = (PoolSpec("m", (BackendSpec("b", 2, stale_after_s=1000.0),)),)
    scheduler = Scheduler(Policy(bands=bands, pools=pools, overtake_cap=Fraction(1)))
    running = [
        *leases(scheduler.submit(0.0, Ticket("runs", "m", 2, "a", WorkEstimate(900)))).values(),
        *leases(scheduler.submit(0.0, Ticket("runs too", "m", 2, "a", WorkEstimate(900)))).values(),
    ]
    read(scheduler, 1.0, 0.3)
    started(scheduler, 1.1, "long", 2, 3500, tenant="a")
    started(scheduler, 1.2, "short", 2, 100, tenant="b")  # whose turn it is: the other has had two
    started(scheduler, 1.3, "first", 1, 100)
    (dispatch,) = [each for each in scheduler.release(9.0, running[0], Release()) if isinstance(each, Dispatch)]
    assert (dispatch.ticket.id, dispatch.lease.kind) == ("short", Turn.OVERTAKE)


def test_who_would_wait_for_room_longer_than_its_ttl_is_refused_in_time_and_told_why() -> None:
    bands = (*BANDS[:2], replace(BANDS[2], ttl_s=15.0))
    scheduler = Scheduler(policy(BackendSpec("b", 64, stale_after_s=1000.0), bands=bands))
    started(scheduler, 0.0, "runs", 2, 10)
    read(scheduler, 1.0, 0.3)
    started(scheduler, 2.0, "long", 2, 3500, tenant="a")
    started(scheduler, 2.0, "behind it", 2, 100, tenant="a")
    assert not scheduler.tick(16.9)
    evicted = [each for each in scheduler.tick(17.0) if isinstance(each, Evict)]
    assert [(each.ticket.id, each.reason, each.detail) for each in evicted] == [
        ("long", Reason.EXPIRED, NO_ROOM.detail),
        ("behind it", Reason.EXPIRED, ""),
    ]


def test_when_it_expires_what_comes_up_behind_it_starts() -> None:
    bands = (*BANDS[:2], replace(BANDS[2], ttl_s=15.0))
    scheduler = Scheduler(policy(BackendSpec("b", 64, stale_after_s=1000.0), bands=bands))
    started(scheduler, 0.0, "runs", 2, 10)
    read(scheduler, 1.0, 0.3)
    started(scheduler, 2.0, "long", 2, 3500)
    started(scheduler, 3.0, "behind it", 2, 100)
    evicted, dispatch = scheduler.tick(17.0)
    assert isinstance(evicted, Evict)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.ticket.id == "behind it"


def test_when_it_leaves_what_comes_up_behind_it_starts(scheduler: Scheduler) -> None:
    started(scheduler, 1.1, "long", 2, 9000)
    assert started(scheduler, 1.2, "short", 2, 100) == []
    scheduler.cancel(1.3, "long")
    assert scheduler.next_wakeup() == 1.3
    (short,) = scheduler.tick(1.3)
    assert isinstance(short, Dispatch)


def test_its_band_says_that_it_waits_for_room_and_no_other_does(scheduler: Scheduler) -> None:
    started(scheduler, 1.1, "long", 2, 3500, tenant="a")
    assert [row.gate for row in scheduler.snapshot(1.2).bands] == [None, None, NO_ROOM]
    assert started(scheduler, 1.3, "short", 2, 100, tenant="b") == ["short"]
    scheduler.cancel(1.4, "long")
    assert [row.gate for row in scheduler.snapshot(1.5).bands] == [None, None, None]


def test_looking_at_it_changes_no_patience(scheduler: Scheduler) -> None:
    started(scheduler, 1.1, "long", 2, 3500)
    for at in (1.2, 20.0, 31.0):
        assert scheduler.snapshot(at).bands[2].gate is NO_ROOM
    (first,) = scheduler.tick(1.1 + PATIENCE_S)
    assert isinstance(first, Dispatch)


def test_of_several_backends_one_that_has_room_takes_it() -> None:
    two = BackendSpec("b", 64, stale_after_s=1000.0), BackendSpec("c", 64, stale_after_s=1000.0)
    scheduler = Scheduler(policy(*two, bands=BANDS))
    for number in range(4):
        assert started(scheduler, 0.0, f"runs{number}", 2, 10)
    for name, free in (("b", 0.3), ("c", 0.9)):
        scheduler.observe(1.0, replace(page(1.0, free), backend=name))
    for band, affinity in ((2, 0), (1, 0), (0, 0), *((0, number) for number in range(1, 9))):
        ticket = Ticket(f"{band}/{affinity}", "m", band, "t", WorkEstimate(3500), affinity=affinity)
        (action,) = scheduler.submit(1.2, ticket)
        assert isinstance(action, Dispatch)
        assert action.lease.backend == "c"
        scheduler.release(1.3, action.lease.id, Release())


def test_where_none_has_room_the_one_with_least_to_do_takes_it() -> None:
    two = BackendSpec("b", 64, stale_after_s=1000.0), BackendSpec("c", 64, stale_after_s=1000.0)
    scheduler = Scheduler(policy(*two, bands=BANDS))
    assert started(scheduler, 0.0, "runs", 2, 10)
    for name in ("b", "c"):
        scheduler.observe(1.0, replace(page(1.0, 0.3), backend=name))
    assert started(scheduler, 1.1, "long", 0, 3500) == ["long"]
    assert dict(scheduler.bids(1.1, "m").used) == {"b": 1, "c": 1}
