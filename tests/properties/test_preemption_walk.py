"""Random traffic over full seats: every stop is one that a plain, slow rule allows, and the least costly of those."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest

from tidegate.core import (
    Action,
    BackendSpec,
    Band,
    Began,
    Declined,
    Dispatch,
    Evict,
    Lease,
    Policy,
    PoolSpec,
    Preempt,
    Reject,
    Release,
    Requeue,
    Scheduler,
    Stoppable,
    Ticket,
    Turn,
    Waiter,
    WorkEstimate,
)


@dataclass(slots=True)
class Book:
    """What a plain observer knows of one lease."""

    lease: Lease
    began: float | None = None
    declined: bool = False


@dataclass(slots=True)
class Books:
    """Walks everything at every step."""

    policy: Policy
    now: float = 0.0
    running: dict[int, Book] = field(default_factory=dict)
    waiting: dict[str, tuple[Ticket, float]] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    stops: dict[str, int] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    dispatches: int = 0
    spent: int = 0
    seen: int = 0

    def allowed(self, book: Book, by: int) -> bool:
        ticket, lease = book.lease.ticket, book.lease
        return (
            ticket.band > by
            and self.policy.bands[ticket.band].preemptible
            and (lease.kind, lease.band) == (Turn.TURN, ticket.band)
            and self.stops.get(ticket.id, 0) < self.policy.max_preemptions
            and ticket.stoppable is not Stoppable.NEVER
            and (book.began is None or ticket.stoppable is Stoppable.ALWAYS)
            and not book.declined
            and f"{ticket.tenant}/{ticket.name}" not in self.awaited
            and lease.id not in self.asked
        )

    def cost(self, book: Book) -> tuple[int, bool, float]:
        """Lowest band first, then not begun, then the latest begun (all prompts here are as long)."""
        return -book.lease.ticket.band, book.began is not None, -(book.began or 0.0)

    def preempted(self, action: Preempt) -> None:
        book = self.running[action.lease.id]
        assert self.allowed(book, action.by), "one that may not be stopped"
        others = [other for other in self.running.values() if self.allowed(other, action.by)]
        assert self.cost(book) == min(map(self.cost, others)), "another would have cost less"
        band = self.policy.bands[action.by]
        assert band.may_preempt
        pressing = [
            ticket
            for ticket, since in self.waiting.values()
            if self.policy.bands[ticket.band].may_preempt
            and self.now >= since + self.policy.bands[ticket.band].target_wait_s / 2 - 1e-9
        ]
        assert len(self.asked) < len(pressing), "more stops on their way than there are who wait long enough"
        assert any(ticket.band == action.by for ticket in pressing)
        self.asked[action.lease.id] = action.by
        self.spent += 1
        self.seen += 1
        assert self.spent <= self.policy.preempt_rate * self.dispatches, "more than their part of the dispatches"


def make_policy(rng: random.Random) -> Policy:
    both = rng.random() < 0.5
    floor = rng.choice([Fraction(0), Fraction(1, 10)])
    bands = (
        Band("p0", 100, 0.05, may_preempt=True, target_wait_s=rng.choice([0.05, 1.0]), ttl_s=1e6),
        Band("p1", 20, 0.02, may_preempt=both, preemptible=both, target_wait_s=0.2, ttl_s=1e6, floor=floor),
        Band("p2", 1, 0.005, preemptible=True, ttl_s=rng.choice([3.0, 1e6]), floor=floor),
    )
    return Policy(
        bands=bands,
        pools=(PoolSpec("m", (BackendSpec("a", rng.randint(2, 9)),)),),
        overtake_cap=Fraction(1, 4),
        preempt_rate=rng.choice([Fraction(1, 10), Fraction(1, 2), Fraction(1)]),
        max_preemptions=rng.choice([1, 2, 5]),
    )


class Walk:
    """One random walk; ``seen`` counts the stops."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.books = Books(make_policy(self.rng))
        self.core = Scheduler(self.books.policy)
        self.count = 0
        self.partial: set[str] = set()

    def note(self, actions: list[Action]) -> None:
        books = self.books
        for action in actions:
            if isinstance(action, Dispatch):
                del books.waiting[action.ticket.id]
                books.running[action.lease.id] = Book(action.lease)
                books.dispatches += 1
            elif isinstance(action, Preempt):
                books.preempted(action)
            elif isinstance(action, Evict | Reject):
                assert action.ticket.id not in self.partial, "its client holds a part of its answer"
                books.waiting.pop(action.ticket.id, None)  # a newcomer of a closed band is refused before it waits

    def step(self) -> None:
        rng, books = self.rng, self.books
        self.step_to_wakeup()
        ahead = books.now + rng.choice([0.0, 0.01, 0.1, 1.0])
        while (wake := self.core.next_wakeup()) is not None and wake <= ahead:  # a shell that is never late
            books.now = max(books.now, wake)
            self.note(self.core.tick(books.now))
        books.now = ahead
        moves: list[Callable[[], None]] = [self.arrive, self.arrive, self.arrive, self.release, self.begin, self.stop]
        rng.choice([*moves, self.arrive, self.stop, self.begin, rng.choice([self.lend, self.decline])])()
        if rng.random() < 0.02:
            self.switch(admitted=rng.choice([1, 2, 3]))

    def switch(self, *, admitted: int) -> None:
        """Switch to a mode that admits the highest bands alone."""
        policy = self.books.policy
        bands = tuple(replace(band, admit=index < admitted) for index, band in enumerate(policy.bands))
        self.books.policy = replace(policy, bands=bands)
        self.note(self.core.set_policy(self.books.now, self.books.policy))

    def finish(self) -> None:
        """Let all that runs end while only the highest band is admitted."""
        self.switch(admitted=1)
        while self.books.running:
            self.step_to_wakeup()
            self.stop()
            self.release()
        self.step_to_wakeup()

    def step_to_wakeup(self) -> None:
        while (wake := self.core.next_wakeup()) is not None and wake <= self.books.now:
            self.note(self.core.tick(self.books.now))

    def arrive(self) -> None:
        books, rng = self.books, self.rng
        self.count += 1
        band = rng.choice([0, 1, 2, 2])
        ticket = Ticket(str(self.count), "m", band, "t", WorkEstimate(10, 50), name=f"n{self.count}",
                        stoppable=rng.choice([Stoppable.ALWAYS, Stoppable.ALWAYS, *Stoppable]))  # fmt: skip
        books.waiting[ticket.id] = ticket, books.now
        self.note(self.core.submit(books.now, ticket))

    def pick(self, among: list[int]) -> Book | None:
        return self.books.running[self.rng.choice(sorted(among))] if among else None

    def end(self, book: Book) -> None:
        del self.books.running[book.lease.id]
        self.books.awaited.discard(f"t/{book.lease.ticket.name}")

    def release(self) -> None:
        book = self.pick([*self.books.running])
        if book is not None:
            self.end(book)
            self.books.spent -= self.books.asked.pop(book.lease.id, None) is not None
            self.note(self.core.release(self.books.now, book.lease.id, Release()))

    def begin(self) -> None:
        book = self.pick([number for number, book in self.books.running.items() if book.began is None])
        if book is not None:
            book.began = self.books.now
            self.note(self.core.observe(self.books.now, Began(book.lease.id)))

    def decline(self) -> None:
        book = self.pick([*self.books.asked])
        if book is not None:
            book.declined = True
            self.books.spent -= self.books.asked.pop(book.lease.id, None) is not None
            self.note(self.core.observe(self.books.now, Declined(book.lease.id)))

    def stop(self) -> None:
        book = self.pick([*self.books.asked])
        if book is not None:
            ticket = book.lease.ticket
            del self.books.asked[book.lease.id], self.books.running[book.lease.id]
            self.books.stops[ticket.id] = self.books.stops.get(ticket.id, 0) + 1
            self.books.waiting[ticket.id] = ticket, float("inf")  # it presses for nothing, having had its turn
            self.partial.add(ticket.id)
            self.note(self.core.release(self.books.now, book.lease.id, Requeue()))

    def lend(self) -> None:
        book = self.pick([*self.books.running])
        if book is not None and book.lease.id not in self.books.asked:
            self.books.awaited.add(f"t/{book.lease.ticket.name}")
            name = f"t/{book.lease.ticket.name}"
            self.note(
                self.core.observe(self.books.now, Waiter(f"w{self.books.now}-{name}", "t", 1, name, waiting=True))
            )


def test_every_stop_is_allowed_and_the_least_costly() -> None:
    seen = 0
    for seed in range(40):
        walk = Walk(seed)
        for _ in range(150):
            walk.step()
        seen += walk.books.seen
        walk.finish()
        assert not walk.books.waiting, "a mode was to end, and nothing else would have ended these"
    assert seen > 40, "hardly anything was stopped"


@pytest.mark.parametrize("seed", [1000, 1001])
def test_the_same_events_stop_the_same(seed: int) -> None:
    found = []
    for _ in range(2):
        walk = Walk(seed)
        for _ in range(300):
            walk.step()
        found.append((walk.books.seen, walk.books.stops))
    assert found[0] == found[1]
