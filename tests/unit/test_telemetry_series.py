"""However many tenants call, the number of series stays what bands, models, backends and reasons make it."""

from __future__ import annotations

import pytest

from tidegate.core import (
    BackendSpec,
    Outcome,
    Policy,
    PoolSpec,
    Reason,
    Release,
    Scheduler,
    TenantSpec,
    Ticket,
)
from tidegate.runtime import Driver
from tidegate.telemetry import Recorder
from tidegate.testing import ManualClock

TENANTS = 10_000
POOLS = tuple(PoolSpec(f"m{n}", (BackendSpec(f"b{n}", 2), BackendSpec(f"c{n}", 2))) for n in range(4))


class Waiter:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def dispatched(self, lease: object) -> None:
        self.driver.release(lease, Release(Outcome.COMPLETED, 10, 20, 0.1, 0.01))  # type: ignore[arg-type]

    def refused(self, action: object) -> None: ...


@pytest.mark.slow
def test_ten_thousand_tenants_leave_the_exposition_small() -> None:
    import asyncio

    loop = asyncio.new_event_loop()
    try:
        policy = Policy(pools=POOLS, tenants=tuple(TenantSpec(f"t{n}", max_queued=5) for n in range(TENANTS)))
        recorder = Recorder(policy)
        driver = Driver(Scheduler(policy), ManualClock(), recorder, loop=loop)
        waiter = Waiter(driver)
        for number in range(TENANTS):
            tenant, pool = f"t{number}", f"m{number % 5}"
            driver.submit(Ticket(f"r{number}", pool, number % 3, tenant, name=f"n{number}"), waiter)
            recorder.refused(list(Reason)[number % len(Reason)], tenant=tenant)
        text = recorder.exposition().decode()
        series = [line for line in text.splitlines() if not line.startswith("#")]
        assert recorder.accounts["p0"].requests
        assert len(series) < 2000, len(series)
        assert "t9999" not in text
        assert len(recorder.usage.take()) == TENANTS
        driver.close()
    finally:
        loop.close()
