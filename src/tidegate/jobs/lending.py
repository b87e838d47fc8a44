"""Lends the bands of those who wait for a batch to rows of it that wait for a seat (SPEC §4.6).

A *caller* waits for one batch; somebody who waits for several is a caller of each. Whoever waits lends to at most
``lend_limit`` waiting rows at a time, the first ones; when one of them has its seat, the next is lifted. The scheduler
is told of each as of a request that is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tidegate.core import Waiter
from tidegate.jobs.held import Held
from tidegate.runtime import Driver


@dataclass(slots=True, frozen=True)
class Caller:
    """Somebody who waits for a batch, and the band that it lends.

    Attributes:
        id: unique.
        tenant: who lends.
        band: index of the band lent.
        batch_id: what is waited for.
        waiter: who waits, when that is several callers.
    """

    id: str
    tenant: str
    band: int
    batch_id: str
    waiter: str = ""

    @property
    def who(self) -> str:
        """Whose limit counts."""
        return self.waiter or self.id


class Lending:
    """See the module docstring.

    Args:
        driver: the scheduler.
        limit: most waiting rows that one who waits lifts at a time.
        rows_of: the rows of a batch that are here, in order.
        changed: called when somebody begins to wait.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        limit: Callable[[], int],
        rows_of: Callable[[str], Mapping[int, Held]],
        changed: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._limit = limit
        self._rows_of = rows_of
        self._changed = changed
        self._callers: dict[str, Caller] = {}
        self._lent: Counter[str] = Counter()  # rows lifted, by who waits

    @contextlib.contextmanager
    def by(self, caller: Caller) -> Iterator[None]:
        """Lend a caller's band meanwhile."""
        self.begin(caller)
        try:
            yield
        finally:
            self.end(caller.id)

    def begin(self, caller: Caller) -> None:
        """Lend from now on; a caller whose band has changed begins again."""
        if self._callers.get(caller.id) == caller:
            return
        self.end(caller.id)
        self._callers[caller.id] = caller
        self.lend(caller.batch_id)
        self._changed()

    def end(self, caller_id: str) -> None:
        """Lend no more. Does nothing for one that does not lend."""
        caller = self._callers.pop(caller_id, None)
        if caller is None:
            return
        for held in tuple(self._rows_of(caller.batch_id).values()):
            if caller.id in held.lent_to:
                held.lent_to.remove(caller.id)
                self._tell(caller, held, waiting=False)

    def wanted(self) -> dict[str, int]:
        """How many rows of which batches should be waiting, for those who wait for them."""
        limit = self._limit()
        wanted: Counter[str] = Counter()
        for caller in self._callers.values():
            wanted[caller.batch_id] += limit
        return wanted

    def arrived(self, batch_ids: set[str]) -> None:
        """Rows of these batches have come into the queue."""
        if self._callers:
            for batch_id in sorted(batch_ids):
                asyncio.get_running_loop().call_soon(self.lend, batch_id)

    def left(self, held: Held) -> None:
        """A row waits no more: its callers lift the next ones."""
        if not held.lent_to:
            return
        callers = [self._callers[each] for each in held.lent_to if each in self._callers]
        held.lent_to.clear()
        for caller in callers:
            self._tell(caller, held, waiting=False)
        asyncio.get_running_loop().call_soon(self.lend, held.out.row.batch_id)

    def lend(self, batch_id: str) -> None:
        """Let each caller lift as many waiting rows as it may, the first ones."""
        for caller in [each for each in self._callers.values() if each.batch_id == batch_id]:
            for held in tuple(self._rows_of(batch_id).values()):
                if self._lent[caller.who] >= self._limit():
                    break
                if held.waiting and held.placed is not None and caller.band < held.band:
                    self._lift(caller, held)

    def _lift(self, caller: Caller, held: Held) -> None:
        if caller.id in held.lent_to or held.placed is None:
            return
        held.lent_to.append(caller.id)
        if not held.placed.bear(held.name):
            held.lent_to.remove(caller.id)
        else:
            self._tell(caller, held, waiting=True)

    def _tell(self, caller: Caller, held: Held, *, waiting: bool) -> None:
        self._lent[caller.who] += 1 if waiting else -1
        if self._lent[caller.who] <= 0:
            del self._lent[caller.who]
        full = f"{held.out.tenant}/{held.name}"
        waiter = f"{caller.id}.{held.out.row.line}"
        self._driver.observe(Waiter(waiter, caller.tenant, caller.band, full, waiting=waiting))
