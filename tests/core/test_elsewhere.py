"""Requests that depend on work outside the scheduler: a batch goes on elsewhere, and somebody says how it ended."""

from __future__ import annotations

import pytest

from tidegate.core import (
    Action,
    BackendSpec,
    Band,
    Elsewhere,
    Evict,
    Outcome,
    Policy,
    PoolSpec,
    Progress,
    Reason,
    Reject,
    Release,
    Scheduler,
    Ticket,
    WhyKind,
)

BANDS = (Band("p0", 100, 0.05), Band("p1", 20, 0.02))
JOB = "a/job"


def scheduler_of(seats: int = 1) -> Scheduler:
    return Scheduler(Policy(BANDS, pools=(PoolSpec("m", (BackendSpec("b", seats),)),)))


def waiting(ticket_id: str, *names: str, band: int = 1, deadline: float | None = None, name: str = "") -> Ticket:
    return Ticket(ticket_id, "m", band, "a", depends_on=names, deadline=deadline, name=name)


def said(actions: list[Action]) -> list[tuple[str, Reason, str]]:
    return [(each.ticket.id, each.reason, each.detail) for each in actions if isinstance(each, (Evict, Reject))]


def test_work_elsewhere_is_waited_for_longer_than_a_name_that_nobody_knows() -> None:
    scheduler = scheduler_of()
    scheduler.observe(0.0, Elsewhere(JOB, going=True))
    assert scheduler.submit(0.0, waiting("x", "job")) == []
    assert scheduler.tick(599.0) == []
    assert said(scheduler.tick(601.0)) == [("x", Reason.EXPIRED, "its dependencies were not done in time")]


def test_its_end_lets_those_run_that_waited() -> None:
    scheduler = scheduler_of(seats=2)
    scheduler.observe(0.0, Elsewhere(JOB, going=True))
    for ticket_id in ("x", "y"):
        scheduler.submit(0.0, waiting(ticket_id, "job"))
    actions = scheduler.observe(9.0, Elsewhere(JOB, going=False, outcome=Outcome.COMPLETED))
    assert [action.ticket.id for action in actions] == ["x", "y"]
    assert scheduler.status(9.0, JOB).outcome is Outcome.COMPLETED


def test_one_that_comes_after_the_end_does_not_wait() -> None:
    scheduler = scheduler_of()
    scheduler.observe(0.0, Elsewhere(JOB, going=False, outcome=Outcome.COMPLETED))
    scheduler.observe(1.0, Elsewhere(JOB, going=True))  # said by somebody who does not know better
    assert [action.ticket.id for action in scheduler.submit(1.0, waiting("x", "job"))] == ["x"]
    assert not scheduler._state.names.elsewhere


@pytest.mark.parametrize(
    ("outcome", "words"), [(Outcome.CANCELLED, "a/job ended as cancelled"), (None, "a/job is not known")]
)
def test_an_end_without_success_fails_those_who_wait(outcome: Outcome | None, words: str) -> None:
    scheduler = scheduler_of()
    scheduler.observe(0.0, Elsewhere(JOB, going=True))
    scheduler.submit(0.0, waiting("x", "job"))
    assert said(scheduler.observe(1.0, Elsewhere(JOB, going=False, outcome=outcome))) == [
        ("x", Reason.DEPENDENCY_FAILED, words)
    ]


def test_a_name_that_nobody_knows_is_named_beside_work_elsewhere() -> None:
    scheduler = scheduler_of()
    scheduler.observe(0.0, Elsewhere(JOB, going=True))
    scheduler.submit(0.0, waiting("x", "job", "ghost"))
    assert said(scheduler.tick(2.0)) == [("x", Reason.DEPENDENCY_FAILED, "nobody sent a/ghost")]


def test_all_that_is_waited_for_has_to_end() -> None:
    scheduler = scheduler_of(seats=2)
    scheduler.observe(0.0, Elsewhere(JOB, going=True))
    scheduler.submit(0.0, Ticket("r", "m", 1, "a", name="r"))
    scheduler.submit(0.0, waiting("x", "job", "r"))
    assert scheduler.observe(1.0, Elsewhere(JOB, going=False, outcome=Outcome.COMPLETED)) == []
    assert [action.ticket.id for action in scheduler.release(2.0, 1, Release())] == ["x"]


def test_what_one_lends_to_work_elsewhere_is_what_it_is_lent() -> None:
    """A p0 waits for a p1 that waits for a batch: the batch is to run as p0 does, until the p0 leaves."""
    scheduler = scheduler_of()
    scheduler.observe(0.0, Elsewhere(JOB, going=True))
    scheduler.submit(0.0, waiting("mid", "job", name="mid"))
    assert scheduler.why(0.0, "mid").kind is WhyKind.DEPENDENCY
    assert scheduler.why(0.0, "mid").lends == 1
    scheduler.submit(0.0, waiting("top", "mid", band=0))
    assert scheduler.why(0.0, "mid").lends == 0
    scheduler.cancel(0.0, "top")
    assert scheduler.why(0.0, "mid").lends == 1


def test_a_successor_of_the_same_name_outlives_the_one_that_ended() -> None:
    """More wait than one call may tell; one that was not told yet leaves after the name has come up again."""
    scheduler = scheduler_of()
    names = scheduler._state.names
    scheduler.observe(0.0, Elsewhere(JOB, going=True))
    for number in range(300):
        scheduler.submit(0.0, waiting(str(number), "job"))
    assert len(scheduler.observe(1.0, Elsewhere(JOB, going=False))) == 256
    scheduler.observe(1.0, Elsewhere(JOB, going=True))
    scheduler.cancel(1.0, "299")
    scheduler.submit(1.0, waiting("new", "job"))
    scheduler.tick(1.0)
    assert scheduler.status(1.0, JOB).progress is Progress.UNKNOWN  # it is no request
    assert len(scheduler.observe(2.0, Elsewhere(JOB, going=False, outcome=Outcome.COMPLETED))) == 1
    assert (names.parked, names._unknown, names.elsewhere) == ({}, {}, set())


def test_leaving_beside_a_successor_does_not_take_its_name() -> None:
    scheduler = scheduler_of()
    names = scheduler._state.names
    scheduler.observe(0.0, Elsewhere(JOB, going=True))
    scheduler.submit(0.0, waiting("old", "job", "other"))
    work = next(iter(names.parked.values())).works
    names.end_elsewhere(JOB, None, 0.0)  # ended, and nobody told yet
    scheduler._state.names.ended.clear()
    scheduler._state.names.elsewhere.add(JOB)
    successor = names.work_named(JOB)
    scheduler.cancel(0.0, "old")
    assert not work
    assert names.awaited(JOB) is successor
