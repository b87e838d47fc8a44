"""The size rule where seats are shared: no bid for what has no room, no start of it on a grant, and not for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.capacity_stage import homes, leases, policy
from core.test_bids import shared
from core.test_large_requests import BANDS, page
from tidegate.core import (
    BackendSpec,
    Bid,
    Dispatch,
    Granted,
    Reason,
    Reject,
    Requeue,
    Saturated,
    Scheduler,
    Ticket,
    Turn,
    WorkEstimate,
)
from tidegate.core.gates import NO_ROOM
from tidegate.core.room import PATIENCE_S

WIDE = BackendSpec("b", 64, stale_after_s=1000.0)


def work(id_: str, tokens: int, tenant: str = "t", band: int = 2, **more: object) -> Ticket:
    return Ticket(id_, "m", band, tenant, WorkEstimate(tokens), **more)  # type: ignore[arg-type]


def bid(scheduler: Scheduler, now: float, band: int = 2) -> Bid | None:
    return next((bid for bid in scheduler.bids(now, "m").bids if bid.band == band), None)


def sizes(found: Bid | None) -> list[int]:
    return [] if found is None else [head.cost for head in found.heads]


@pytest.fixture
def scheduler() -> Scheduler:
    """Three tenths of a cache of 10,000 tokens are free."""
    made = shared(policy(WIDE, bands=BANDS))
    made.submit(0.0, work("runs", 10))
    made.observe(0.0, Granted("m", 2, "b"))
    made.observe(1.0, page(1.0, 0.3))
    return made


def test_what_has_no_room_is_not_bid_and_not_started_on_a_grant(scheduler: Scheduler) -> None:
    scheduler.submit(1.1, work("long", 3500))
    assert bid(scheduler, 1.2) is None
    assert scheduler.bids(1.2, "m").waiting[2] == 1
    assert scheduler.observe(1.3, Granted("m", 2, "b")) == []
    scheduler.observe(2.0, page(2.0, 0.36))
    assert sizes(bid(scheduler, 2.0)) == [3500]
    assert homes(scheduler.observe(2.1, Granted("m", 2, "b"))) == {"long": "b"}


def test_it_holds_up_its_own_flow_only_and_the_bid_has_the_age_of_who_goes_before_it(scheduler: Scheduler) -> None:
    scheduler.submit(1.1, work("long", 3500, "a"))
    scheduler.submit(1.2, work("behind it", 100, "a"))
    scheduler.submit(1.3, work("short", 100, "b"))
    found = bid(scheduler, 1.4)
    assert found is not None
    assert (found.count, sizes(found), found.oldest.arrived) == (1, [100], 1.3)
    for kind in (Turn.OVERTAKE, Turn.FLOOR):
        scheduler.submit(1.5, work(f"more {kind}", 100, "b"))
        (dispatch,) = scheduler.observe(1.5, Granted("m", 2, "b", kind))
        assert isinstance(dispatch, Dispatch)
        assert dispatch.ticket.tenant == "b"
    row = scheduler.snapshot(1.6).bands[2]
    assert (row.overtakes, row.floors) == (1, 1)


def test_the_oldest_of_a_bid_has_room_too(scheduler: Scheduler) -> None:
    scheduler.submit(1.1, work("long", 3500))
    scheduler.submit(1.2, work("whose turn it is", 100, "new"))
    found = bid(scheduler, 1.3)
    assert found is not None
    assert (found.oldest.arrived, sizes(found)) == (1.2, [100])


def test_heads_are_as_many_as_have_room_beside_each_other(scheduler: Scheduler) -> None:
    for number in range(12):
        scheduler.submit(1.1, work(str(number), 1100, f"t{number}"))
    found = bid(scheduler, 1.2)
    assert found is not None
    assert (found.count, sizes(found)) == (2, [1100] * 2)
    scheduler.observe(2.0, page(2.0, 0.39))
    assert sizes(bid(scheduler, 2.0)) == [1100] * 3


def test_with_room_for_all_the_count_is_that_of_all(scheduler: Scheduler) -> None:
    for number in range(12):
        scheduler.submit(1.1, work(str(number), 10, f"t{number}"))
    found = bid(scheduler, 1.2)
    assert found is not None
    assert (found.count, len(found.heads)) == (12, 8)


def test_patience_has_an_end_where_seats_are_shared_too(scheduler: Scheduler) -> None:
    scheduler.submit(1.1, work("long", 3500))
    scheduler.submit(1.1, work("next", 3500))
    assert bid(scheduler, 1.1) is None
    assert bid(scheduler, 1.0 + PATIENCE_S) is None
    found = bid(scheduler, 1.1 + PATIENCE_S)
    assert found is not None
    assert (found.count, sizes(found), found.backends) == (1, [3500], ("b",))
    assert homes(scheduler.observe(1.2 + PATIENCE_S, Granted("m", 2, "b"))) == {"long": "b"}
    scheduler.observe(1.25 + PATIENCE_S, page(1.25 + PATIENCE_S, 0.3))
    assert bid(scheduler, 1.3 + PATIENCE_S) is None, "the next one has a patience of its own"


def test_a_bid_names_the_backends_that_have_room_for_its_first_and_a_grant_elsewhere_is_not_used() -> None:
    both = shared(policy(WIDE, replace(WIDE, name="c"), bands=BANDS))
    both.observe(1.0, page(1.0, 0.3))
    both.observe(1.0, replace(page(1.0, 0.36), backend="c"))
    both.submit(1.1, work("long", 3500))
    found = bid(both, 1.2)
    assert found is not None
    assert found.backends == ("c",)
    assert both.observe(1.3, Granted("m", 2, "b")) == []
    assert homes(both.observe(1.3, Granted("m", 2, "c"))) == {"long": "c"}


def test_what_comes_back_from_a_backend_needs_no_room_and_what_waits_behind_it_does() -> None:
    both = shared(policy(WIDE, replace(WIDE, name="c"), bands=BANDS))
    for name in "bc":
        both.observe(0.5, replace(page(0.5, 0.9), backend=name))
    both.submit(1.0, work("again", 4000))
    (lease,) = leases(both.observe(1.0, Granted("m", 2, "b"))).values()
    for name in "bc":
        both.observe(1.1, replace(page(1.1, 0.3), backend=name))
    assert both.release(1.2, lease, Requeue(avoid=True)) == []
    both.submit(1.3, work("long", 3500, "a"))
    found = bid(both, 1.4)
    assert found is not None
    assert (found.count, sizes(found), found.backends) == (1, [4000], ("c",))
    both.submit(1.5, work("short", 100, "z"))
    assert sizes(bid(both, 1.6)) == [4000, 100]
    assert homes(both.observe(1.7, Granted("m", 2, "c"))) == {"again": "c"}
    assert homes(both.observe(1.7, Granted("m", 2, "b"))) == {"short": "b"}
    assert both.observe(1.7, Granted("m", 2, "b")) == []


def test_the_highest_band_bids_whatever_its_size_and_one_without_gates_too(scheduler: Scheduler) -> None:
    scheduler.submit(1.1, work("long", 9000, band=0))
    assert sizes(bid(scheduler, 1.2, 0)) == [9000]
    assert homes(scheduler.observe(1.3, Granted("m", 0, "b"))) == {"long": "b"}


def test_while_it_waits_for_room_its_row_and_its_ticket_say_so(scheduler: Scheduler) -> None:
    scheduler.submit(1.1, work("long", 3500))
    scheduler.bids(1.1, "m")
    assert [row.gate is NO_ROOM for row in scheduler.snapshot(1.2).bands] == [False, False, True]
    assert scheduler.why(1.2, "long").gate is NO_ROOM
    scheduler.submit(1.3, work("short", 10, "b"))
    assert scheduler.snapshot(1.4).bands[2].gate is not NO_ROOM
    assert scheduler.why(1.4, "long").gate is NO_ROOM


def test_a_band_that_sheds_refuses_what_has_no_room_where_seats_are_shared_too() -> None:
    made = shared(policy(WIDE, bands=(*BANDS[:2], replace(BANDS[2], when_saturated=Saturated.SHED))))
    made.observe(1.0, page(1.0, 0.3))
    (refused,) = made.submit(1.1, work("long", 3500))
    assert isinstance(refused, Reject)
    assert (refused.reason, refused.detail) == (Reason.SHED, NO_ROOM.detail)
    assert made.submit(1.2, work("short", 100)) == []
