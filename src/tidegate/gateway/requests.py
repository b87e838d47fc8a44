"""``GET /v1/requests/{name}?wait=30s``: how far a request of the caller's tenant is.

Whoever waits lends its band to that request until it is answered or leaves (SPEC §4.6). The scheduler is told of the
wait; that the request has ended is told from here, so that nothing is polled.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from urllib.parse import parse_qs

import msgspec

from tidegate.classify import Classifier, Headers, Refused, Tenant
from tidegate.config import parse_duration
from tidegate.core import Outcome, Progress, Reason, Status, Waiter
from tidegate.gateway.link import ClientLink
from tidegate.runtime import Driver

PATH = "/v1/requests/"
MOST_WAIT_S = 60.0
"""Longest wait; a longer one is shortened, and the caller asks again. Proxies cut silent connections after a minute."""

UNKNOWN_S = 2.0
"""How long a name may be asked after before its request has come (SPEC §15.7)."""

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Ends:
    """Tells those who wait that a request has ended. ``full`` names are ``tenant/name``.

    Attributes:
        waiting: those who wait, by the name that they wait for; where it is empty, nobody has to be ``told``.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, set[asyncio.Future[None]]] = {}

    def told(self, full: str) -> None:
        """Wake whoever waits for a request that has ended."""
        for future in self.waiting.get(full, ()):
            if not future.done():
                future.set_result(None)

    @contextlib.contextmanager
    def waited_for(self, full: str) -> Iterator[asyncio.Future[None]]:
        """Give a future for the end of a request."""
        future = asyncio.get_running_loop().create_future()
        waiting = self.waiting.setdefault(full, set())
        waiting.add(future)
        try:
            yield future
        finally:
            waiting.discard(future)
            if not waiting:
                self.waiting.pop(full, None)


class Requests:
    """Answers questions about named requests."""

    def __init__(self, driver: Driver, classifier: Classifier, ends: Ends) -> None:
        self._driver = driver
        self._classifier = classifier
        self._ends = ends

    async def ask(
        self, tenant: Tenant, headers: Headers, link: ClientLink, *, wait_id: str, name: str, query: bytes
    ) -> bytes | Refused:
        """Return the state of a request as JSON, at once or when it has ended.

        Args:
            tenant: who asks; only its own requests are there for it.
            headers: by name; they may ask for a band as for any request.
            link: a client that leaves stops waiting.
            wait_id: unique.
            name: as in ``x-request-id``.
            query: ``wait=DURATION``.
        """
        if not _NAME.fullmatch(name):
            return Refused(Reason.BAD_REQUEST, "expected a name of 1 to 128 letters, digits or . _ : -", "name")
        wait_s = _wait_of(query)
        if isinstance(wait_s, Refused):
            return wait_s
        choice = self._classifier.caller_band(tenant, headers, PATH)
        if isinstance(choice, Refused):
            return choice
        full = f"{tenant.name}/{name}"
        status = self._driver.status(full)
        if wait_s > 0 and status.progress is not Progress.DONE:
            signal = Waiter(wait_id, tenant.name, choice.band, full, waiting=True)
            status = await self._wait(signal, link, wait_s)
        if status.progress is Progress.UNKNOWN:
            return Refused(
                Reason.BAD_REQUEST,
                f"expected the name of a request of the last 10 minutes, got {name!r}",
                "name",
                status=404,
                code="unknown_request",
            )
        return _state(name, status)

    async def _wait(self, signal: Waiter, link: ClientLink, wait_s: float) -> Status:
        task = asyncio.current_task()
        assert task is not None
        link.on_gone = task.cancel  # type: ignore[assignment]  # that it says whether it did is not asked
        self._driver.observe(signal)
        try:
            with self._ends.waited_for(signal.name) as ended:
                if self._driver.status(signal.name).progress is Progress.UNKNOWN:
                    await asyncio.wait((ended,), timeout=min(wait_s, UNKNOWN_S))
                    wait_s -= UNKNOWN_S
                if wait_s > 0 and self._driver.status(signal.name).progress is not Progress.UNKNOWN:
                    await asyncio.wait((ended,), timeout=wait_s)
        finally:
            link.on_gone = None
            self._driver.observe(Waiter(signal.waiter, signal.tenant, signal.band, signal.name, waiting=False))
        return self._driver.status(signal.name)


def _wait_of(query: bytes) -> float | Refused:
    values = parse_qs(query.decode("latin-1")).get("wait")
    if not values:
        return 0.0
    if len(values) > 1:
        return Refused(Reason.BAD_REQUEST, "wait: expected it once, got several", "wait")
    try:
        return min(parse_duration(values[0]), MOST_WAIT_S)
    except ValueError as error:
        return Refused(Reason.BAD_REQUEST, f"wait: {error}", "wait")


def _state(name: str, status: Status) -> bytes:
    outcome: Outcome | None = status.outcome
    return msgspec.json.encode({"id": name, "object": "request", "status": status.progress, "outcome": outcome})
