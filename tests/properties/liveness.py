"""A random walk over the whole surface of the scheduler, and a plain observer who sees that nobody waits for ever.

Beside one outcome for each ticket it sees to: what is not admitted does not begin; what has begun (a part of its answer
is there) is turned away by its own deadline, the end of the gateway and the lack of a backend alone; the wake-up is
never later than what time alone brings, and time goes on. At the end everything that could keep work waiting for good
is taken away except the mode, and time runs: only what a closed band may keep is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from properties.liveness_observer import Observer
from properties.liveness_policies import BACKENDS, TENANTS, make_policy
from tidegate.core import (
    BackendSpec,
    Began,
    Capacity,
    Declined,
    Drain,
    Elsewhere,
    Granted,
    Health,
    Outcome,
    Paused,
    Policy,
    PoolSpec,
    RateLimit,
    Reading,
    Release,
    Requeue,
    Seats,
    Signal,
    Stoppable,
    Ticket,
    Turn,
    Waiter,
    WorkEstimate,
)

LATEST = 1000.0
"""Seconds after which everything has ended that time ends: pauses, quotas, readings, dependencies."""


class Walk(Observer):
    """One walk."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.shared: set[str] = set()  # pools of which every seat takes a grant
        self.waiters: list[Waiter] = []
        self.moves: dict[Callable[[], None], float] = {
            self.submit: 10,
            self.release: 3.5,
            self.requeue: 2.5,
            self.begin: 3,
            self.stop: 4,
            self.decline: 0.3,
            self.cancel: 0.7,
            self.lend: 0.7,
            self.stop_lending: 0.7,
            self.elsewhere: 0.3,
            self.change_policy: 0.8,
            self.close: 0.8,
            self.signal: 1.5,
            self.share: 0.3,
            self.grant: 2,
            self.wait: 5,
        }

    def pick(self) -> int | None:
        return self.rng.choice(list(self.books.leases)) if self.books.leases else None

    def submit(self) -> None:
        rng, books = self.rng, self.books
        number = len(books.tickets)
        odd = rng.random()
        ticket = Ticket(
            str(number),
            rng.choice("mmn"),
            rng.choice([0, 0, 1, 2, 2]),
            rng.choice(TENANTS),
            WorkEstimate(rng.randrange(300), rng.randrange(1, 900)),
            flow=rng.choice(["", "", "x"]),
            ttl_s=rng.choice([None, None, None, 5.0]),
            deadline=self.now + rng.choice([0.5, 20.0, 300.0]) if rng.random() < 0.1 else None,
            arrived=self.now - 3.0 if odd < 0.1 else None,
            size_bytes=rng.randrange(99),
            name=f"n{rng.randrange(25)}" if rng.random() < 0.5 else "",
            depends_on=tuple({f"n{rng.randrange(25)}" for _ in range(rng.choice([1, 2]))} if odd > 0.85 else ()),
            affinity=rng.choice([0, 7]),
            patient=rng.random() < 0.3,
            stoppable=rng.choice([Stoppable.ALWAYS, Stoppable.ALWAYS, *Stoppable]),
        )
        books.tickets[ticket.id] = books.waiting[ticket.id] = ticket
        self.tell("submit", ticket)

    def release(self) -> None:
        number = self.pick()
        if number is not None:
            self.finish_lease(number, self.rng.choice([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED]))

    def finish_lease(self, number: int, outcome: Outcome = Outcome.COMPLETED) -> None:
        books = self.books
        lease = books.leases.pop(number)
        books.asked.discard(number)
        books.failed.pop(lease.ticket.id, None)
        books.ended[lease.ticket.id] += 1
        self.tell("release", number, Release(outcome, 20, self.rng.choice([None, 300]), ttft_s=0.2, tpot_s=0.02))

    def requeue(self) -> None:
        """The engine failed, or said that it is busy."""
        number = self.pick()
        if number is not None:
            self.give_back(number, Requeue(avoid=self.rng.random() < 0.5, begun=self.rng.random() < 0.6))

    def give_back(self, number: int, requeue: Requeue) -> None:
        books = self.books
        lease = books.leases.pop(number)
        ticket, asked = lease.ticket, number in books.asked
        books.asked.discard(number)
        if requeue.begun or (asked and not requeue.avoid):
            books.begun.add(ticket.id)
        if requeue.avoid:
            books.failed.setdefault(ticket.id, set()).add(lease.backend)
        else:
            books.failed.pop(ticket.id, None)
        books.waiting[ticket.id] = ticket
        self.tell("release", number, requeue)

    def begin(self) -> None:
        number = self.pick()
        if number is not None:
            self.tell("observe", Began(number))

    def stop(self) -> None:
        """The engine has let go of one that was asked to stop."""
        if self.books.asked:
            self.books.stops += 1
            self.give_back(min(self.books.asked), Requeue())

    def decline(self) -> None:
        number = self.pick()
        if number is not None:
            self.books.asked.discard(number)
            self.tell("observe", Declined(number))

    def cancel(self) -> None:
        if self.books.waiting:
            ident = self.rng.choice(list(self.books.waiting))
            self.tell("tick")  # what is due comes first
            if ident in self.books.waiting:
                self.end(ident)
                self.tell("cancel", ident)

    def lend(self) -> None:
        tenant = self.rng.choice(TENANTS)
        waiter = Waiter(
            f"w{len(self.events)}", tenant, self.rng.randrange(2), f"{tenant}/n{self.rng.randrange(25)}", waiting=True
        )
        self.waiters.append(waiter)
        self.tell("observe", waiter)

    def stop_lending(self) -> None:
        if self.waiters:
            waiter = self.waiters.pop(self.rng.randrange(len(self.waiters)))
            self.tell("observe", replace(waiter, waiting=False))

    def elsewhere(self) -> None:
        name = f"{self.rng.choice(TENANTS)}/n{self.rng.randrange(25)}"
        going = self.rng.random() < 0.5
        self.tell("observe", Elsewhere(name, going, None if going else self.rng.choice([None, Outcome.COMPLETED])))

    def change_policy(self) -> None:
        self.obey(make_policy(self.rng))

    def close(self) -> None:
        """Switch to a mode, and change nothing else."""
        admitted = self.rng.choice([1, 2, 3, 3])
        bands = tuple(replace(band, admit=index < admitted) for index, band in enumerate(self.policy.bands))
        self.obey(replace(self.policy, bands=bands, observe_only=False))

    def obey(self, policy: Policy) -> None:
        self.tell("tick")  # what is due comes before the change
        self.policy = policy
        self.tell("set_policy", policy)

    def signal(self) -> None:
        rng, name = self.rng, self.rng.choice(list(BACKENDS))
        signals: list[Signal] = [
            Health(name, up=rng.random() < 0.4),
            *(Health(each, up=True) for each, up in self.up.items() if not up),
            Paused(name, self.now + rng.choice([0.3, 0.3, 20.0])),
            Seats(name, rng.choice([0, 1, 2, 3, 4])),
            Reading(name, self.now, rng.random(), rng.randrange(5), rng.randrange(3), 0, 4000),
            RateLimit(name, rng.randrange(3), rng.randrange(2000), rng.uniform(0, 30)),
        ]
        signal = rng.choice(signals)
        if isinstance(signal, Health):
            self.tell("tick")
            self.up[signal.backend] = signal.up
        if isinstance(signal, Paused):
            self.paused[name] = max(self.paused[name], signal.until)
        if isinstance(signal, RateLimit):
            self.paused[name] = max(self.paused[name], self.now + signal.reset_s)
        self.tell("observe", signal)

    def share(self) -> None:
        pool = self.rng.choice("mn")
        lent = self.rng.choice([0, 3, None, None])
        (self.shared.add if lent == 0 else self.shared.discard)(pool)
        self.tell("observe", Capacity(pool, lent, share=lent or None, wary=self.rng.random() < 0.2))

    def grant(self) -> None:
        for pool in sorted(self.shared):
            bids = self.core.bids(self.now, pool).bids
            self.events.append(("bids", self.now, (pool,)))
            if bids:
                bid = self.rng.choice(bids)
                kind = self.rng.choice(list(Turn))
                self.tell("observe", Granted(pool, bid.band, self.rng.choice(bid.backends), kind))

    def wait(self) -> None:
        self.advance(self.now + self.rng.choice([0.0, 0.004, 0.1, 0.1, 0.5, 3.0]))

    def advance(self, until: float) -> None:
        """Let time go on as a shell would that is never late; it must not be woken for nothing all the time."""
        most = 50 + len(self.books.waiting) + int(400 * (until - self.now))
        for _ in range(most):
            wake = self.core.next_wakeup()
            if wake is None or wake > until:
                self.nobody_is_shut_in()
                self.now = until
                return
            self.now = wake
            self.tell("tick")
        raise AssertionError(f"woken more than {most} times before {until}, now at {self.now}")

    def go(self, steps: int) -> None:
        moves, weights = list(self.moves), list(self.moves.values())
        for _ in range(steps):
            self.rng.choices(moves, weights)[0]()
            if self.rng.random() < 0.01:
                self.probe()

    # -- the end

    def settle(self) -> None:
        """Take away what could keep work waiting, but for the mode; let all that runs end, and time go on."""
        if self.rng.random() < 0.6:
            self.close()
        policy = self.policy
        self.obey(replace(policy, pools=tuple(replace(pool, backends=_plenty(pool)) for pool in policy.pools)))
        for name in BACKENDS:
            self.tell("tick")
            self.up[name] = True
            self.tell("observe", Health(name, up=True))
            self.tell("observe", Seats(name, 4))
            self.tell("observe", Reading(name, self.now, 1.0, 0, 0, 0, 4000))
        for pool in "mn":
            if pool not in self.shared:
                self.tell("observe", Capacity(pool, None))
            else:
                self.tell("observe", Capacity(pool, 0))
        latest = self.now + LATEST
        for _ in range(20_000):
            wake = self.core.next_wakeup()
            if self.books.leases and self.rng.random() < 0.2:
                self.give_back(min(self.books.leases), Requeue(begun=self.rng.random() < 0.5))
            elif self.books.leases:
                self.finish_lease(min(self.books.leases))
            elif any(self.core.bids(self.now, pool).bids for pool in self.shared):
                self.grant()
            elif self.shared and self.now < latest:  # a replica bids anew now and then, whatever its alarm says
                self.now = min(self.now + 10.0, wake or latest)
                self.tell("tick")
            elif wake is not None and wake <= latest:
                self.now = wake
                self.tell("tick")
            else:
                return
        raise AssertionError("it goes on for ever")

    def may_be_left(self, ticket: Ticket) -> bool:
        closed = not (self.policy.observe_only or self.policy.bands[ticket.band].admit)
        return ticket.patient and closed and ticket.id not in self.books.begun

    def finish(self) -> None:
        """See who is left."""
        if self.rng.random() < 0.2:
            self.draining = True
            self.tell("observe", Drain())
            self.advance(self.now)
            assert not self.books.waiting, "draining left somebody waiting"
            while self.books.leases:
                number = min(self.books.leases)
                if self.rng.random() < 0.5:
                    self.finish_lease(number)
                else:
                    self.give_back(number, Requeue(begun=True))
                    self.advance(self.now)
        else:
            self.settle()
            left = [ticket for ticket in self.books.waiting.values() if not self.may_be_left(ticket)]
            assert not left, f"{left} wait for ever: {[self.core.why(self.now, each.id) for each in left]}"
        ended = self.books.ended
        assert set(ended.values()) <= {1}
        assert len(ended) + len(self.books.waiting) == len(self.books.tickets)


def _plenty(pool: PoolSpec) -> tuple[BackendSpec, ...]:
    return tuple(replace(backend, seats=4) for backend in pool.backends)
