"""One scheduler under random commands, beside its twin and plain books: what tests of any sequence of events share."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from properties.machine_policies import BACKENDS, TENANTS, make_policy, specs
from properties.naive import fixed
from tidegate.core import (
    Action,
    Began,
    Declined,
    Dispatch,
    Drain,
    Evict,
    Full,
    Health,
    Lease,
    Outcome,
    Preempt,
    Reason,
    Reject,
    Release,
    Requeue,
    Scheduler,
    Seats,
    Signal,
    Stoppable,
    Ticket,
    Turn,
    Waiter,
    WhyKind,
    WorkEstimate,
)


class Machine(RuleBasedStateMachine):
    """Random commands against one scheduler, its twin (same events, so same actions) and plain books."""

    @initialize(seed=st.integers(0, 10_000))
    def start(self, seed: int) -> None:
        self.policy = make_policy(seed)
        self.core, self.twin = Scheduler(self.policy), Scheduler(self.policy)
        self.now = 0.0
        self.tickets: dict[str, Ticket] = {}
        self.waiting: dict[str, Ticket] = {}
        self.expiry: dict[str, float] = {}
        self.leases: dict[int, Lease] = {}
        self.ended: dict[str, str] = {}
        self.seats = {b.name: fixed(b.seats) for p in self.policy.pools for b in p.backends}
        self.up = dict.fromkeys(self.seats, True)
        self.draining = False
        self.waiters: dict[str, Waiter] = {}
        self.asked: dict[int, Preempt] = {}  # leases asked to stop
        self.stops: dict[str, int] = {}  # by ticket
        self.began: set[int] = set()
        self.dispatches = self.preemptions = 0
        self.rates = [self.policy.preempt_rate]
        self.partial: set[str] = set()  # tickets that were stopped

    # books

    def _book(self, actions: list[Action], other: list[Action], newcomer: Ticket | None = None) -> None:
        assert [repr(a) for a in actions] == [repr(a) for a in other], "same events, other actions"
        for action in actions:
            if isinstance(action, Dispatch):
                self._dispatched(action)
            elif isinstance(action, Reject):
                assert newcomer is not None
                assert action.ticket is newcomer
                self._end(action.ticket.id, "rejected")
            elif isinstance(action, Evict):
                if action.reason is Reason.DISPLACED and newcomer is not None:
                    same = self.policy.bands[newcomer.band].full is Full.EVICT_OLDEST
                    above = action.ticket.band > newcomer.band
                    assert above or (same and action.ticket.band == newcomer.band) or self.lent, "evicted upward"
                self._end(action.ticket.id, "evicted")
                if action.ticket.id in self.partial:
                    assert action.reason in (Reason.DRAINING, Reason.UPSTREAM_BUSY, Reason.NO_BACKEND), action
            elif isinstance(action, Preempt):
                self._preempted(action)

    def _preempted(self, action: Preempt) -> None:
        """See that it is one that may be stopped, for a band that may ask for it."""
        lease, band = action.lease, self.policy.bands[action.ticket.band]
        assert self.leases[lease.id] is lease
        assert lease.id not in self.asked, "asked twice"
        assert band.preemptible
        assert self.policy.bands[action.by].may_preempt
        assert action.by < action.ticket.band, "stopped for a band that is not higher"
        assert (lease.kind, lease.band) == (Turn.TURN, action.ticket.band)
        assert action.ticket.stoppable
        assert action.ticket.stoppable is Stoppable.ALWAYS or lease.id not in self.began
        assert self.stops.get(action.ticket.id, 0) < self.policy.max_preemptions
        assert any(ticket.band == action.by for ticket in self.waiting.values()), "nobody waits for it"
        assert not self.draining
        self.asked[lease.id] = action
        self.preemptions += 1
        assert self.preemptions <= max(self.rates) * self.dispatches, "more than their part of the dispatches"
        waits = sum(self.policy.bands[ticket.band].may_preempt for ticket in self.waiting.values())
        assert waits

    @property
    def lent(self) -> bool:
        return bool(self.waiters) or any(t.depends_on for t in self.waiting.values())

    def _dispatched(self, action: Dispatch) -> None:
        lease = action.lease
        assert lease.ticket.id in self.waiting
        assert self.up[lease.backend], "dispatched to a backend that is down"
        assert BACKENDS[lease.backend] == lease.ticket.pool
        running = sum(other.backend == lease.backend for other in self.leases.values())
        assert running < self.seats[lease.backend], "more running than seats"
        assert not self.draining
        kept = lease.ticket.depends_on or lease.ticket.id in self.partial
        assert kept or self.now < self.expiry[lease.ticket.id], "dispatched past its time to live"
        self.dispatches += 1
        del self.waiting[lease.ticket.id]
        assert lease.id not in self.leases
        self.leases[lease.id] = lease

    def _end(self, id_: str, how: str) -> None:
        assert id_ not in self.ended, "two outcomes"
        del self.waiting[id_]
        self.ended[id_] = how

    # events

    @rule(
        band=st.integers(0, 2),
        tenant=st.sampled_from(TENANTS),
        flow=st.sampled_from(["", "", "x", "y"]),
        pool=st.sampled_from(["a", "a", "b"]),
        tokens=st.integers(0, 900),
        ttl=st.sampled_from([None, None, 0.5]),
        depends=st.lists(st.integers(0, 30), max_size=2),
        stoppable=st.sampled_from(list(Stoppable)),
    )
    def submit(
        self,
        band: int,
        tenant: str,
        flow: str,
        pool: str,
        tokens: int,
        ttl: float | None,
        depends: list[int],
        stoppable: Stoppable,
    ) -> None:
        name = f"n{len(self.tickets) % 30}"
        ticket = Ticket(
            str(len(self.tickets)),
            pool,
            band,
            tenant,
            WorkEstimate(tokens // 3, tokens),
            flow=flow,
            ttl_s=ttl,
            arrived=None,
            size_bytes=tokens,
            name=name,
            depends_on=tuple(f"n{d}" for d in depends) if tokens % 3 == 0 else (),
            stoppable=stoppable,
        )
        self.tickets[ticket.id] = self.waiting[ticket.id] = ticket
        self.expiry[ticket.id] = self.now + min(ttl or 1e9, self.policy.bands[band].ttl_s)
        self._book(self.core.submit(self.now, ticket), self.twin.submit(self.now, ticket), ticket)

    @precondition(lambda self: self.leases)
    @rule(pick=st.integers(0, 10**6), outcome=st.sampled_from([Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED]))
    def release(self, pick: int, outcome: Outcome) -> None:
        lease_id = sorted(self.leases)[pick % len(self.leases)]
        lease = self.leases.pop(lease_id)
        self._forget(lease_id)
        self.ended[lease.ticket.id] = outcome
        done = Release(outcome, pick % 700, pick % 900)
        self._book(self.core.release(self.now, lease_id, done), self.twin.release(self.now, lease_id, done))
        assert not self.core.release(self.now, lease_id, done), "a second release did something"
        self.twin.release(self.now, lease_id, done)

    def _forget(self, lease_id: int) -> bool:
        """Forget a lease that has ended; a stop that came to nothing is refunded."""
        self.began.discard(lease_id)
        was = self.asked.pop(lease_id, None)
        self.preemptions -= was is not None
        return was is not None

    @precondition(lambda self: self.leases)
    @rule(pick=st.integers(0, 10**6))
    def begin(self, pick: int) -> None:
        lease_id = sorted(self.leases)[pick % len(self.leases)]
        self.began.add(lease_id)
        self._observe(Began(lease_id))

    @precondition(lambda self: self.leases)
    @rule(pick=st.integers(0, 10**6))
    def decline(self, pick: int) -> None:
        lease_id = sorted(self.leases)[pick % len(self.leases)]
        if self.asked.pop(lease_id, None) is not None:
            self.preemptions -= 1
        self._observe(Declined(lease_id))

    @precondition(lambda self: self.asked)
    @rule(pick=st.integers(0, 10**6))
    def stop(self, pick: int) -> None:
        """The engine has let go of one that was asked to stop."""
        lease_id = sorted(self.asked)[pick % len(self.asked)]
        lease = self.leases.pop(lease_id)
        self._forget(lease_id)
        self.preemptions += 1
        id_ = lease.ticket.id
        self.stops[id_] = self.stops.get(id_, 0) + 1
        self.partial.add(id_)
        self.waiting[id_] = lease.ticket
        back = Requeue()
        self._book(self.core.release(self.now, lease_id, back), self.twin.release(self.now, lease_id, back))

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(0, 10**6))
    def cancel(self, pick: int) -> None:
        id_ = sorted(self.waiting)[pick % len(self.waiting)]
        self._end(id_, "cancelled")
        self._book(self.core.cancel(self.now, id_), self.twin.cancel(self.now, id_))

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.3, 2.0, 30.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._book(self.core.tick(self.now), self.twin.tick(self.now))
        self._settle()
        assert not self.core.tick(self.now), "a second tick did something"
        assert not self.twin.tick(self.now)

    def _settle(self) -> None:
        for _ in range(1000):
            wake = self.core.next_wakeup()
            if wake is None or wake > self.now:
                return
            self._book(self.core.tick(self.now), self.twin.tick(self.now))
        raise AssertionError("the wake-up never moves on")

    def _observe(self, signal: Signal) -> None:
        self._book(self.core.observe(self.now, signal), self.twin.observe(self.now, signal))

    @rule(backend=st.sampled_from(sorted(BACKENDS)), up=st.booleans())
    def health(self, backend: str, up: bool) -> None:
        self.up[backend] = up
        self._observe(Health(backend, up))

    @rule(backend=st.sampled_from(sorted(BACKENDS)), seats=st.integers(0, 4))
    def reseat(self, backend: str, seats: int) -> None:
        self.seats[backend] = seats
        self._observe(Seats(backend, seats))

    @rule(band=st.integers(0, 2), tenant=st.sampled_from(TENANTS), number=st.integers(0, 29))
    def lend(self, band: int, tenant: str, number: int) -> None:
        waiter = Waiter(f"w{len(self.waiters)}-{self.now}-{number}", tenant, band, f"{tenant}/n{number}", waiting=True)
        self.waiters[waiter.waiter] = waiter
        self._observe(waiter)

    @precondition(lambda self: self.waiters)
    @rule(pick=st.integers(0, 10**6))
    def stop_lending(self, pick: int) -> None:
        waiter = self.waiters.pop(sorted(self.waiters)[pick % len(self.waiters)])
        self._observe(Waiter(waiter.waiter, waiter.tenant, waiter.band, waiter.name, waiting=False))

    @rule(seed=st.integers(0, 10_000))
    def change_policy(self, seed: int) -> None:
        before = set(self.waiting)
        old, self.policy = self.policy, make_policy(seed)
        self.rates.append(self.policy.preempt_rate)
        # what was observed of a backend stays until the policy itself says another number of seats
        for was, new in zip(specs(old), specs(self.policy), strict=True):
            if was != new:
                self.seats[new.name] = fixed(new.seats)
        actions = self.core.set_policy(self.now, self.policy)
        self._book(actions, self.twin.set_policy(self.now, self.policy))
        lost = [a for a in actions if isinstance(a, Evict) and a.reason is not Reason.EXPIRED]
        assert not lost, f"a policy change discarded {lost} of {len(before)}"

    @precondition(lambda self: len(self.ended) > 25)
    @rule()
    def drain(self) -> None:
        self.draining = True
        self._observe(Drain())
        self._settle()
        assert not self.waiting, "draining left somebody waiting"

    # what always holds

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "core"):
            return
        shot = self.core.snapshot(self.now)
        assert shot.queued == len(self.waiting)
        for backend in shot.backends:
            assert backend.running == sum(lease.backend == backend.name for lease in self.leases.values())
        assert len(self.tickets) == len(self.waiting) + len(self.leases) + len(self.ended)

    @invariant()
    def no_seat_idles(self) -> None:
        """A free seat on a live backend means that every waiting ticket there has a reason of its own to wait."""
        if not hasattr(self, "core"):
            return
        for pool in ("a", "b"):
            room = any(
                self.up[name] and sum(lease.backend == name for lease in self.leases.values()) < self.seats[name]
                for name, owner in BACKENDS.items()
                if owner == pool
            )
            if not room:
                continue
            for ticket in self.waiting.values():
                if ticket.pool == pool:
                    why = self.core.why(self.now, ticket.id)
                    assert why.kind not in (WhyKind.BEHIND, WhyKind.UNKNOWN), f"{ticket} waits by a free seat: {why}"

    def teardown(self) -> None:
        """Whoever waits is served or refused in the end, whatever happened before: nobody starves."""
        if not hasattr(self, "core") or self.draining:
            return
        self.core.set_policy(self.now, make_policy(1))
        for backend in BACKENDS:
            self.core.observe(self.now, Health(backend, up=True))
        for waiter in list(self.waiters.values()):
            self.core.observe(self.now, Waiter(waiter.waiter, waiter.tenant, waiter.band, waiter.name, waiting=False))
        left = dict.fromkeys(self.leases)
        for _ in range(5000):
            actions: list[Action] = []
            if left:
                lease_id = next(iter(left))
                del left[lease_id]
                actions = self.core.release(self.now, lease_id, Release())
            else:
                wake = self.core.next_wakeup()
                if wake is None:
                    break
                self.now = max(self.now, wake)
                actions = self.core.tick(self.now)
            left.update({a.lease.id: None for a in actions if isinstance(a, Dispatch)})
        assert self.core.snapshot(self.now).queued == 0
        assert not left
