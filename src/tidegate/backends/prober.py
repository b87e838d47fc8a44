"""Ask one backend whether it is there, whenever its health wants to know (SPEC §5.4). The shell around ``health``.

A probe is the engine's own health page; any answer below 500 within ``PROBE_TIMEOUT_S`` is well. When a backend is
seen for the first time, or again, its list of models is read too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from tidegate.backends.errors import BackendError, Overloaded
from tidegate.backends.health import BackendHealth, Standing
from tidegate.backends.models_page import model_names
from tidegate.backends.upstream import Upstream
from tidegate.backends.wire import Headers

PROBE_TIMEOUT_S = 5.0
_MOST_PROBED = 4 * 1024 * 1024
_MODELS = b"/v1/models"
_AGAIN_S = 1.0
"""Until it goes on after a fault of ours: a backend that nobody asks would stay down for ever."""

log = structlog.get_logger("tidegate.backends")


class Prober:
    """Watches over one backend.

    Args:
        health: its standing.
        upstream: its client.
        target: its health page.
        headers: sent with each probe.
        now: the scheduler's clock.
        changed: told after each change of the standing, whoever caused it.

    Attributes:
        asked: set once a probe has ended.
        models: names in its list of models when that was last read.
    """

    def __init__(
        self,
        health: BackendHealth,
        upstream: Upstream,
        *,
        target: bytes,
        headers: Headers,
        now: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self.health = health
        self._upstream = upstream
        self._target = target
        self._headers = headers
        self._now = now
        self._changed = changed
        self._wake = asyncio.Event()
        self.asked = asyncio.Event()
        self.models: tuple[str, ...] = ()

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            try:
                await self._attend()
            except Exception:
                log.exception("probe.fault", target=self._target.decode("latin-1"))
                await asyncio.sleep(_AGAIN_S)

    async def _attend(self) -> None:
        wait_s = self.health.wakes_at - self._now()
        if wait_s > 0:
            await self._sleep(wait_s)
        self._told(changed=self.health.tick(self._now()))
        if self.health.next_look_at <= self._now():
            await self.probe()

    async def probe(self) -> None:
        """Ask once."""
        began = self._now()
        problem = None
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                status, _ = await self._get(self._target)
                if status >= 500:
                    problem = f"its health page gave {status}"
                elif not self.models or self.health.standing is Standing.DOWN:
                    await self._read_models()
        except Overloaded:  # says something of this machine only
            pass
        except BackendError as error:
            problem = str(error)
        except TimeoutError:
            problem = f"no answer to a probe within {PROBE_TIMEOUT_S} s"
        self.asked.set()
        self._told(changed=self.health.probed(self._now(), began=began, problem=problem))

    # What requests saw.

    def answered(self) -> None:
        """A request got content, or a whole answer that is not the backend's failure."""
        if self.health.answered(self._now()):  # every request: no call more than it takes
            self._changed()

    def failed(self, why: str, *, spare: bool) -> None:
        """A request failed; see ``BackendHealth.failed``."""
        self._told(changed=self.health.failed(self._now(), why, spare=spare))
        self._wake.set()

    def unreachable(self, why: str) -> None:
        """No connection could be made."""
        self._told(changed=self.health.unreachable(self._now(), why))
        self._wake.set()

    def doubt(self) -> None:
        """Have it asked soon."""
        self.health.doubt(self._now())
        self._wake.set()

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or less when something happened."""
        self._wake.clear()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _read_models(self) -> None:
        status, body = await self._get(_MODELS)
        if status == 200:
            self.models = model_names(body)

    async def _get(self, target: bytes) -> tuple[int, bytes]:
        response = await self._upstream.request(b"GET", target, self._headers)
        return response.status, await response.read_all(_MOST_PROBED)

    def _told(self, *, changed: bool) -> None:
        if changed:
            self._changed()
