"""The plainest scheduler that keeps the core's promises, so that the driver's tests show the driver."""

from __future__ import annotations

from tidegate.core import (
    Action,
    BackendSnapshot,
    Dispatch,
    Drain,
    Evict,
    Health,
    Lease,
    Policy,
    Progress,
    Reason,
    Reject,
    Release,
    Requeue,
    Seats,
    Signal,
    Snapshot,
    Status,
    Ticket,
    Turn,
    Why,
    WhyKind,
)

MOST_EVICTIONS = 256


class FifoScheduler:
    """First come, first served, on ``seats`` seats; refuses beyond ``capacity``; expires after ``ttl_s``."""

    def __init__(self, seats: int = 1, *, capacity: int = 1_000_000, ttl_s: float = 10.0) -> None:
        self.seats = seats
        self.capacity = capacity
        self.ttl_s = ttl_s
        self.waiting: dict[str, tuple[float, Ticket]] = {}
        self.running: set[int] = set()
        self.draining = False
        self.calls: list[tuple[str, float]] = []
        self.fail_on = ""
        self._inside = False
        self._next_lease = 0

    def submit(self, now: float, ticket: Ticket) -> list[Action]:
        self._called("submit", now)
        if self.draining:
            return [Reject(ticket, Reason.DRAINING)]
        if len(self.waiting) >= self.capacity and len(self.running) >= self.seats:
            return [Reject(ticket, Reason.QUEUE_FULL, 1.0)]
        self.waiting[ticket.id] = (now, ticket)
        return self._fill(now)

    def release(self, now: float, lease_id: int, release: Release | Requeue) -> list[Action]:
        self._called("release", now)
        self.running.remove(lease_id)
        return self._fill(now)

    def cancel(self, now: float, ticket_id: str) -> list[Action]:
        self._called("cancel", now)
        self.waiting.pop(ticket_id, None)
        return []

    def observe(self, now: float, signal: Signal) -> list[Action]:
        self._called("observe", now)
        if isinstance(signal, Drain):
            self.draining = True
            return self.tick(now)
        if isinstance(signal, Seats):
            self.seats = signal.seats
        if isinstance(signal, Health):
            self.seats = 8 if signal.up else 0
        return self._fill(now)

    def set_policy(self, now: float, policy: Policy) -> list[Action]:
        self._called("set_policy", now)
        return []

    def tick(self, now: float) -> list[Action]:
        self._called("tick", now)
        reason = Reason.DRAINING if self.draining else Reason.EXPIRED
        due = [ticket for since, ticket in self.waiting.values() if self.draining or now >= since + self.ttl_s][
            :MOST_EVICTIONS
        ]
        for ticket in due:
            del self.waiting[ticket.id]
        evicted: list[Action] = [Evict(ticket, reason) for ticket in due]
        return evicted + self._fill(now)

    def next_wakeup(self) -> float | None:
        if not self.waiting:
            return None
        since, _ = next(iter(self.waiting.values()))
        return 0.0 if self.draining else since + self.ttl_s

    def status(self, now: float, name: str) -> Status:
        return Status(Progress.UNKNOWN)

    def why(self, now: float, ticket_id: str) -> Why:
        return Why(WhyKind.BEHIND if ticket_id in self.waiting else WhyKind.UNKNOWN, "first come, first served")

    def snapshot(self, now: float) -> Snapshot:
        backend = BackendSnapshot("m", "b", self.seats, len(self.running), up=True)
        return Snapshot(now, len(self.waiting), 0, 0, len(self.running), self.draining, (), (backend,))

    def _called(self, name: str, now: float) -> None:
        assert not self.calls or now >= self.calls[-1][1]
        self.calls.append((name, now))
        if name == self.fail_on:
            self.waiting.clear()
            raise RuntimeError("a bug")

    def _fill(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self.waiting and len(self.running) < self.seats and not self.draining:
            since, ticket = self.waiting.pop(next(iter(self.waiting)))
            self._next_lease += 1
            self.running.add(self._next_lease)
            lease = Lease(self._next_lease, ticket, "b", Turn.TURN, ticket.band, now - since, now)
            actions.append(Dispatch(ticket, lease))
        return actions
