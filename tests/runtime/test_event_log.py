from __future__ import annotations

import asyncio
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from runtime.fifo import FifoScheduler
from runtime.stories import POLICY, Noting, stage, ticket
from tidegate.core import Dispatch, Drain, Elsewhere, Health, Outcome, Release, Scheduler, Seats, TidegateError, Waiter
from tidegate.runtime import EventLog, replay
from tidegate.runtime.event_log import MOST
from tidegate.testing import run_virtual


def test_events_reach_the_file_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def story() -> None:
        driver, _ = stage(Scheduler(POLICY), log=path)
        driver.submit(ticket(), Noting())
        assert path.read_bytes().count(b"\n") == 1
        await asyncio.sleep(0.15)
        assert path.read_bytes().count(b"\n") == 2
        for _ in range(600):
            driver.submit(ticket(), Noting())
        assert path.read_bytes().count(b"\n") >= 512
        driver.close()
        assert path.read_bytes().count(b"\n") == 602

    run_virtual(story())


def test_shares_of_the_policy_stay_exact(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path, replace(POLICY, overtake_cap=Fraction(1, 3))).close()
    assert b'"overtake_cap":"1/3"' in path.read_bytes()
    assert replay(path) == []


def test_every_kind_of_event_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def story() -> None:
        driver, _ = stage(Scheduler(POLICY), log=path)
        waiter = Noting()
        driver.submit(ticket(), waiter)
        driver.observe(Health("b", up=True))
        driver.observe(Seats("b", 0))
        driver.observe(Waiter("w", "tenant", 0, "tenant/x", waiting=True))
        driver.observe(Elsewhere("tenant/batch", going=True))
        driver.observe(Elsewhere("tenant/batch", going=False, outcome=Outcome.COMPLETED))
        driver.submit(ticket(name="leaves"), Noting())
        driver.cancel("leaves")
        driver.submit(ticket(), Noting())
        driver.set_policy(replace(POLICY, queue_capacity=10))
        driver.release(waiter.leases[0], Release())
        await asyncio.sleep(20)
        driver.observe(Drain())
        driver.close()

    run_virtual(story())
    actions = replay(path)
    assert [type(action).__name__ for _, action in actions] == ["Dispatch", "Evict"]
    assert actions[1][0] == pytest.approx(10.0)


def test_another_policy_can_be_tried_on_a_recorded_run(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def story() -> None:
        driver, _ = stage(Scheduler(POLICY), log=path)
        for _ in range(12):
            driver.submit(ticket(2), Noting())
        driver.close()

    run_virtual(story())
    small = replace(
        POLICY, pools=(replace(POLICY.pools[0], backends=(replace(POLICY.pools[0].backends[0], seats=2),)),)
    )
    assert [sum(isinstance(action, Dispatch) for _, action in replay(path, which)) for which in (None, small)] == [8, 2]


def test_a_fault_of_the_scheduler_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    async def story() -> None:
        scheduler = FifoScheduler()
        driver, _ = stage(scheduler, log=path)
        scheduler.fail_on = "submit"
        with capture_logs():
            driver.submit(ticket(name="the last"), Noting())
        assert b"the last" in path.read_bytes()
        driver.close()

    run_virtual(story())


def test_a_disk_that_takes_no_more_ends_the_file_and_no_request(tmp_path: Path) -> None:
    path, full = tmp_path / "events.jsonl", Path("/dev/full").open("wb")  # noqa: SIM115 - the event log closes it

    async def story() -> None:
        driver, _ = stage(Scheduler(POLICY), log=path)
        events = driver._event_log
        assert events is not None
        events._file.close()
        events._file = full
        with capture_logs() as logs:
            driver.submit(ticket(), Noting())
            await asyncio.sleep(0.5)
            for _ in range(MOST + 10):
                driver.observe(Health("b", up=True))
        assert [line["event"] for line in logs] == ["event_log.ended"]
        assert driver.running == 1
        driver.close()

    run_virtual(story())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("what?", "line 1"),
        ('[1.0, "dance", []]', "line 1.*dance"),
        ('[1.0, "tick", []]', "policy first"),
        ('[1.0, "submit", [{"id": 3}]]', "line 1"),
    ],
)
def test_a_file_that_is_no_event_log_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(TidegateError, match=message):
        replay(path)
