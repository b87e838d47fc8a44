"""Look at an engine's metrics page again and again, beside the traffic and never in its way (SPEC §5.2).

The page has a client of its own, so that one that hangs holds up nothing else. Each look is bounded in time and size.
Whatever goes wrong is logged once and looked at again; the last reading grows old, and the scheduler judges its age.
The time between two looks is drawn around its mean, so that gateways with the same engines do not ask in step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog

from tidegate.backends.engine_signals import MetricNames, Slot, read_page, read_slots
from tidegate.backends.errors import BackendError
from tidegate.backends.upstream import Upstream
from tidegate.backends.wire import Headers
from tidegate.core.signals import Reading

MOST_PAGE = 8 * 1024 * 1024
SPREAD = 0.2
"""Part of the time between two looks by which it is longer or shorter."""

log = structlog.get_logger("tidegate.backends")


@dataclass(slots=True, frozen=True)
class Page:
    """Where to look, and how often.

    Attributes:
        backend: name of the backend.
        url: of the metrics page.
        names: what to look for.
        headers: sent along, for example a credential.
        every_s: mean time between two looks, seconds.
        timeout_s: longest time that a look may take, seconds.
    """

    backend: str
    url: str
    names: MetricNames
    headers: Headers = ()
    every_s: float = 0.5
    timeout_s: float = 1.0


class Poller:
    """Looks at one page.

    Args:
        page: where.
        upstream: a client for the page's root, used by nobody else; see ``page_root``.
        now: the scheduler's clock.
        tell: takes each reading.
        chance: gives numbers from 0 to below 1, for the jitter.
        slots: is told how many slots a llama.cpp server has, at each change.

    Attributes:
        problem: what went wrong at the last look, ``None`` when nothing did or before the first.
        read_at: ``now`` of the last reading, or of the start.
    """

    def __init__(
        self,
        page: Page,
        upstream: Upstream,
        *,
        now: Callable[[], float],
        tell: Callable[[Reading], None],
        chance: Callable[[], float],
        slots: Callable[[int], None] | None = None,
    ) -> None:
        self._page = page
        self._upstream = upstream
        self._now = now
        self._tell = tell
        self._chance = chance
        self._tell_slots = slots
        self._target = _target(page.url)
        self._slots_target = self._target.rpartition(b"/")[0] + b"/slots"
        self._slots = 0
        self.problem: str | None = None
        self.read_at = now()

    async def run(self) -> None:
        """Look until cancelled, then close the client."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(self._page.every_s * (1.0 + SPREAD * (2.0 * self._chance() - 1.0)))
        finally:
            await self._upstream.close()

    async def look(self) -> None:
        """Look once. Raises nothing but ``CancelledError``: who never looked again would leave the backend stale."""
        try:
            await self._look()
        except Exception as error:
            log.exception("metrics.fault", backend=self._page.backend, url=self._page.url)
            self._note(f"{type(error).__name__}: {error}")

    async def _look(self) -> None:
        at = self._now()
        try:
            async with asyncio.timeout(self._page.timeout_s):
                reading = await self._read(at)
        except TimeoutError:
            self._note(f"no answer within {self._page.timeout_s} s")
        except BackendError as error:
            self._note(str(error))
        else:
            self._note(None)
            self.read_at = at
            self._tell(reading)

    async def _read(self, at: float) -> Reading:
        page = self._page
        slots = await self._look_at_slots() if page.names.slots else None
        status, body = await self._get(self._target)
        reading = read_page(page.names, body, backend=page.backend, at=at) if status == 200 else None
        if reading is not None:
            return reading
        if slots is not None:  # llama.cpp shows metrics only when told to, its slots always unless told not to
            return Reading(page.backend, at, running=sum(slot.is_processing for slot in slots))
        if status != 200:
            raise BackendError(f"expected a metrics page, got status {status}")
        raise BackendError("expected the engine's metrics on the page, found none; is `engine` right?")

    async def _look_at_slots(self) -> list[Slot] | None:
        status, body = await self._get(self._slots_target)
        slots = read_slots(body) if status == 200 else None
        if slots is not None and len(slots) != self._slots:
            self._slots = len(slots)
            if self._tell_slots is not None:
                self._tell_slots(self._slots)
        return slots

    async def _get(self, target: bytes) -> tuple[int, bytes]:
        response = await self._upstream.request(b"GET", target, self._page.headers)
        return response.status, await response.read_all(MOST_PAGE)

    def _note(self, problem: str | None) -> None:
        before, self.problem = self.problem, problem
        if problem is not None and before is None:
            log.warning("metrics.lost", backend=self._page.backend, url=self._page.url, why=problem)
        elif problem is None and before is not None:
            log.info("metrics.back", backend=self._page.backend, url=self._page.url)


def page_root(url: str) -> str:
    """Give the root of a page's address, for its client: ``http://host:port``."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _target(url: str) -> bytes:
    parts = urlsplit(url)
    return ((parts.path or "/") + (f"?{parts.query}" if parts.query else "")).encode("ascii")
