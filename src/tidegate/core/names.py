"""Who is called what: names of requests, live and lately ended (SPEC §4.6, §15.7).

A name belongs to a tenant: its full form is ``tenant/name``. A reused name means the latest request; those who wait
already go on waiting for the one they meant. Ended ones are remembered ten minutes, at most 100,000. A newcomer that
was refused leaves no name behind, so that its retry may take it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final

from tidegate.core.lending import Wait, Work
from tidegate.core.model import Outcome, Ticket
from tidegate.core.ordering import Entry

REMEMBERED_S: Final = 600.0
MOST_REMEMBERED = 100_000


class Progress(StrEnum):
    """How far a named request is."""

    UNKNOWN = "unknown"
    PARKED = "parked"  # waits for its dependencies
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(slots=True, frozen=True)
class Status:
    """What is known of a named request: its ticket while it lives, its outcome once it is done."""

    progress: Progress
    ticket_id: str | None = None
    outcome: Outcome | None = None


class Names:
    """Who is called what, and who waits for whom.

    Attributes:
        elsewhere: full names of work that goes on outside the scheduler.
        parked: tickets that wait for their dependencies.
        doubted: while the rules are only observed: when to see whether somebody has sent what a parked one waits for.
        ended: works that have ended, whose waiters are still to be told; without an outcome, there is no such work.
        moved: some work changed its band since seats were last dealt for that.
        restless: there is something to do for ``Scheduler._settle_names``.
        works: those that somebody waits for, by ticket id.
    """

    __slots__ = (
        "_done", "_live", "_order", "_unknown",
        "callers", "doubted", "elsewhere", "ended", "moved", "parked", "restless", "works",
    )  # fmt: skip

    def __init__(self) -> None:
        self._live: dict[str, Entry] = {}
        self._done: dict[str, tuple[float, Outcome]] = {}
        self._order: deque[tuple[float, str]] = deque()
        self.works: dict[str, Work] = {}
        self._unknown: dict[str, Work] = {}  # by full name; those that go on elsewhere, too
        self.elsewhere: set[str] = set()
        self.moved = self.restless = False
        self.callers: dict[str, Wait] = {}
        self.parked: dict[Entry, Wait] = {}
        self.doubted: list[tuple[float, int, Entry]] = []
        self.ended: deque[tuple[Work, deque[Wait], Outcome | None]] = deque()

    def doubt(self, entry: Entry) -> None:
        """Look at a parked ticket when it expires."""
        heappush(self.doubted, (entry.expires, entry.seq, entry))

    def next_doubt(self) -> float:
        """Return when to look at the next parked ticket, infinity for never."""
        doubted = self.doubted
        while doubted and doubted[0][2] not in self.parked:
            heappop(doubted)
        return doubted[0][0] if doubted else float("inf")

    def live(self, name: str) -> Entry | None:
        """Return the ticket that bears a full name now."""
        return self._live.get(name)

    def outcome(self, name: str, now: float) -> Outcome | None:
        """Return how the request of a full name ended, ``None`` when it has not or is forgotten."""
        self._forget(now)
        done = self._done.get(name)
        return done[1] if done else None

    def is_unknown(self, name: str, now: float) -> bool:
        """Say whether nobody has sent a request of this name lately, and nothing of this name goes on elsewhere."""
        return name not in self._live and name not in self.elsewhere and self.outcome(name, now) is None

    def awaited(self, name: str) -> Work | None:
        """Return the work that some wait for though nobody has sent it yet."""
        return self._unknown.get(name)

    def work_of(self, entry: Entry) -> Work | None:
        """Return the work of a ticket that somebody waits for."""
        return self.works.get(entry.ticket.id)

    def work_named(self, name: str) -> Work:
        """Find or make the work of a full name, sent or not."""
        entry = self._live.get(name)
        if entry is None:
            return self._unknown.setdefault(name, Work(name, None))
        return self.works.setdefault(entry.ticket.id, Work(name, entry))

    def begin(self, entry: Entry) -> Work | None:
        """Note that a ticket bears its name from now on; return the work when some waited for it to appear."""
        name = entry.called = full_name(entry.ticket, entry.ticket.name)
        self._live[name] = entry
        if name in self._done:
            del self._done[name]
        work = self._unknown.pop(name, None) if self._unknown else None
        if work is not None:
            work.entry = entry
            self.works[entry.ticket.id] = work
        return work

    def end(self, entry: Entry, outcome: Outcome, now: float) -> None:
        """Note how a ticket ended."""
        name = entry.called
        if self._live.get(name) is entry:
            del self._live[name]
            self._remember(name, outcome, now)
        if self.works:
            self._end(self.works.pop(entry.ticket.id, None), outcome)

    def end_elsewhere(self, name: str, outcome: Outcome | None, now: float) -> None:
        """Note how work outside the scheduler ended; ``None``: there is no such work."""
        self.elsewhere.discard(name)
        if outcome is not None:
            self._remember(name, outcome, now)
        self._end(self._unknown.pop(name, None), outcome)

    def _remember(self, name: str, outcome: Outcome, now: float) -> None:
        self._done[name] = (now, outcome)
        order = self._order
        order.append((now, name))
        if order[0][0] <= now - REMEMBERED_S or len(order) > MOST_REMEMBERED:
            self._forget(now)

    def _end(self, work: Work | None, outcome: Outcome | None) -> None:
        if work is not None and work.waits:
            self.ended.append((work, deque(work.waits), outcome))
            self.restless = True

    def replaced(self, entry: Entry, moved: Entry) -> None:
        """Note that a ticket has another entry now."""
        if self._live.get(entry.called) is entry:
            self._live[entry.called] = moved

    def drop_unawaited(self, work: Work) -> None:
        """Forget a work that nobody waits for any more."""
        if work.waits:
            return
        if work.entry is None:
            if self._unknown.get(work.name) is work:  # one that has ended elsewhere may have a successor
                del self._unknown[work.name]
        else:
            self.works.pop(work.entry.ticket.id, None)

    def _forget(self, now: float) -> None:
        order = self._order
        while order and (len(order) > MOST_REMEMBERED or order[0][0] <= now - REMEMBERED_S):
            ended_at, name = order.popleft()
            done = self._done.get(name)
            if done is not None and done[0] == ended_at:
                del self._done[name]


def full_name(ticket: Ticket, name: str) -> str:
    """Return ``tenant/name``; a bare name belongs to the ticket's tenant."""
    return name if "/" in name else f"{ticket.tenant}/{name}"
