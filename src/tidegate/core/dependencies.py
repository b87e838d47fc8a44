"""Tickets that wait for other requests (SPEC §4.6, §15.6, §15.7, §15.16).

A ticket with unmet dependencies is parked outside the queue: it counts in capacity and its tenant's ``max_queued``; its
TTL starts when it becomes runnable, its client's deadline and ``depends_timeout`` hold meanwhile. A name that nobody
has sent may still appear within ``dependency_grace``. What follows from an ended request is done in portions, so that
a thousand dependents never stall one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.core.actions import Action, Reject
from tidegate.core.lending import Wait, Work, relend, settle_work, withdraw
from tidegate.core.model import Outcome, Reason, Ticket
from tidegate.core.names import Names, Progress, Status, full_name
from tidegate.core.ordering import RUNNING, WAITING, Entry
from tidegate.core.signals import Elsewhere, Waiter

if TYPE_CHECKING:
    from tidegate.core.state import State


def unmet(state: State, ticket: Ticket) -> list[str] | Reject:
    """Return the full names that a newcomer has to wait for, or its refusal."""
    own = full_name(ticket, ticket.name) if ticket.name else None
    names = [full_name(ticket, name) for name in dict.fromkeys(ticket.depends_on)]
    may_cross = state.tenants.may_lend(ticket.tenant)
    pending = []
    for name in names:
        if name == own:
            return Reject(ticket, Reason.DEPENDENCY_CYCLE, None, f"{name} depends on itself")
        if not may_cross and not name.startswith(f"{ticket.tenant}/"):
            return Reject(ticket, Reason.DEPENDENCY_FAILED, None, f"{name} belongs to another tenant")
        outcome = state.names.outcome(name, state.now)
        if outcome is None:
            pending.append(name)
        elif outcome is not Outcome.COMPLETED:
            return Reject(ticket, Reason.DEPENDENCY_FAILED, None, f"{name} ended as {outcome}")
    if own is not None and _closes_cycle(state, own, pending):
        return Reject(ticket, Reason.DEPENDENCY_CYCLE, None, f"what {own} depends on waits for {own}")
    return pending


def _closes_cycle(state: State, own: str, pending: list[str]) -> bool:
    """Say whether something that ``own`` would wait for waits for ``own``, which nobody has sent yet."""
    target = state.names.awaited(own)
    if target is None:
        return False
    todo = [entry for name in pending if (entry := state.names.live(name)) is not None]
    seen: set[Entry] = set()
    while todo:
        entry = todo.pop()
        wait = state.names.parked.get(entry)
        if wait is None or entry in seen:
            continue
        seen.add(entry)
        if target in wait.works:
            return True
        todo.extend(work.entry for work in wait.works if work.entry is not None)
    return False


def bind(state: State, entry: Entry, pending: list[str], actions: list[Action]) -> None:
    """Let a parked ticket wait for its dependencies, and lend to them."""
    wait = state.names.parked[entry]
    for name in pending:
        _await(state.names.work_named(name), wait)
    relend(state, wait, actions)


def _await(work: Work, wait: Wait) -> None:
    work.waits[wait] = None
    wait.works[work] = None


def patience(state: State, ticket: Ticket, since: float, *, unknown: bool) -> float:
    """Return until when a ticket may stay parked."""
    limit_s = state.policy.dependency_grace_s if unknown else state.policy.depends_timeout_s
    until = since + limit_s
    return until if ticket.deadline is None else min(until, ticket.deadline)


def overdue(state: State, entry: Entry) -> tuple[Reason, str] | None:
    """Say why a parked ticket whose time is up must go; ``None`` when it was given more time."""
    deadline = entry.ticket.deadline
    if deadline is not None and deadline <= state.now:
        return Reason.EXPIRED, "the deadline passed while its dependencies were not done"
    unknown = unsent(state, entry)
    if unknown is not None:
        return unknown
    until = patience(state, entry.ticket, entry.submitted, unknown=False)
    if until > state.now:
        state.waiting.set_expiry(entry, until)
        return None
    return Reason.EXPIRED, "its dependencies were not done in time"


def unsent(state: State, entry: Entry) -> tuple[Reason, str] | None:
    """Say why a parked ticket must go if nobody has sent what it waits for; ``None`` when all is there."""
    works, known = state.names.parked[entry].works, state.names.elsewhere
    unknown = next((work.name for work in works if work.entry is None and work.name not in known), None)
    return None if unknown is None else (Reason.DEPENDENCY_FAILED, f"nobody sent {unknown}")


def appeared(state: State, entry: Entry, work: Work, actions: list[Action]) -> None:
    """Have those lend to an accepted ticket who waited for it to appear: ``work`` is theirs."""
    settle_work(state, work, actions)
    state.may_shut_out(entry)  # it was let in for who waits for it, and what is lent may not be enough


def call(state: State, signal: Waiter, actions: list[Action]) -> None:
    """Note that a caller outside waits, or waits no longer."""
    old = state.names.callers.pop(signal.waiter, None)
    if old is not None:
        withdraw(state, old, actions)
    may = state.tenants.may_lend(signal.tenant) or signal.name.startswith(f"{signal.tenant}/")
    if not signal.waiting or not may or state.names.live(signal.name) is None:
        return
    wait = state.names.callers[signal.waiter] = Wait(signal.tenant, signal.band, None)
    _await(state.names.work_named(signal.name), wait)
    relend(state, wait, actions)


def note_elsewhere(state: State, signal: Elsewhere) -> None:
    """Note that work outside the scheduler goes on, or how it ended."""
    if not signal.going:
        state.names.end_elsewhere(signal.name, signal.outcome, state.now)
    elif state.names.outcome(signal.name, state.now) is None:
        state.names.elsewhere.add(signal.name)


def resolve(state: State, actions: list[Action], most: int) -> None:
    """Tell up to ``most`` waiters that what they waited for has ended."""
    for work, wait, outcome in _told(state.names, most):
        wait.works.pop(work, None)
        entry = wait.entry
        if entry is None or entry.state != WAITING:
            continue
        if outcome is not Outcome.COMPLETED:
            end = "is not known" if outcome is None else f"ended as {outcome}"
            state.evict(entry, Reason.DEPENDENCY_FAILED, actions, f"{work.name} {end}")
        elif wait.works:
            relend(state, wait, actions)
        else:
            _make_runnable(state, entry, actions)


def _told(names: Names, most: int) -> Iterator[tuple[Work, Wait, Outcome | None]]:
    for _ in range(most):
        if not names.ended:
            return
        work, waits, outcome = names.ended[0]
        wait = waits.popleft()
        if not waits:
            names.ended.popleft()
        yield work, wait, outcome


def _make_runnable(state: State, entry: Entry, actions: list[Action]) -> None:
    """Move a parked ticket into its queue; its TTL starts now."""
    del state.names.parked[entry]
    queue, ticket = entry.queue, entry.ticket
    state.waiting.leave(entry)
    entry.early = False
    state.entries += 1
    entry.seq = state.entries  # among equal arrivals it comes after those that wait already
    entry.expires = state.expiry(queue, ticket)
    state.waiting.enter(entry, queue.band)
    queue.add(entry, state.flow_for(queue, ticket, entry.tenant), state.now)
    if queue.urgency is not None:
        state.pools[queue.pool].press.expect(state, entry, queue.urgency)
    work = state.names.work_of(entry)
    if work is not None:
        settle_work(state, work, actions)
    state.names.moved = True
    state.may_shut_out(entry)


def status(state: State, name: str, now: float) -> Status:
    """Return what is known of a full name."""
    entry = state.names.live(name)
    if entry is not None:
        progress = Progress.RUNNING if entry.state == RUNNING else Progress.WAITING
        return Status(Progress.PARKED if entry in state.names.parked else progress, entry.ticket.id)
    outcome = state.names.outcome(name, now)
    return Status(Progress.UNKNOWN) if outcome is None else Status(Progress.DONE, None, outcome)
