"""What mode ``observe`` let through is said in the log: how much of it for which reason, when it changes."""

from __future__ import annotations

from dataclasses import replace

from structlog.testing import capture_logs

from runtime.stories import Noting, stage, ticket
from tidegate.core import BackendSpec, Policy, PoolSpec, Scheduler
from tidegate.core.policy import P0, P1
from tidegate.runtime import Driver, ObservedLog
from tidegate.testing import run_virtual

SMALL = Policy(
    pools=(PoolSpec("m", (BackendSpec("b", 1),)),),
    bands=(P0, replace(P1, capacity=2)),
    observe_only=True,
)


def crowd(driver: Driver, count: int, waiter: Noting | None = None) -> None:
    for _ in range(count):
        driver.submit(ticket(1), waiter or Noting())


def test_each_second_with_news_has_one_line() -> None:
    async def story() -> None:
        driver, _ = stage(Scheduler(SMALL), policy=SMALL)
        observed = ObservedLog(driver)
        with capture_logs() as lines:
            observed.look()
            assert lines == []  # nothing yet
            crowd(driver, 5)  # one runs, two may wait
            observed.look()
            observed.look()
            assert lines == [{"event": "observe.would", "log_level": "info", "queue_full": 2, "total": 2}]
            crowd(driver, 3)
            observed.look()
            assert lines[1:] == [{"event": "observe.would", "log_level": "info", "queue_full": 3, "total": 5}]

    run_virtual(story())


def test_what_was_observed_last_is_said_after_the_mode_ends() -> None:
    async def story() -> None:
        driver, _ = stage(Scheduler(SMALL), policy=SMALL)
        observed = ObservedLog(driver)
        waiter = Noting()
        crowd(driver, 4, waiter)
        driver.set_policy(replace(SMALL, observe_only=False))
        with capture_logs() as lines:
            crowd(driver, 1, waiter)
            observed.look()
        assert [line["queue_full"] for line in lines] == [1]
        assert len(waiter.refusals) == 1  # really refused, so not in that line

    run_virtual(story())
