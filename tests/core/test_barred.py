"""A dispatch says which bands waited and could not have had its seat."""

from __future__ import annotations

import pytest

from core.capacity_stage import changed, policy
from tidegate.core import (
    Action,
    BackendSpec,
    Dispatch,
    Policy,
    Reading,
    Release,
    Scheduler,
    TenantSpec,
    Ticket,
    WorkEstimate,
)


def ticket(ident: str, band: int, tenant: str = "a") -> Ticket:
    return Ticket(ident, "m", band, tenant, WorkEstimate(100))


def barred(actions: list[Action]) -> dict[str, tuple[int, ...]]:
    return {each.ticket.id: each.barred for each in actions if isinstance(each, Dispatch)}


@pytest.mark.parametrize("rule", [policy(), policy(bands=changed(0, reserve=1))])
def test_who_waits_for_a_seat_alone_is_not_barred(rule: Policy) -> None:
    scheduler = Scheduler(rule)
    first = [scheduler.submit(0.0, ticket(f"f{n}", 0)) for n in range(4)]
    scheduler.submit(0.0, ticket("low", 2))
    scheduler.submit(0.0, ticket("high", 0))
    lease = next(each.lease.id for each in first[0] if isinstance(each, Dispatch))
    assert barred(scheduler.release(1.0, lease, Release())) == {"high": ()}


def test_a_band_behind_a_watermark_is_barred() -> None:
    bands = changed(2, kv_watermark=0.2, kv_resume=0.3)
    scheduler = Scheduler(policy(BackendSpec("b", 4), bands=bands))
    scheduler.observe(0.0, Reading("b", 0.0, kv_free=0.1, running=0, waiting=0, kv_tokens=100_000, generated=1))
    assert barred(scheduler.submit(0.0, ticket("low", 2))) == {}
    assert barred(scheduler.submit(0.0, ticket("high", 0))) == {"high": (2,)}


@pytest.mark.parametrize("reserve", [0, 1])
def test_a_band_whose_tenants_may_run_no_more_is_barred(reserve: int) -> None:
    rule = policy(tenants=(TenantSpec("a", max_running=1),), bands=changed(0, reserve=reserve))
    scheduler = Scheduler(rule)
    assert barred(scheduler.submit(0.0, ticket("a1", 1))) == {"a1": ()}
    assert barred(scheduler.submit(0.0, ticket("a2", 1))) == {}
    assert barred(scheduler.submit(0.0, ticket("b1", 0, "b"))) == {"b1": (1,)}
