"""Requests that depend on batches (``x-tidegate-depends-on: batch_…``, SPEC §4.6).

Such a request waits in the scheduler like one that depends on a request; what the scheduler cannot know is how far
the batch is. So while anybody waits, the batch is looked at here, the scheduler is told how it ended, and the band that
the request lends goes to rows of the batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.core import Elsewhere, Outcome, Progress, Ticket
from tidegate.jobs.endings import LOOK_S, Endings
from tidegate.jobs.lending import Caller, Lending
from tidegate.runtime import Driver
from tidegate.stores import Batch, BatchState, NotFound, StoreError

BAND_S: Final = 0.25
"""How often it is looked at which band a waiting request lends: it may be lent one itself."""

_NAME: Final = re.compile(r"(?:([^/]+)/)?(batch_[0-9a-f]{24})")
_OUTCOMES: Final[Mapping[BatchState, Outcome]] = {
    BatchState.COMPLETED: Outcome.COMPLETED,
    BatchState.FAILED: Outcome.FAILED,
    BatchState.EXPIRED: Outcome.EVICTED,
    BatchState.CANCELLED: Outcome.CANCELLED,
}


@dataclass(slots=True, eq=False)
class _Followed:
    """A batch that requests wait for. ``callers`` are by the request's ticket."""

    tenant: str
    batch_id: str
    tickets: dict[str, Ticket] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return f"{self.tenant}/{self.batch_id}"

    def caller_id(self, ticket_id: str) -> str:
        return f"depends-{ticket_id}-{self.batch_id}"


class Dependents:
    """See the module docstring.

    Args:
        driver: the scheduler.
        lending: to rows.
        endings: tells of batches that this gateway has ended.
        find: reads a batch of a tenant. Raises ``StoreError``.
    """

    def __init__(
        self,
        driver: Driver,
        lending: Lending,
        endings: Endings,
        find: Callable[[str, str], Awaitable[Batch]],
    ) -> None:
        self._driver = driver
        self._lending = lending
        self._endings = endings
        self._find = find
        self._followed: dict[str, _Followed] = {}

    @contextlib.contextmanager
    def waiting(self, ticket: Ticket) -> Iterator[None]:
        """Look after the batches among a ticket's dependencies. To be entered before the ticket is submitted."""
        joined = [self._join(tenant, batch_id, ticket) for tenant, batch_id in _batches(ticket)]
        try:
            yield
        finally:
            for each in joined:
                self._leave(each, ticket)

    def _join(self, tenant: str, batch_id: str, ticket: Ticket) -> _Followed:
        each = self._followed.get(f"{tenant}/{batch_id}") or _Followed(tenant, batch_id)
        each.tickets[ticket.id] = ticket
        if each.task is None and self._driver.status(each.name).progress is Progress.UNKNOWN:
            self._followed[each.name] = each
            self._driver.observe(Elsewhere(each.name, going=True))
            each.task = asyncio.get_running_loop().create_task(self._follow(each))
        return each

    def _leave(self, each: _Followed, ticket: Ticket) -> None:
        del each.tickets[ticket.id]
        self._lending.end(each.caller_id(ticket.id))
        if not each.tickets and self._followed.get(each.name) is each:
            assert each.task is not None
            each.task.cancel()
            self._end(each, None)

    def _end(self, each: _Followed, outcome: Outcome | None) -> None:
        """Look after a batch no more."""
        del self._followed[each.name]
        for ticket_id in each.tickets:
            self._lending.end(each.caller_id(ticket_id))
        self._driver.observe(Elsewhere(each.name, going=False, outcome=outcome))

    async def _follow(self, each: _Followed) -> None:
        """Look at a batch until it has ended. A store that gives no answer is asked again."""
        with self._endings.of(each.batch_id) as ended:
            while True:
                found = False
                ended.clear()  # before the question: what is told after it counts
                try:
                    batch = await self._find(each.tenant, each.batch_id)
                except NotFound:
                    self._end(each, None)
                    return
                except StoreError:
                    pass
                else:
                    found = True
                    if batch.state.ended:
                        self._end(each, _OUTCOMES[batch.state])
                        return
                await self._pass(each, ended, lend=found)

    async def _pass(self, each: _Followed, ended: asyncio.Event, *, lend: bool) -> None:
        """Lend for a while, or until the batch ends."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LOOK_S
        while not ended.is_set() and loop.time() < until:
            if lend:
                self._lend(each)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BAND_S):
                    await ended.wait()

    def _lend(self, each: _Followed) -> None:
        """Lend to rows what the waiting requests lend now."""
        for ticket_id, ticket in tuple(each.tickets.items()):
            band = self._driver.why(ticket_id).lends
            if band is not None:
                caller_id = each.caller_id(ticket_id)
                self._lending.begin(Caller(caller_id, ticket.tenant, band, each.batch_id, waiter=ticket_id))


def _batches(ticket: Ticket) -> list[tuple[str, str]]:
    """Tenant and id of each batch among the dependencies."""
    found = (_NAME.fullmatch(name) for name in dict.fromkeys(ticket.depends_on))
    return list(dict.fromkeys((match[1] or ticket.tenant, match[2]) for match in found if match is not None))
