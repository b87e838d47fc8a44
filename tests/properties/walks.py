"""Long seeded random walks of the machine: deeper than Hypothesis goes, and repeatable in another process."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable

from properties.machine import Machine
from properties.machine_policies import BACKENDS, TENANTS
from tidegate.core import Outcome, Stoppable


class Walk:
    """One walk. ``traffic`` says how many arrivals come for each departure."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = Machine()
        self.machine.start(seed=self.rng.randrange(10_000))
        traffic = self.rng.choice([1, 3, 8])
        self.moves: dict[Callable[[], None], float] = {
            self.submit: 5 * traffic,
            self.release: 8,
            self.cancel: 1,
            self.wait: 4,
            self.health: 0.6,
            self.reseat: 0.4,
            self.lend: 1,
            self.stop_lending: 1,
            self.policy: 0.3,
            self.begin: 2,
            self.stop: 2,
            self.decline: 0.3,
        }

    def go(self, steps: int) -> str:
        """Walk, end as the machine ends, and return a digest of how every ticket fared."""
        moves, weights = list(self.moves), list(self.moves.values())
        for _ in range(steps):
            self.rng.choices(moves, weights)[0]()
            self.machine.books_agree()
            self.machine.no_seat_idles()
        machine = self.machine
        fate = repr((sorted(machine.ended.items()), sorted(machine.leases), sorted(machine.waiting)))
        machine.teardown()
        return hashlib.sha256(fate.encode()).hexdigest()

    def _pick(self) -> int:
        return self.rng.randrange(10**6)

    def begin(self) -> None:
        if self.machine.leases:
            self.machine.begin(pick=self._pick())

    def stop(self) -> None:
        if self.machine.asked:
            self.machine.stop(pick=self._pick())

    def decline(self) -> None:
        if self.machine.leases:
            self.machine.decline(pick=self._pick())

    def submit(self) -> None:
        rng = self.rng
        self.machine.submit(
            band=rng.randrange(3),
            tenant=rng.choice(TENANTS),
            flow=rng.choice(["", "", "x", "y"]),
            pool=rng.choice("aab"),
            tokens=rng.randrange(900),
            ttl=rng.choice([None, None, 0.5]),
            depends=[rng.randrange(31) for _ in range(rng.randrange(3))],
            stoppable=rng.choice(list(Stoppable)),
        )

    def release(self) -> None:
        if self.machine.leases:
            outcome = self.rng.choice([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED])
            self.machine.release(pick=self._pick(), outcome=outcome)

    def cancel(self) -> None:
        if self.machine.waiting:
            self.machine.cancel(pick=self._pick())

    def wait(self) -> None:
        self.machine.wait(seconds=self.rng.choice([0.0, 0.001, 0.05, 0.05, 0.3, 2.0, 30.0, 700.0]))

    def health(self) -> None:
        self.machine.health(backend=self.rng.choice(sorted(BACKENDS)), up=self.rng.random() < 0.7)

    def reseat(self) -> None:
        self.machine.reseat(backend=self.rng.choice(sorted(BACKENDS)), seats=self.rng.randrange(5))

    def lend(self) -> None:
        number = self.rng.randrange(30)
        self.machine.lend(band=self.rng.randrange(3), tenant=self.rng.choice(TENANTS), number=number)

    def stop_lending(self) -> None:
        if self.machine.waiters:
            self.machine.stop_lending(pick=self._pick())

    def policy(self) -> None:
        self.machine.change_policy(seed=self.rng.randrange(10_000))


if __name__ == "__main__":
    sys.stdout.write("\n".join(Walk(seed).go(300) for seed in range(12)))
