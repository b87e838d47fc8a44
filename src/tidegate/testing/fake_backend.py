"""A backend that only takes time: joins a driver to an imagined engine in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.core import Lease, Release, Ticket
from tidegate.runtime import Driver, Refusal


class FakeBackend:
    """Serves tickets by holding their lease for ``service_s(ticket)`` seconds of the loop's time.

    Attributes:
        leases: every lease ever given, in order.
        refusals: every refusal, in order.
        done_at: loop time at which each completed ticket ended, by ticket id.
    """

    def __init__(self, driver: Driver, service_s: Callable[[Ticket], float]) -> None:
        self._driver = driver
        self._service_s = service_s
        self._loop = asyncio.get_running_loop()
        self.leases: list[Lease] = []
        self.refusals: list[Refusal] = []
        self.done_at: dict[str, float] = {}

    def submit(self, ticket: Ticket) -> None:
        """Send a ticket through the driver; what becomes of it is kept in the attributes."""
        self._driver.submit(ticket, self)

    def dispatched(self, lease: Lease) -> None:
        self.leases.append(lease)
        self._loop.call_later(self._service_s(lease.ticket), self._done, lease)

    def refused(self, action: Refusal) -> None:
        self.refusals.append(action)

    def _done(self, lease: Lease) -> None:
        self.done_at[lease.ticket.id] = self._loop.time()
        work = lease.ticket.work
        self._driver.release(lease, Release(input_tokens=work.input_tokens, output_tokens=work.output_tokens))
